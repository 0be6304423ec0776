"""Plain PyTorch, saving per epoch as its recipe does.

How to run it: `python plain_recipe.py [--noise] [--workers N]`. Follows "Saving and loading a general checkpoint in
PyTorch" (docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html): epoch, model,
optimizer and loss in one dictionary, torch.save to one path; "other items … based on your own algorithm" is here the
schedule. Seeded once at the start, as the page on reproducibility says.
"""

from pathlib import Path

import torch
from digits_task import BATCH, EPOCHS, SEED, Digits, network, optimizer_of, options, say_weights, schedule_of
from torch import nn
from torch.utils.data import DataLoader

PATH = Path("model.pt")


def main() -> None:
    chosen = options()
    torch.manual_seed(SEED)
    loader = DataLoader(
        Digits(noise=chosen.noise), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=chosen.workers
    )
    model = network()
    optimizer = optimizer_of(model)
    scheduler = schedule_of(optimizer)
    first = 0
    if PATH.exists():
        checkpoint = torch.load(PATH)
        model.load_state_dict(checkpoint["model_state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
        scheduler.load_state_dict(checkpoint["scheduler_state_dict"])
        first = checkpoint["epoch"] + 1
    model.train()
    for epoch in range(first, EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
        torch.save(
            {
                "epoch": epoch,
                "model_state_dict": model.state_dict(),
                "optimizer_state_dict": optimizer.state_dict(),
                "scheduler_state_dict": scheduler.state_dict(),
                "loss": loss.item(),
            },
            PATH,
        )
    say_weights(model)


if __name__ == "__main__":
    main()
