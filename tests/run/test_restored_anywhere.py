"""Loops of all shapes, restored at every boundary: whatever stands where in the script, the rest is the same."""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import samestep
from samestep.errors import WrongPlace
from samestep.testing import check_every_step

ITEMS, BATCH = 12, 4
BATCHES = ITEMS // BATCH
EPOCHS = 3


class Script:
    """What most scripts below begin with: data, model, optimizer, loader, and one update."""

    def __init__(self, directory: Path, *, save_every: object = None, data: object = None, **loader: object) -> None:
        self.run = samestep.Run(directory, seed=0, save_every=save_every)
        self.data = data or torch.utils.data.TensorDataset(torch.randn(ITEMS, 3), torch.arange(ITEMS))
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.loader = samestep.DataLoader(
            self.data, **{"batch_size": BATCH, "shuffle": "sampler" not in loader} | loader
        )
        self.run.track(model=self.model, optimizer=self.optimizer, loader=self.loader)

    def update(self, batch: list[torch.Tensor], weight: float = 1.0) -> float:
        x, number = batch
        loss = weight * (self.model(x).squeeze(1) - number / ITEMS).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.run.step(loss=loss)
        return loss.item()


def plain(directory: Path) -> None:
    script = Script(directory)
    for _ in script.run.epochs(EPOCHS):
        for batch in script.loader:
            script.update(batch)


def weights_changed_at_the_top(directory: Path) -> None:
    script = Script(directory)
    ema = AveragedModel(script.model)
    script.run.track(ema=ema)
    for _ in script.run.epochs(EPOCHS):
        with torch.no_grad():
            for parameter in script.model.parameters():
                parameter.mul_(0.9)
        ema.update_parameters(script.model)
        script.optimizer.state.clear()
        for batch in script.loader:
            script.update(batch)


def draws_at_the_top(directory: Path) -> None:
    script = Script(directory)
    noise = np.random.default_rng(4)
    script.run.track(noise=noise)
    for _ in script.run.epochs(EPOCHS):
        weight = float(torch.rand(())) + noise.random()
        for batch in script.loader:
            script.update(batch, weight)


def group_added_at_the_top(directory: Path) -> None:
    script = Script(directory)
    extra = nn.Linear(3, 1)
    script.run.track(extra=extra)
    for epoch in script.run.epochs(EPOCHS):
        if epoch == 1:
            script.optimizer.add_param_group({"params": list(extra.parameters()), "lr": 0.1})
        for x, number in script.loader:
            script.optimizer.zero_grad()
            (script.model(x) + extra(x) - number[:, None]).square().mean().backward()
            script.optimizer.step()
            script.run.step()


def sampler_told_the_epoch(directory: Path) -> None:
    script = Script(directory, sampler=torch.utils.data.DistributedSampler(range(ITEMS), 1, 0), randomness="torch")
    for epoch in script.run.epochs(EPOCHS):
        script.loader.sampler.set_epoch(epoch)
        for batch in script.loader:
            script.update(batch)


def generator_seeded_at_the_top(directory: Path) -> None:
    generator = torch.Generator()
    sampler = torch.utils.data.RandomSampler(range(ITEMS), generator=generator)
    script = Script(directory, sampler=sampler)
    for epoch in script.run.epochs(EPOCHS):
        generator.manual_seed(epoch + 9)
        for batch in script.loader:
            script.update(batch)


def iterator_kept_in_a_name(directory: Path) -> None:
    script = Script(directory)
    for _ in script.run.epochs(EPOCHS):
        batches = iter(script.loader)
        for _ in range(script.loader.position, BATCHES):
            script.update(next(batches))


def part_of_each_epoch(directory: Path) -> None:
    script = Script(directory)
    for _ in script.run.epochs(EPOCHS):
        for batch in script.loader:
            script.update(batch)
            if script.loader.position == 2:
                break


