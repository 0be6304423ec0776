"""Trainer of Transformers, saving each few steps.

How to run it: `python transformers_trainer.py [--noise] [--workers N]`. Follows
huggingface.co/docs/transformers/trainer ("Checkpoints"): `save_steps`, and `resume_from_checkpoint` with what
`get_last_checkpoint` finds, as the example scripts (`run_glue.py`) do. The model is one's own, as
main_classes/trainer allows: it gives its loss when there are labels. `transformers_vit.py` trains one of the library's.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from digits_task import BATCH, EPOCHS, SAVE_EVERY, SEED, Digits, network, options, say_weights
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

FOLDER = Path("trained")


class Classifier(nn.Module):
    """The network, in the form that Trainer asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict:
        """Give loss and scores of images float[batch, 1, 8, 8]."""
        scores = self.network(pixel_values.flatten(1))
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def collate(samples: list) -> dict:
    """Make what the model takes of a list of samples: pixel_values float[batch, 1, 8, 8] and labels."""
    images = torch.stack([image for image, _ in samples]).reshape(-1, 1, 8, 8)
    return {"pixel_values": images, "labels": torch.stack([label for _, label in samples])}


def main(build: Callable[[], nn.Module]) -> None:
    chosen = options()
    set_seed(SEED)
    model = build()
    arguments = TrainingArguments(
        output_dir=str(FOLDER),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        save_strategy="steps",
        save_steps=SAVE_EVERY,
        seed=SEED,
        dataloader_drop_last=True,
        dataloader_num_workers=chosen.workers,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Digits(noise=chosen.noise), data_collator=collate)
    last = get_last_checkpoint(str(FOLDER)) if FOLDER.is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    say_weights(model)


if __name__ == "__main__":
    main(Classifier)
