"""StatefulDataLoader with a data set that has a state.

How to run it: `python torchdata_dataset_state.py [--noise] [--workers N]`. Follows the README of
`torchdata/stateful_dataloader` (github.com/meta-pytorch/data, "Saving Custom State with Map-Style Datasets", "save
dataset random transform state"): the data set hands out the state of torch's generator in its process.
"""

import torch
import torchdata_stateful
from digits_task import Digits


class StatefulDigits(Digits):
    """The digits, with the generator of whichever process fetches them as their state."""

    def state_dict(self) -> dict:
        """Give the generator's state, as the README's NoisyRange does."""
        return {"rng": torch.get_rng_state()}

    def load_state_dict(self, state_dict: dict) -> None:
        """Set it again."""
        torch.set_rng_state(state_dict["rng"])


if __name__ == "__main__":
    torchdata_stateful.main(StatefulDigits)
