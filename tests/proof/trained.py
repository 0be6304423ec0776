"""A training for the tests of recorders: an ordinary script, which can be spoiled at one place."""

import argparse
import hashlib
import random
import sys

import numpy as np
import torch
from torch import nn


class Noisy(torch.utils.data.Dataset):
    """Samples with noise from each of the global generators."""

    offset = 0.0

    def __init__(self, n=48):
        self.x = torch.arange(8.0 * n).reshape(n, 8) / (8 * n)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = torch.rand(()) + np.random.random() + random.random()
        return self.x[index] + 0.01 * noise + self.offset, self.x[index].sum()


def digest(model):
    """Hash all that a model holds."""
    whole = hashlib.sha256()
    for value in model.state_dict().values():
        whole.update(value.detach().numpy().tobytes())
    return whole.hexdigest()


def train(spoil="", at=3, workers=0, start="fork", epochs=2, optimizer="AdamW"):
    """Train, and give the digest of the weights; `spoil` changes one thing before step `at`."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))
    options = {"lr": 0.01} | ({"max_iter": 3} if optimizer == "LBFGS" else {})
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    data = Noisy()
    loader = torch.utils.data.DataLoader(
        data, 8, shuffle=True, num_workers=workers, multiprocessing_context=start if workers else None
    )
    step = 0
    for _ in range(epochs):
        model.train()
        for batch in loader:
            data.offset = 0.5 if spoil == "augmentation" and step == at - 1 else 0.0
            x, y, here = *batch, spoil if step == at else ""
            if here in SPOILS:
                x, y = SPOILS[here](x, y, model, optimizer)
            if here == "scaler":
                scaler.update(8.0)

            def closure(x=x, y=y, here=here):
                optimizer.zero_grad()
                loss = (model(x).squeeze(1) - y).square().mean()
                if here == "loss":
                    loss = loss + 1
                (loss if isinstance(optimizer, torch.optim.LBFGS) else scaler.scale(loss)).backward()
                if here == "gradients":
                    model[4].weight.grad[0, 3] *= -1
                return loss

            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(closure)
            else:
                closure()
                scaler.step(optimizer)
                scaler.update()
            scheduler.step()
            step += 1
        model.eval()
        with torch.no_grad():
            for x, _ in loader:
                model(x)
    return digest(model)


def _swap(x, y, *_):
    return x.flip(0), y.flip(0)


def _parameter(x, y, model, _):
    with torch.no_grad():
        model[0].weight[3, 3] += 2**-20
    return x, y


def _buffer(x, y, model, _):
    model[1].running_mean[5] += 1
    return x, y


def _moment(x, y, model, optimizer):
    state = optimizer.state[model[4].weight]["exp_avg_sq"]
    state[0, :2] = state[0, :2].flip(0)
    return x, y


def _rate(x, y, _, optimizer):
    optimizer.param_groups[0]["lr"] *= 2
    return x, y


def _draw(draw):
    def spoil(x, y, *_):
        draw()
        return x, y

    return spoil


SPOILS = {
    "inputs": _swap,
    "parameters": _parameter,
    "buffers": _buffer,
    "optimizer": _moment,
    "learning_rate": _rate,
    "random.torch": _draw(lambda: torch.rand(1)),
    "random.numpy": _draw(np.random.random),
    "random.python": _draw(random.random),
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--spoil", nargs="*", default=[""], help="One training after the other, each spoiled so.")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start", default="fork")
    parser.add_argument("--optimizer", default="AdamW")
    given = vars(parser.parse_args())
    for each in given.pop("spoil"):
        sys.stdout.write(train(each, **given) + "\n")
