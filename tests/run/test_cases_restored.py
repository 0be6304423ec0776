"""Failures that people reported of other tools, each as a small loop that is restored at every boundary."""

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_restored_anywhere import BATCHES, ITEMS, Script
from torch import nn
from torch.optim.swa_utils import AveragedModel

import samestep
from samestep.testing import check_every_step

EPOCHS = 2
BOUNDARIES = EPOCHS * (BATCHES + 2)
"""The top of each epoch, each batch, and the request behind the last one."""


class Noise(torch.utils.data.Dataset):
    """Items that draw from torch's global generator when they are fetched, as augmentations do."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.randn(3), number


def accumulate(script: Script, window: int) -> None:
    """Train with windows of micro-batches that do not end with the epochs."""
    state = script.run.state
    state.micro, state.loss = 0, 0.0
    for _ in script.run.epochs(EPOCHS):
        for x, number in script.loader:
            loss = (script.model(x).squeeze(1) - number / ITEMS).square().mean() / window
            loss.backward()
            state.micro += 1
            state.loss += loss.item()
            if state.micro % window == 0:
                script.optimizer.step()
                script.optimizer.zero_grad()
                script.run.step(loss=state.loss)
                state.loss = 0.0


@pytest.mark.parametrize("randomness", ["sample", "torch"])
def test_a_data_set_that_draws_under_accumulation(randomness: str) -> None:
    """A data set draws, two batches make an update, and each place of an epoch resumes (transformers PR#46628)."""
    check_every_step(lambda directory: accumulate(Script(directory, data=Noise(), randomness=randomness), window=2))


def test_half_a_window_and_its_loss_go_on() -> None:
    """OneTrainer PR#1465, transformers#22143: 3 of 5 micro-batches, and the loss they have added up, go on."""
    check_every_step(lambda directory: accumulate(Script(directory), window=5))


class HandScaler:
    """A loss scaler as projects write it themselves: a scale, and a count of good steps since it was last changed."""

    def __init__(self) -> None:
        self.factor, self.good = 256.0, 0

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.factor

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self.finite = all(bool(each.grad.isfinite().all()) for each in parameters)
        if self.finite:
            for each in parameters:
                each.grad /= self.factor
            optimizer.step()

    def update(self) -> None:
        self.good = self.good + 1 if self.finite else 0
        self.factor *= 2.0 if self.good and self.good % 2 == 0 else 1.0 if self.finite else 0.5

    def get_scale(self) -> float:
        return self.factor

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "good": self.good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.factor, self.good = state["factor"], state["good"]


SCALERS = {
    "torch": lambda: torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2),
    "by hand": HandScaler,
}


@pytest.mark.parametrize("build", SCALERS.values(), ids=SCALERS)
def test_the_loss_scale_and_its_skipped_steps_go_on(build: Callable[[], Any]) -> None:
    """transformers#34053, ultralytics PR#22189: from 256, growth and skipped updates are those without a stop."""
    scales: list[float] = []

    def train(directory: Path) -> None:
        script, scaler = Script(directory), build()
        script.run.track(scaler=scaler)
        for step in script.run.steps(7):
            loss = script.model(torch.rand(4, 3)).square().mean() * (float("inf") if step == 3 else 1.0)
            script.optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(script.optimizer)
            scaler.update()
            script.run.step(loss=loss)
            scales.append(scaler.get_scale())

    check_every_step(train)
    assert scales[:7] == [256, 512, 512, 256, 256, 512, 512]


