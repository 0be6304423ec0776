"""Ignite's DeterministicEngine, saving each few iterations.

How to run it: `python ignite_deterministic.py [--noise] [--workers N]`. Follows docs.pytorch.org/ignite/engine.html
("Resuming the training", "Dataflow synchronization"): a Checkpoint of trainer, model, optimizer and schedule, "every N
iterations", load_objects, the same seed and `run` again. The page itself warns that random augmentations are not
synchronized in the middle of an epoch.
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
from ignite.engine import DeterministicEngine, Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import DataLoader

FOLDER = Path("checkpoints")


def newest() -> Path | None:
    """Give the file of the newest checkpoint."""
    return max(FOLDER.glob("checkpoint_*.pt"), key=lambda path: int(path.stem.split("_")[-1]), default=None)


def main(when: object) -> None:
    chosen = options()
    manual_seed(SEED)
    loader = DataLoader(
        Digits(noise=chosen.noise), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=chosen.workers
    )
    model = network()
    optimizer = optimizer_of(model)
    scheduler = schedule_of(optimizer)

    def update(_: Engine, batch: list) -> float:
        model.train()
        optimizer.zero_grad()
        images, labels = batch
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.item()

    trainer = DeterministicEngine(update)
    parts = {"trainer": trainer, "model": model, "optimizer": optimizer, "lr_scheduler": scheduler}
    trainer.add_event_handler(when, Checkpoint(parts, DiskSaver(str(FOLDER), create_dir=True, require_empty=False)))
    last = newest()
    if last is not None:
        checkpoint = torch.load(last, weights_only=False)  # the engine keeps states of generators; the file is our own
        Checkpoint.load_objects(to_load=parts, checkpoint=checkpoint)
    manual_seed(SEED)
    trainer.run(loader, max_epochs=EPOCHS)
    say_weights(model)


if __name__ == "__main__":
    main(Events.ITERATION_COMPLETED(every=SAVE_EVERY))