def one_iterator_for_all_epochs(directory: Path) -> None:
    script = Script(directory, sampler=torch.utils.data.RandomSampler(range(ITEMS), num_samples=60))
    batches = iter(script.loader)
    script.run.state.taken = 0
    for _ in script.run.epochs(EPOCHS):
        script.run.state.taken = 0
        while script.run.state.taken < 4:
            script.update(next(batches))
            script.run.state.taken += 1


def another_loader_without_end(directory: Path) -> None:
    script = Script(directory)
    other = samestep.DataLoader(torch.utils.data.TensorDataset(torch.randn(10, 1)), batch_size=2, shuffle=True)
    script.run.track(other=other)
    real = iter(other)
    for _ in script.run.epochs(EPOCHS):
        for batch in script.loader:
            try:
                (weight,) = next(real)
            except StopIteration:
                real = iter(other)
                (weight,) = next(real)
            script.update(batch, float(weight.sum()))


def second_pass_over_the_loader(directory: Path) -> None:
    script = Script(directory)
    for _ in script.run.epochs(EPOCHS):
        for batch in script.loader:
            script.update(batch)
        for batch in script.loader:
            script.update(batch, 0.1)


def zipped(order: str, *, strict: bool = False) -> Callable[[Path], None]:
    def train(directory: Path) -> None:
        script = Script(directory)
        other = samestep.DataLoader(script.data, batch_size=BATCH, shuffle=True)
        script.run.track(other=other)
        pair = (other, script.loader) if order == "other first" else (script.loader, other)
        for _ in script.run.epochs(EPOCHS):
            for first, second in zip(*pair, strict=strict):
                script.update(first)
                script.update(second)

    return train


def validation_without_isolation(place: str) -> Callable[[Path], None]:
    def train(directory: Path) -> None:
        script = Script(directory)
        validation = samestep.DataLoader(script.data, batch_size=6, shuffle=True)
        script.run.track(validation=validation)
        script.run.state.scores = []

        def validate() -> None:
            with torch.no_grad():
                script.run.state.scores.append(sum(float(script.model(x).sum()) for x, _ in validation))

        for _ in script.run.epochs(EPOCHS):
            if place == "top":
                validate()
            for batch in script.loader:
                script.update(batch)
                if place == "body":
                    validate()
            if place == "bottom":
                validate()

    return train


def stopped_in_the_body(directory: Path) -> None:
    script = Script(directory)
    for _ in script.run.epochs(9):
        for batch in script.loader:
            script.update(batch)
            if script.run.completed_steps == BATCHES + 1:
                script.run.stop()


def alias_of_a_value(directory: Path) -> None:
    script = Script(directory)
    script.run.state.losses = script.run.state.same = []
    losses = script.run.state.losses
    for _ in script.run.epochs(EPOCHS):
        losses.append(0.0)
        for batch in script.loader:
            weight = 1.0 + sum(losses) / 10
            losses.append(script.update(batch, weight))
        assert script.run.state.losses is losses
        assert script.run.state.same is losses


def pseudo_labels_between_two_loops(directory: Path) -> None:
    script = Script(directory)
    for _ in script.run.epochs(2):
        for batch in script.loader:
            script.update(batch)
    with torch.no_grad():
        script.model.eval()
        labels = script.model(script.data.tensors[0]).squeeze(1)
        script.model.train()
    script.optimizer.param_groups[0]["lr"] *= 0.5
    for _ in script.run.epochs(4):
        for x, number in script.loader:
            script.update([x, labels[number] * ITEMS])


def while_loop_in_an_epoch(directory: Path) -> None:
    script = Script(directory)
    batches = iter(script.loader)
    script.run.state.taken = 0
    for _ in script.run.epochs(2):
        script.run.state.taken = 0
        while True:
            script.run.boundary()
            if script.run.state.taken == BATCHES:
                break
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(script.loader)
                batch = next(batches)
            script.update(batch)
            script.run.state.taken += 1


