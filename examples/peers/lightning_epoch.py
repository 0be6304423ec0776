"""Lightning's Trainer, saving per epoch, its default.

How to run it: `python lightning_epoch.py [--noise] [--workers N]`. Follows
lightning.ai/docs/pytorch/stable/common/checkpointing_basic.html: a checkpoint "with the state of your last training
epoch"; `save_last` lets `ckpt_path="last"` find it.
"""

import lightning_trainer
from lightning.pytorch.callbacks import ModelCheckpoint

if __name__ == "__main__":
    lightning_trainer.main(ModelCheckpoint(dirpath="checkpoints", save_last=True))
