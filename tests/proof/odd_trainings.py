"""Trainings of unusual shapes, each printing a digest of its weights: what a recorder must neither change nor miss."""

import hashlib
import sys
from contextlib import suppress

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def show(*modules):
    """Print a digest of all that modules hold."""
    whole = hashlib.sha256()
    for module in modules:
        for value in module.state_dict().values():
            whole.update(value.detach().double().numpy().tobytes())
    sys.stdout.write(whole.hexdigest() + "\n")


def loader(n=24, size=4):
    """Give a loader of random samples."""
    return torch.utils.data.DataLoader(torch.randn(n, 6), size, shuffle=True)


def adversaries():
    """Train two networks against each other, each with an optimizer of its own."""
    maker, judge = nn.Linear(2, 6), nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    first, second = torch.optim.Adam(maker.parameters()), torch.optim.SGD(judge.parameters(), lr=0.01, momentum=0.9)
    for real in loader():
        made = maker(torch.randn(len(real), 2))
        second.zero_grad()
        (judge(made.detach()).mean() - judge(real).mean()).backward()
        second.step()
        first.zero_grad()
        (-judge(made).mean()).backward()
        first.step()
    show(maker, judge)


def recomputed():
    """Recompute activations in the backward pass."""
    first, second = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3)), nn.Linear(8, 1)
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
    for batch in loader():
        optimizer.zero_grad()
        second(checkpoint(first, batch.requires_grad_(), use_reentrant=True)).mean().backward()
        second(checkpoint(first, batch, use_reentrant=False)).mean().backward()
        optimizer.step()
    show(first, second)


def accumulated():
    """Update behind every third batch, with arguments by name, and with forwards that fail in between."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, *, x, fails=False):
            if fails:
                raise ValueError(x)
            return {"loss": self.layer(x).square().mean()}

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(loader(), start=1):
        with suppress(ValueError):
            model(x=batch, fails=True)
        model(x=batch)["loss"].backward()
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    show(model)


def fetched_ahead():
    """Fetch the next batch before the present one is trained on."""
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(loader())
    ahead = next(batches)
    while ahead is not None:
        batch, ahead = ahead, next(batches, None)
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    show(model)


def without_modules():
    """Train bare tensors, with a rate that is a tensor, and parameters that come and go."""
    first, second = (torch.randn(3, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.Adam([first], lr=torch.tensor(0.1))
    for step in range(5):
        if step == 2:
            optimizer.add_param_group({"params": [second], "lr": 0.5})
        loss = (first * second).sum().square() + torch.rand(())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sys.stdout.write(repr([first.tolist(), second.tolist()]) + "\n")


def averaged():
    """Keep an average of the weights, and weights in half precision."""
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1)).to(torch.bfloat16)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randint(0, 10, (3, 2))).float().mean().backward()
        optimizer.step()
        average.update_parameters(model)
    show(model, average)


def frozen():
    """Train a head on what a frozen network with a batch norm says, and cut a validation short."""
    body, head = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    validation = loader()
    for batch in loader():
        with torch.no_grad():
            seen = body(batch)
        optimizer.zero_grad()
        head(seen).mean().backward()
        optimizer.step()
        for other in validation:
            with torch.no_grad():
                head(body(other))
            break
    show(body, head)


def compiled():
    """Train a compiled model."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    fast = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader():
        optimizer.zero_grad()
        fast(batch).mean().backward()
        optimizer.step()
    show(model)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        globals()[name]()
