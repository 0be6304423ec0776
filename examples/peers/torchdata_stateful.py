"""StatefulDataLoader of torchdata, saving in mid-epoch.

How to run it: `python torchdata_stateful.py [--noise] [--workers N]`. Follows the README of
`torchdata/stateful_dataloader` (github.com/meta-pytorch/data, "Saving and loading state"): the drop-in loader's own
`state_dict` and `load_state_dict`. All else is the recipe of PyTorch. torch's global generator is saved too, and set
where it is right, although the README does not ask for it: this script is to show the loader, not a forgotten line of
the loop. `torchdata_dataset_state.py` adds what the README calls optional.
"""

from pathlib import Path

import torch
from digits_task import (
    BATCH,
    EPOCHS,
    SAVE_EVERY,
    SEED,
    Digits,
    network,
    optimizer_of,
    options,
    say_weights,
    schedule_of,
)
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

PATH = Path("checkpoint.pt")


def main(dataset_class: type[Digits] = Digits) -> None:
    chosen = options()
    torch.manual_seed(SEED)
    loader = StatefulDataLoader(
        dataset_class(noise=chosen.noise),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=chosen.workers,
    )
    model = network()
    optimizer = optimizer_of(model)
    scheduler = schedule_of(optimizer)
    first, step, random_state = 0, 0, None
    if PATH.exists():
        checkpoint = torch.load(PATH, weights_only=False)  # the loader's state is no weight; the file is our own
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        loader.load_state_dict(checkpoint["loader"])
        first, step = checkpoint["epoch"], checkpoint["step"]
        random_state = checkpoint["random_state"]
    for epoch in range(first, EPOCHS):
        batches = iter(loader)  # draws from the global generator, so that is set behind it
        if random_state is not None:
            torch.set_rng_state(random_state)
            random_state = None
        for images, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % SAVE_EVERY == 0:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "loader": loader.state_dict(),
                    "epoch": epoch,
                    "step": step,
                    "random_state": torch.get_rng_state(),
                }
                torch.save(checkpoint, PATH)
    say_weights(model)


if __name__ == "__main__":
    main()
