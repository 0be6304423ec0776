"""Accelerate's save_state, saving each few steps.

How to run it: `python accelerate_state.py [--noise] [--workers N]`. Follows
huggingface.co/docs/accelerate/usage_guides/checkpoint and `examples/by_feature/checkpointing.py`: save_state into
`step_N`, load_state, skip_first_batches, then the prepared loader again. `use_seedable_sampler` with set_seed is what
the reference of DataLoaderConfiguration names for fully reproducible training.
"""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
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
from torch.utils.data import DataLoader

FOLDER = Path("states")


def newest() -> Path | None:
    """Give the folder of the newest state, as the example finds it: by its number."""
    return max(FOLDER.glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")), default=None)


def main(loading: DataLoaderConfiguration, *, skips: bool, tells_epoch: bool = False) -> None:
    chosen = options()
    accelerator = Accelerator(cpu=True, dataloader_config=loading)
    set_seed(SEED)
    model = network()
    optimizer = optimizer_of(model)
    loader = DataLoader(
        Digits(noise=chosen.noise),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=chosen.workers,
        generator=torch.Generator().manual_seed(SEED) if tells_epoch else None,
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, schedule_of(optimizer))
    overall_step = starting_epoch = resume_step = 0
    last = newest()
    if last is not None:
        accelerator.load_state(str(last))
        overall_step = int(last.name.removeprefix("step_"))
        starting_epoch, resume_step = divmod(overall_step, len(loader))
    for epoch in range(starting_epoch, EPOCHS):
        model.train()
        if tells_epoch:
            loader.set_epoch(epoch)
        skipped = skips and epoch == starting_epoch and resume_step > 0
        active = accelerator.skip_first_batches(loader, resume_step) if skipped else loader
        for images, labels in active:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            overall_step += 1
            if overall_step % SAVE_EVERY == 0:
                accelerator.save_state(str(FOLDER / f"step_{overall_step}"))
    say_weights(accelerator.unwrap_model(model))


if __name__ == "__main__":
    main(DataLoaderConfiguration(use_seedable_sampler=True), skips=True)