def gradients_kept_at_times(directory: Path) -> None:
    script = Script(directory)
    for step in script.run.steps(9):
        if step % 3 != 2:
            script.optimizer.zero_grad()
        script.model(torch.rand(4, 3)).square().mean().backward()
        script.optimizer.step()
        script.run.step()


def evaluation_that_draws(directory: Path) -> None:
    script = Script(directory)
    for _ in script.run.epochs(EPOCHS):
        for batch in script.loader:
            script.update(batch)
            with script.run.isolated():
                copied = copy.deepcopy(script.model)
                torch.manual_seed(0)
                copied(torch.rand(2, 3))
        script.run.score(loss=float(torch.rand(())))


def batches_of_another_loader_at_the_top(directory: Path) -> None:
    script = Script(directory)
    other = samestep.DataLoader(script.data, batch_size=BATCH, shuffle=True)
    script.run.track(other=other)
    for _ in script.run.epochs(EPOCHS):
        x, _ = next(iter(other))
        weight = float(x.abs().sum())
        for batch in script.loader:
            script.update(batch, weight)


def numbers_read_at_the_top(directory: Path) -> None:
    script = Script(directory)
    script.run.state.total = 1.0
    for _ in script.run.epochs(EPOCHS):
        weight = 0.9**script.run.completed_steps + script.run.state.total
        for batch in script.loader:
            script.run.state.total += script.update(batch, weight)


def second_iterator_around_the_batches(directory: Path) -> None:
    script = Script(directory)
    other = samestep.DataLoader(script.data, batch_size=2, shuffle=True)
    script.run.track(other=other)
    others = iter(other)
    for _ in script.run.epochs(EPOCHS):
        before = float(next(others)[0].sum())
        for batch in script.loader:
            script.update(batch, 1.0 + before / 10)
        after = float(next(others)[0].sum())
        script.run.state.after = after


