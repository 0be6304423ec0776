"""Trainer of Transformers with a model of its library, saving each few steps.

How to run it: `python transformers_vit.py [--noise] [--workers N]`. Follows huggingface.co/docs/transformers/trainer
("Checkpoints"), as `transformers_trainer.py` does, with a tiny vision transformer that is built from its configuration:
nothing is downloaded. Its checkpoints hold other names than the model has, and the Trainer does not translate them
back (huggingface/transformers#43701, seen with 5.24): a resume begins with the encoder of the start.
"""

import transformers_trainer
from transformers import ViTConfig, ViTForImageClassification

SHAPE = {
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 1,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.2,
    "num_labels": 10,
}


def build() -> ViTForImageClassification:
    """Build the model."""
    return ViTForImageClassification(ViTConfig(**SHAPE))


if __name__ == "__main__":
    transformers_trainer.main(build)
