"""samestep, saving each few steps.

How to run it: `python samestep_plain.py [--noise] [--workers N]`. Follows the README of this repository ("The loop"):
build, track, loop. Nothing else is saved by hand.
"""

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

import samestep


def main() -> None:
    chosen = options()
    run = samestep.Run("run", seed=SEED, save_every=f"{SAVE_EVERY} steps")
    loader = samestep.DataLoader(
        Digits(noise=chosen.noise), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=chosen.workers
    )
    model = network()
    optimizer = optimizer_of(model)
    scheduler = schedule_of(optimizer)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for _ in run.epochs(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.step(loss=loss)
    say_weights(model)


if __name__ == "__main__":
    main()
