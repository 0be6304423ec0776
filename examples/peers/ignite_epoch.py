"""Ignite's DeterministicEngine, saving per epoch.

How to run it: `python ignite_epoch.py [--noise] [--workers N]`. Follows docs.pytorch.org/ignite/engine.html ("Resuming
the training"), where the Checkpoint is made at EPOCH_COMPLETED; the reference of DeterministicEngine promises the same
dataflow when a run is resumed from an epoch.
"""

import ignite_deterministic
from ignite.engine import Events

if __name__ == "__main__":
    ignite_deterministic.main(Events.EPOCH_COMPLETED)
