"""Trainer of Transformers, saving each few steps.

How to run it: `python transformers_trainer.py [--noise] [--workers N]`. Follows
huggingface.co/docs/transformers/trainer ("Checkpoints"): `save_steps`, and `resume_from_checkpoint` with what
`get_last_checkpoint` finds, as the example scripts (`run_glue.py`) do. A tiny vision transformer is built from its
configuration: nothing is downloaded.
"""

from pathlib import Path

import torch
from digits_task import BATCH, EPOCHS, SAVE_EVERY, SEED, Digits, options, say_weights
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed
from transformers.trainer_utils import get_last_checkpoint

FOLDER = Path("trained")


def collate(samples: list) -> dict:
    """Make what the model takes of a list of samples: pixel_values float[batch, 1, 8, 8] and labels."""
    images = torch.stack([image for image, _ in samples]).reshape(-1, 1, 8, 8)
    return {"pixel_values": images, "labels": torch.stack([label for _, label in samples])}


def main() -> None:
    chosen = options()
    set_seed(SEED)
    shape = ViTConfig(
        image_size=8,
        patch_size=4,
        num_channels=1,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.2,
        num_labels=10,
    )
    model = ViTForImageClassification(shape)
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
    main()
