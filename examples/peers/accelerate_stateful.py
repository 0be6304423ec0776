"""Accelerate with its stateful loader, saving each few steps.

How to run it: `python accelerate_stateful.py [--noise] [--workers N]`. Follows
huggingface.co/docs/accelerate/basic_tutorials/migration (`use_stateful_dataloader=True` for checkpoints at any time)
and `examples/by_feature/checkpointing.py`, which then skips nothing.
"""

import accelerate_state
from accelerate.utils import DataLoaderConfiguration

if __name__ == "__main__":
    accelerate_state.main(DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True), skips=False)