def warming_up(average: torch.Tensor, weight: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    return average + (weight - average) * (10.0 / (10.0 + updates))


class BufferedAverage(nn.Module):
    """An average whose count of updates is a buffer, as lightly-train has it since the fix."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.average = AveragedModel(model).module
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def update_parameters(self, model: nn.Module) -> None:
        self.updates += 1
        decay = 0.9 * (1 - torch.exp(-self.updates / 3))
        for average, weight in zip(self.average.parameters(), model.parameters(), strict=True):
            average.data.mul_(decay).add_((1 - decay) * weight.data)


class CountingAverage(nn.Module):
    """An average that counts in a plain number, and saves it as its extra state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.average, self.updates = AveragedModel(model).module, 0

    def update_parameters(self, model: nn.Module) -> None:
        self.updates += 1
        decay = 0.9 * (1 - 2.0**-self.updates)
        for average, weight in zip(self.average.parameters(), model.parameters(), strict=True):
            average.data.mul_(decay).add_((1 - decay) * weight.data)

    def get_extra_state(self) -> int:
        return self.updates

    def set_extra_state(self, state: int) -> None:
        self.updates = state


class Shadow:
    """An average that is no module: a dict of tensors and a number, with a state of its own, as YOLOX has it."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}
        self.updates = 0

    def update_parameters(self, model: nn.Module) -> None:
        self.updates += 1
        decay = 0.9 * (1 - 2.0**-self.updates)
        for name, weight in model.named_parameters():
            self.shadow[name] = decay * self.shadow[name] + (1 - decay) * weight.detach()

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow, self.updates = dict(state["shadow"]), state["updates"]


AVERAGES = {
    "of torch": lambda model: AveragedModel(model, avg_fn=warming_up),
    "with a buffer": BufferedAverage,
    "with an extra state": CountingAverage,
    "by hand": Shadow,
}


@pytest.mark.parametrize("build", AVERAGES.values(), ids=AVERAGES)
def test_an_average_that_warms_up_goes_on(build: Callable[[nn.Module], Any]) -> None:
    """lightly-train PR#892, YOLOX#1318: EMA weights and the count that sets their decay go on; no second warm-up."""

    def train(directory: Path) -> None:
        script = Script(directory)
        average = build(script.model)
        script.run.track(average=average)
        for _ in script.run.steps(5):
            script.update([torch.rand(4, 3), torch.arange(4)])
            average.update_parameters(script.model)

    check_every_step(train)


class Stopper:
    """Early stopping as an object: the best loss, and for how many epochs it has not been beaten."""

    def __init__(self) -> None:
        self.best, self.waited = float("inf"), 0

    def says_stop(self, loss: float) -> bool:
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        return self.waited == 2

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


@pytest.mark.parametrize("kind", ["run.state", "an object"])
def test_the_patience_of_early_stopping_goes_on(kind: str) -> None:
    """Lightning#1463: restored anywhere, early stopping has waited as long as it had, and stops at the same epoch."""
    losses, ends = [3.0, 2.0, 2.0, 2.5, 1.0, 1.0], []

    def train(directory: Path) -> None:
        script = Script(directory, batch_size=ITEMS)
        if kind == "an object":
            stopper = Stopper()
            script.run.track(stopper=stopper)
        else:
            stopper = script.run.state.stopper = {"best": float("inf"), "waited": 0}
        for epoch in script.run.epochs(6):
            for batch in script.loader:
                script.update(batch)
            if isinstance(stopper, dict):
                stopper["waited"] = 0 if losses[epoch] < stopper["best"] else stopper["waited"] + 1
                stopper["best"] = min(stopper["best"], losses[epoch])
                stops = stopper["waited"] == 2
            else:
                stops = stopper.says_stop(losses[epoch])
            if stops:
                script.run.stop()
        ends.append(script.run.epoch)

    check_every_step(train)
    assert set(ends) == {4}


def packed(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Merge three samples at a time into one that is three times as long."""
    triples = [samples[start : start + 3] for start in range(0, len(samples), 3)]
    return [
        torch.stack([torch.cat([x for x, _ in each]) for each in triples]),
        torch.tensor([float(sum(number for _, number in each)) for each in triples]),
    ]


def test_a_collate_function_that_merges_samples() -> None:
    """streaming#437, llm-foundry PR#1277: six samples become two, and the place in the epoch is right all the same."""

    def train(directory: Path) -> None:
        script = Script(directory, batch_size=6, collate_fn=packed)
        script.run.state.seen = []
        for _ in script.run.epochs(EPOCHS):
            for x, numbers in script.loader:
                assert x.shape == (2, 9)
                script.run.state.seen += numbers.tolist()
                script.update([x[:, :3], numbers])
            assert sum(script.run.state.seen[-4:]) == sum(range(ITEMS))

    check_every_step(train)


@pytest.mark.filterwarnings("ignore:These decide the next step")  # loaders for evaluation, which none resumes
def test_evaluating_often_or_never_is_one_training(tmp_path: Path) -> None:
    """transformers#1556, char-rnn#17: sampling and validating at every step or never, isolated, train the same bits."""

    def train(directory: Path, *, evaluates: bool) -> list[torch.Tensor]:
        script = Script(directory)
        noise = torch.Generator().manual_seed(3)
        script.run.track(noise=noise)
        stock = torch.utils.data.DataLoader(script.data, batch_size=5, shuffle=True)
        own = samestep.DataLoader(script.data, batch_size=5, shuffle=True)
        losses = []
        for _ in script.run.epochs(EPOCHS):
            for batch in script.loader:
                losses.append(torch.tensor(script.update(batch, 1 + torch.rand((), generator=noise).item())))
                if evaluates:
                    with script.run.isolated(), torch.no_grad():
                        for x, _ in itertools.chain(stock, own):
                            script.model(x + torch.rand(3) + float(np.random.rand()) + random.random())
                        torch.rand(3, generator=noise)
        return [*losses, *script.model.parameters()]

    often, never = train(tmp_path / "often", evaluates=True), train(tmp_path / "never", evaluates=False)
    assert all(torch.equal(*pair) for pair in zip(often, never, strict=True))


def packs(batches: Iterable[list[torch.Tensor]], size: int) -> Iterator[list[torch.Tensor]]:
    """Hand on as many samples at a time as are asked for, and hold back the rest."""
    held: list[tuple[torch.Tensor, ...]] = []
    for batch in batches:
        held += zip(*batch, strict=True)
        while len(held) >= size:
            yield [torch.stack(parts) for parts in zip(*held[:size], strict=True)]
            held = held[size:]
    if held:
        yield [torch.stack(parts) for parts in zip(*held, strict=True)]


@pytest.mark.parametrize(("size", "boundaries"), [(2, 8), (5, 2), (8, 4)])
def test_a_generator_that_holds_samples_back(size: int, boundaries: int) -> None:
    """streaming#437, llm-foundry PR#1277: checkpoints wait while a packing generator holds samples; none is lost."""

    def train(directory: Path) -> None:
        script = Script(directory)
        for _ in script.run.epochs(EPOCHS):
            for batch in packs(script.loader, size):
                script.update(batch)

    assert check_every_step(train) == boundaries


def test_a_save_that_waits_for_held_samples_says_so(tmp_path: Path) -> None:
    """streaming#437: a save that is due while a generator holds samples is put off, once with a word and a line."""
    script = Script(tmp_path, save_every=1)
    with pytest.warns(UserWarning, match=r"holds samples back(.|\n)*held, .*test_cases_restored.py") as caught:
        for _ in script.run.epochs(EPOCHS):
            for batch in packs(script.loader, 5):
                script.update(batch)
    assert len(caught) == 1


def test_what_a_generator_holds_may_be_state() -> None:
    """A packing generator that keeps its rest in run.state is saved at every boundary, and loses nothing."""

    def kept(script: Script) -> Iterator[list[torch.Tensor]]:
        state = script.run.state
        for batch in script.loader:
            state.held += list(zip(*batch, strict=True))
            while len(state.held) >= 5:
                taken, state.held = state.held[:5], state.held[5:]
                yield [torch.stack(parts) for parts in zip(*taken, strict=True)]

    def train(directory: Path) -> None:
        script = Script(directory)
        script.run.state.held = []
        for _ in script.run.epochs(EPOCHS):
            for batch in kept(script):
                script.update(batch)

    assert check_every_step(train) > 4


class PlainAverage(CountingAverage):
    """An average whose plain count of updates is in no state, as lightly-train had it."""

    get_extra_state = nn.Module.get_extra_state
    set_extra_state = nn.Module.set_extra_state


class BareAverage:
    """An average without a state of its own, as it stands in many scripts."""

    def __init__(self, model: nn.Module) -> None:
        self.average, self.updates = copy.deepcopy(model).requires_grad_(requires_grad=False), 0

    def update_parameters(self, model: nn.Module) -> None:
        CountingAverage.update_parameters(self, model)


@pytest.mark.parametrize(
    ("build", "tracks", "said"),
    [
        (PlainAverage, lambda average: {"average": average}, r"average\.updates: 0 -> 1"),
        (PlainAverage, lambda _: {}, r"average \("),
        (BareAverage, lambda average: {"average": average.average}, r"updates"),
        (BareAverage, lambda _: {}, r"average"),
    ],
)
def test_an_average_that_would_warm_up_again_is_named(
    build: Callable[[nn.Module], Any], tracks: Callable[[Any], dict[str, Any]], said: str, tmp_path: Path
) -> None:
    """lightly-train PR#892, YOLOX#1318: an EMA whose count or weights no checkpoint holds is named when it saves."""
    script = Script(tmp_path, save_every=1)
    average = build(script.model)
    script.run.track(**tracks(average))
    with pytest.warns(UserWarning, match=said):
        for _ in script.run.steps(3):
            script.update([torch.rand(4, 3), torch.arange(4)])
            average.update_parameters(script.model)