class Foreign:
    """A loader of somebody else's with a state of its own, which it takes up at the next iter."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < BATCHES:
            self.at += 1
            yield torch.full((BATCH, 3), float(self.at))
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def foreign_loader(directory: Path) -> None:
    script = Script(directory)
    foreign = Foreign()
    script.run.track(foreign=foreign)
    for _ in script.run.epochs(EPOCHS):
        for x in foreign:
            script.update([x + torch.rand(BATCH, 3), torch.arange(BATCH)])
            script.run.boundary()


def generator_that_reads_ahead(directory: Path) -> None:
    def one_ahead(batches: Iterator[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
        held = next(batches)
        for batch in batches:
            yield held
            held = batch
        yield held

    script = Script(directory)
    for _ in script.run.epochs(EPOCHS):
        for batch in one_ahead(iter(script.loader)):
            script.update(batch)


SCRIPTS = {
    "a generator that reads ahead": generator_that_reads_ahead,
    "numbers read at the top": numbers_read_at_the_top,
    "a second iterator around the batches": second_iterator_around_the_batches,
    "a foreign loader": foreign_loader,
    "batches of another loader at the top": batches_of_another_loader_at_the_top,
    "plain": plain,
    "weights changed at the top": weights_changed_at_the_top,
    "draws at the top": draws_at_the_top,
    "a group added at the top": group_added_at_the_top,
    "set_epoch at the top": sampler_told_the_epoch,
    "a generator seeded at the top": generator_seeded_at_the_top,
    "an iterator kept in a name": iterator_kept_in_a_name,
    "a part of each epoch": part_of_each_epoch,
    "one iterator for all epochs": one_iterator_for_all_epochs,
    "another loader without end": another_loader_without_end,
    "a second pass": second_pass_over_the_loader,
    "zip, other loader first": zipped("other first"),
    "zip, other loader second": zipped("other second"),
    "strict zip, other loader first": zipped("other first", strict=True),
    "strict zip, other loader second": zipped("other second", strict=True),
    "validation at the top": validation_without_isolation("top"),
    "validation in the body": validation_without_isolation("body"),
    "validation at the bottom": validation_without_isolation("bottom"),
    "stopped in the body": stopped_in_the_body,
    "an alias of a value": alias_of_a_value,
    "pseudo labels between two loops": pseudo_labels_between_two_loops,
    "a while loop in an epoch": while_loop_in_an_epoch,
    "gradients kept at times": gradients_kept_at_times,
    "an evaluation that draws": evaluation_that_draws,
}


@pytest.mark.filterwarnings("ignore:The loop carries")
@pytest.mark.parametrize("train", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_is_the_same_from_every_boundary(train: Callable[[Path], None]) -> None:
    """Restored at each of its boundaries, the script goes on with the same state at every later one."""
    assert check_every_step(train) >= EPOCHS


def test_a_batch_taken_before_the_loop_is_refused(tmp_path: Path) -> None:
    """A batch that was asked for before the loop began cannot be given again by a resume: refused at once."""
    script = Script(tmp_path)
    with pytest.raises(WrongPlace, match="before the loop of the run"):
        for batch, _ in zip(itertools.cycle(script.loader), script.run.steps(3), strict=False):
            script.update(batch)


def test_a_generator_that_hands_batches_through_is_no_alarm(tmp_path: Path) -> None:
    """Moving batches to a device in a generator of one's own is saved in mid-epoch, and nothing is warned of."""

    def through(batches: Iterator[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
        for batch in batches:
            yield [each.to("cpu") for each in batch]

    script = Script(tmp_path, save_every=1)
    for _ in script.run.epochs(1):
        for batch in through(iter(script.loader)):
            script.update(batch)
            if script.run.completed_steps == 2:
                assert (tmp_path / "checkpoints" / "step-000000001").exists()


def without_end(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


@pytest.mark.parametrize("is_made_before", [True, False])
def test_an_iterator_that_outlives_the_epoch_it_was_made_in_is_named(tmp_path: Path, is_made_before: bool) -> None:
    """A second loader that a generator reads on and on is named in the third epoch; one read from before is not."""
    script = Script(tmp_path)
    other = samestep.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 1)), batch_size=2, shuffle=True)
    script.run.track(other=other)
    real = iter(other) if is_made_before else without_end(other)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in script.run.epochs(4):
            assert len(caught) == (epoch >= 2 and not is_made_before)
            for batch in script.loader:
                script.update(batch, float(next(real)[0].sum()))
    assert is_made_before or "An iterator of 'other' was made inside the loop" in str(caught[0].message)


def test_a_hand_marked_epoch_needs_somebody_who_knows_its_batches(tmp_path: Path) -> None:
    """run.boundary in an epoch over an untracked foreign loader is refused: a resume would repeat its batches."""
    run = samestep.Run(tmp_path, seed=0)
    run.track(model=nn.Linear(1, 1))
    with pytest.raises(WrongPlace, match="knows which batches"):
        for _ in run.epochs(1):
            for _ in torch.utils.data.DataLoader([1.0, 2.0]):
                run.step()
                run.boundary()


def test_saving_behind_a_while_loop_saves_at_once(tmp_path: Path) -> None:
    """Behind a loop that marks its boundaries by hand, run.save at the last boundary writes."""
    script = Script(tmp_path)
    while True:
        script.run.boundary()
        if script.run.completed_steps == 2:
            break
        script.update([torch.rand(4, 3), torch.arange(4)])
    script.run.save()
    assert [each.name for each in (tmp_path / "checkpoints").glob("step-*")] == ["step-000000002"]
    script.run.close()


def test_closing_behind_a_while_loop_writes_what_was_asked_for(tmp_path: Path) -> None:
    """A loop whose condition stands in its head ends behind a step: run.save and run.close keep that step."""
    script = Script(tmp_path)
    while script.run.completed_steps < 2:
        script.run.boundary()
        script.update([torch.rand(4, 3), torch.arange(4)])
    script.run.save()
    script.run.close()
    assert [each.name for each in (tmp_path / "checkpoints").glob("step-*")] == ["step-000000002"]
