"""Lightning's Trainer, saving each few steps.

How to run it: `python lightning_trainer.py [--noise] [--workers N]`. Follows
lightning.ai/docs/pytorch/stable/common/checkpointing_basic.html ("Resume training state") and
checkpointing_intermediate.html (`every_n_train_steps`, `save_last`); `ckpt_path="last"` is the Trainer's own way to
find the newest. Seeded as common/trainer.html says ("Reproducibility"): seed_everything with workers, deterministic.
"""

import lightning
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
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader


class LitDigits(lightning.LightningModule):
    """The task as a LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: list, batch_idx: int) -> torch.Tensor:  # noqa: ARG002 — theirs
        """Give the loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> dict:
        """Give the optimizer and its schedule, stepped with it."""
        optimizer = optimizer_of(self)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule_of(optimizer), "interval": "step"},
        }


def main(checkpoint: ModelCheckpoint) -> None:
    chosen = options()
    lightning.seed_everything(SEED, workers=True)
    loader = DataLoader(
        Digits(noise=chosen.noise), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=chosen.workers
    )
    model = LitDigits()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        deterministic=True,
        logger=False,
        callbacks=[checkpoint],
        enable_progress_bar=False,
    )
    trainer.fit(model, loader, ckpt_path="last")
    say_weights(model)


if __name__ == "__main__":
    main(ModelCheckpoint(dirpath="checkpoints", every_n_train_steps=SAVE_EVERY, save_last=True))
