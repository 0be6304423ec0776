"""Accelerate with what its pages leave out: the epoch's number, and a generator for the loader.

How to run it: `python accelerate_set_epoch.py [--noise] [--workers N]`. Follows `accelerate_state.py` and its page, but
the loop tells the loader the epoch (`set_epoch`, as Trainer of Transformers does), and the loader has a generator of
its own (docs.pytorch.org/docs/stable/notes/randomness.html), so that its iterator draws nothing from the global one.
"""

import accelerate_state
from accelerate.utils import DataLoaderConfiguration

if __name__ == "__main__":
    accelerate_state.main(DataLoaderConfiguration(use_seedable_sampler=True), skips=True, tells_epoch=True)
