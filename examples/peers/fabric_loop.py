"""A loop of one's own on Lightning Fabric, saving per epoch.

How to run it: `python fabric_loop.py [--noise] [--workers N]`. Follows
lightning.ai/docs/fabric/stable/guide/checkpoint/checkpoint.html ("Define the state of your program"): everything in one
dictionary, fabric.save and fabric.load. The page says nothing of random generators.
"""

from pathlib import Path

from digits_task import BATCH, EPOCHS, SEED, Digits, network, optimizer_of, options, say_weights, schedule_of
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

PATH = Path("checkpoint.ckpt")


def main() -> None:
    chosen = options()
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(SEED, workers=True)
    model = network()
    model, optimizer = fabric.setup(model, optimizer_of(model))
    scheduler = schedule_of(optimizer)
    loader = fabric.setup_dataloaders(
        DataLoader(
            Digits(noise=chosen.noise), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=chosen.workers
        )
    )
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": 0}
    if PATH.exists():
        fabric.load(PATH, state)
    for epoch in range(state["epoch"], EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            fabric.backward(loss)
            optimizer.step()
            scheduler.step()
        state["epoch"] = epoch + 1
        fabric.save(PATH, state)
    say_weights(model.module)


if __name__ == "__main__":
    main()
