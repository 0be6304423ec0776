"""Ignite's DeterministicEngine, saving per epoch. How to run it: `python ignite_epoch.py [--noise] [--workers N]`.

Follows docs.pytorch.org/ignite/engine.html ("Resuming the training"), where the Checkpoint is made at EPOCH_COMPLETED: what
the reference of DeterministicEngine promises is "exactly the same dataflow when resuming the run from an epoch".
"""

import ignite_deterministic
from ignite.engine import Events

if __name__ == "__main__":
    ignite_deterministic.main(Events.EPOCH_COMPLETED)
