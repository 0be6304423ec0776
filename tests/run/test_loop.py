"""The loop: what it promises to the one who writes it, in one process."""

import argparse
import gc
import json
import logging
import random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import samestep
from samestep.errors import NoCheckpoint, NotTracked, RunLocked, StateMismatch, WrongPlace
from samestep.store import lock
from samestep.testing import check_every_step


def small(directory: Path, **settings: Any) -> tuple[samestep.Run, nn.Module, Callable[[], torch.Tensor]]:
    """Build a run of a small model and give what does one update."""
    run = samestep.Run(directory, **{"seed": 0, "save_every": None} | settings)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def update() -> torch.Tensor:
        loss = model(torch.rand(2, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run.track(model=model, optimizer=optimizer)
    return run, model, update


def train(run: samestep.Run, update: Callable[[], torch.Tensor], steps: int) -> list[int]:
    """Train to a number of steps and return the numbers that the loop gave."""
    given = []
    for step in run.steps(steps):
        given.append(step)
        run.step(loss=update())
    return given


def checkpoints(directory: Path) -> list[str]:
    return sorted(each.name for each in (directory / "checkpoints").glob("step-*"))


def metrics(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_the_same_command_starts_resumes_and_does_nothing_more(tmp_path: Path) -> None:
    """A loop to 4 steps runs 4; to 6 it goes on; again none, and the model is the trained one."""
    run, model, update = small(tmp_path)
    assert train(run, update, 4) == [0, 1, 2, 3]
    run.close()
    run, model, update = small(tmp_path)
    assert train(run, update, 6) == [4, 5]
    trained = {name: each.clone() for name, each in model.state_dict().items()}
    run.close()
    run, model, update = small(tmp_path)
    assert train(run, update, 6) == []
    assert all(torch.equal(each, trained[name]) for name, each in model.state_dict().items())
    assert run.completed_steps == 6
    assert checkpoints(tmp_path) == ["step-000000004", "step-000000006"]


def test_metrics_hold_each_step_once_across_resumes(tmp_path: Path) -> None:
    """Steps that were lost and done again, and a finished run started again, leave one line a step in metrics.jsonl."""
    run, _, update = small(tmp_path, save_every=2)
    loop = run.steps(9)
    for step in loop:
        run.step(loss=update())
        if step == 6:
            break
    run.close()
    run, _, update = small(tmp_path)
    train(run, update, 9)
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert all(isinstance(line["loss"], float) for line in metrics(tmp_path))


def test_attempts_say_how_each_process_ended(tmp_path: Path) -> None:
    """attempts.jsonl has one line a process: where it began, from which checkpoint, and how it ended."""
    run, _, update = small(tmp_path)
    train(run, update, 2)
    run.close()
    run, _, update = small(tmp_path)
    train(run, update, 3)
    lines = [json.loads(line) for line in (tmp_path / "attempts.jsonl").read_text().splitlines()]
    assert [line["resumed_from"] for line in lines] == [None, "step-000000002"]
    assert [line["how"] for line in lines] == ["finished", "finished"]
    assert [line["steps"] for line in lines] == [2, 3]


def test_resume_never_begins_anew_and_loses_nothing(tmp_path: Path) -> None:
    """resume="never" starts at step 0; the earlier checkpoints are set aside, not deleted."""
    run, _, update = small(tmp_path)
    train(run, update, 5)
    run.close()
    run, _, update = small(tmp_path, resume="never")
    assert train(run, update, 2) == [0, 1]
    assert checkpoints(tmp_path) == ["step-000000002"]
    assert list((tmp_path / "checkpoints").rglob("step-000000005*"))


def test_resume_from_a_named_step_sets_later_ones_aside(tmp_path: Path) -> None:
    """resume="step-2" goes on from 2; the next automatic resume follows the new way, not the abandoned one."""
    run, _, update = small(tmp_path, save_every=1, keep=samestep.Keep(every=1))
    train(run, update, 5)
    run.close()
    run, _, update = small(tmp_path, resume="step-2")
    assert train(run, update, 3) == [2]
    run.close()
    run, _, update = small(tmp_path)
    assert train(run, update, 4) == [3]


def test_resume_must_refuses_to_start(tmp_path: Path) -> None:
    """resume="must" with nothing there is an error that says so, and the run can be started after it."""
    run, _, update = small(tmp_path, resume="must")
    with pytest.raises(NoCheckpoint, match="no checkpoint to resume from"):
        train(run, update, 2)
    run.close()
    run, _, update = small(tmp_path)
    assert train(run, update, 2) == [0, 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resume", "always"),
        ("resume", "step-x"),
        ("resume", True),
        ("keep", 3),
        ("config", [1]),
        ("config", argparse.Namespace(lr=0.1)),
        ("allow_missing", "model"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(tmp_path: Path, name: str, value: object) -> None:
    """An argument that is not understood is refused by name, before the directory is touched."""
    with pytest.raises(samestep.SamestepError, match=f"{name} is not understood"):
        samestep.Run(tmp_path / "run", **{name: value})
    assert not (tmp_path / "run").exists()


def test_a_step_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """resume="step-99" without such a checkpoint is an error, and nothing is changed."""
    run, _, update = small(tmp_path, resume="step-99")
    with pytest.raises(NoCheckpoint):
        train(run, update, 2)


def test_a_failed_constructor_gives_the_lock_back(tmp_path: Path) -> None:
    """After a configuration that cannot be recorded, the corrected call works at once."""
    with pytest.raises(samestep.SamestepError, match="JSON"):
        samestep.Run(tmp_path, config={"sizes": {1, 2}})
    run, _, update = small(tmp_path, config={"sizes": [1, 2]})
    assert train(run, update, 1) == [0]


def test_a_garbage_collection_inside_the_lock_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgotten Runs, of this directory and of another, that are finalized inside the lock do not wait for it."""
    removed = lock._remove

    def collect_first(path: Path) -> None:
        gc.collect()
        removed(path)

    gc.disable()
    for name in ("here", "elsewhere"):
        run = samestep.Run(tmp_path / name)
        run.itself = run
    del run
    monkeypatch.setattr(lock, "_remove", collect_first)
    # In a thread of its own, so that waiting for itself is a failure and not a test that hangs.
    taking_over = threading.Thread(target=lambda: samestep.Run(tmp_path / "here").close(), daemon=True)
    taking_over.start()
    taking_over.join(20)
    gc.enable()
    assert not taking_over.is_alive()


def test_a_loop_after_an_exception_is_refused(tmp_path: Path) -> None:
    """After an exception in its body a loop cannot be entered again; a new Run goes on from the newest checkpoint."""
    run, _, update = small(tmp_path, save_every=2)
    with pytest.raises(KeyError):
        for step in run.steps(6):
            run.step(loss=update())
            if step == 4:
                raise KeyError
    with pytest.raises(WrongPlace, match="left in the middle"):
        train(run, update, 6)
    run, _, update = small(tmp_path)
    assert train(run, update, 6) == [4, 5]


def test_a_run_that_was_taken_over_works_no_more(tmp_path: Path) -> None:
    """The older of two Run objects of one directory refuses to loop: it has no lock any more."""
    older, _, update = small(tmp_path)
    train(older, update, 1)
    newer, _, _ = small(tmp_path)
    with pytest.raises(RunLocked, match="taken its directory over"):
        train(older, update, 2)
    newer.close()


def test_a_run_that_finished_in_a_later_loop_is_restored_by_a_single_one(tmp_path: Path) -> None:
    """Trained to 2 and then to 3 in two loops, a process with only the second of them has the trained model."""
    run, model, update = small(tmp_path)
    train(run, update, 2)
    train(run, update, 3)
    run.close()
    run, again, update = small(tmp_path)
    assert train(run, update, 3) == []
    assert run.completed_steps == 3
    assert all(torch.equal(each, model.state_dict()[name]) for name, each in again.state_dict().items())


def test_a_forgotten_run_step_is_noticed(tmp_path: Path) -> None:
    """A loop whose optimizer steps while run.step is never called is told so, once."""
    run, _, update = small(tmp_path)
    data = samestep.DataLoader(list(range(20)))
    run.track(loader=data)
    with pytest.warns(UserWarning, match=r"run\.step\(\) was never called") as caught:
        for _ in run.epochs(2):
            for _ in data:
                update()
    assert len(caught) == 1


def test_a_misspelt_metric_is_noticed(tmp_path: Path) -> None:
    """A score that does not hold the metric of Keep is told so, with the names it was given."""
    run, _, update = small(tmp_path, keep=samestep.Keep(best=1, metric="acc"))
    with pytest.warns(UserWarning, match=r"'acc'.*val_acc") as caught:
        for _ in run.steps(2):
            run.step(loss=update())
            run.score(val_acc=0.5)
    assert len(caught) == 1


@pytest.mark.parametrize("every", ["often", "0 steps", "1.5 epochs", -1, True, 0])
def test_a_wrong_interval_is_refused(tmp_path: Path, every: object) -> None:
    """A save_every that says nothing is an error that shows what can be said."""
    with pytest.raises(samestep.SamestepError, match="save_every"):
        samestep.Run(tmp_path, save_every=every)


def test_cells_between_two_loops_change_nothing(tmp_path: Path) -> None:
    """R27: draws between two loops neither move the training's random numbers nor are moved by it."""
    results = []
    for directory, explores in ((tmp_path / "a", False), (tmp_path / "b", True)):
        run, model, update = small(directory)
        train(run, update, 3)
        if explores:
            between = [random.random(), np.random.rand(), float(torch.rand(()))]
            torch.manual_seed(99)
        train(run, update, 6)
        if explores:
            torch.manual_seed(99)
        results.append(model[0].weight.clone())
    assert torch.equal(*results)
    assert len(set(between)) == 3


def test_the_loop_leaves_the_process_with_its_own_random_numbers(tmp_path: Path) -> None:
    """R27: what a notebook draws after a loop is what it would have drawn without it."""
    run, _, update = small(tmp_path)
    expected = torch.random.get_rng_state().clone()
    train(run, update, 3)
    assert torch.equal(torch.random.get_rng_state(), expected)


def test_isolated_protects_tracked_generators_after_an_exception(tmp_path: Path) -> None:
    """Inside run.isolated all draws, of the process and of tracked generators, are undone, also when it raises."""
    run, _, _ = small(tmp_path)
    noise, choice = np.random.default_rng(1), torch.Generator()
    run.track(noise=noise, choice=choice)
    before = (noise.bit_generator.state, choice.get_state().clone(), random.getstate(), torch.get_rng_state().clone())
    with pytest.raises(KeyError), run.isolated():
        noise.random()
        torch.rand(2, generator=choice)
        random.random()
        torch.rand(2)
        raise KeyError
    assert noise.bit_generator.state == before[0]
    assert torch.equal(choice.get_state(), before[1])
    assert random.getstate() == before[2]
    assert torch.equal(torch.get_rng_state(), before[3])


def test_the_best_score_is_saved_with_exactly_its_weights(tmp_path: Path) -> None:
    """R6 and R21: the kept best checkpoint holds the weights that were scored, not later ones."""
    run, model, update = small(tmp_path, keep=samestep.Keep(last=1, best=1, metric="acc"))
    scores, scored = [0.1, 0.9, 0.3, 0.2], []
    for step in run.steps(4):
        run.step(loss=update())
        run.score(acc=scores[step])
        scored.append(model[0].weight.detach().clone())
    assert run.best == (0.9, 2)
    assert checkpoints(tmp_path) == ["step-000000002", "step-000000004"]
    best = samestep.Store(tmp_path, keep=samestep.Keep(best=1, metric="acc")).best()
    assert best.metrics == {"acc": 0.9}
    assert torch.equal(best.tensor("model", "0.weight"), scored[1])


def test_a_resumed_run_remembers_the_best_score(tmp_path: Path) -> None:
    """R6: a worse score after a resume does not become the best."""
    keep = samestep.Keep(last=1, best=1, metric="acc")
    run, _, update = small(tmp_path, keep=keep)
    for _ in run.steps(2):
        run.step(loss=update())
        run.score(acc=0.9)
    run.close()
    run, _, update = small(tmp_path, keep=keep)
    for _ in run.steps(4):
        run.step(loss=update())
        run.score(acc=0.5)
    assert run.best[0] == 0.9
    assert "step-000000001" in checkpoints(tmp_path)


def test_an_update_between_score_and_boundary_is_an_error(tmp_path: Path) -> None:
    """A best score whose weights have changed before they could be saved is refused, by name."""
    run, _, update = small(tmp_path, keep=samestep.Keep(best=1, metric="acc"))
    with pytest.raises(WrongPlace, match="update came before they could be saved"):
        for _ in run.steps(2):
            run.step(loss=update())
            run.score(acc=0.5)
            update()


def test_run_step_outside_a_loop_is_an_error(tmp_path: Path) -> None:
    """run.step without a loop says where it belongs."""
    run, _, _ = small(tmp_path)
    with pytest.raises(WrongPlace, match="no loop"):
        run.step()


def test_a_loop_inside_a_loop_is_an_error(tmp_path: Path) -> None:
    """Two loops of one run cannot be nested."""
    run, _, _ = small(tmp_path)
    with pytest.raises(WrongPlace, match="already running"):
        for _ in run.epochs(1):
            next(iter(run.steps(1)))


def test_a_run_that_was_stopped_does_nothing_more(tmp_path: Path) -> None:
    """run.stop ends the loop at its next boundary, saved; started again nothing runs; a higher bound goes on."""
    run, _, update = small(tmp_path)
    for step in run.steps(10):
        run.step(loss=update())
        if step == 3:
            run.stop()
    assert run.completed_steps == 4
    run.close()
    run, _, update = small(tmp_path)
    assert train(run, update, 10) == []
    run.close()
    run, _, update = small(tmp_path)
    assert train(run, update, 12) == list(range(4, 12))


def test_saving_after_a_broken_loop_is_refused(tmp_path: Path) -> None:
    """After a break or an exception the state may be in the middle of a body: run.save refuses and says what to do."""
    run, _, update = small(tmp_path)
    for _ in run.steps(5):
        run.step(loss=update())
        break
    with pytest.raises(WrongPlace, match="left in the middle"):
        run.save()


def test_saving_outside_loops_saves_at_once(tmp_path: Path) -> None:
    """Behind a finished loop run.save writes the state as it is now."""
    run, model, update = small(tmp_path)
    train(run, update, 2)
    with torch.no_grad():
        model[0].weight.fill_(3.0)
    run.save()
    saved = samestep.Store(tmp_path).latest()  # a run's directory means its checkpoints
    assert bool((saved.tensor("model", "0.weight") == 3).all())


def test_a_while_loop_resumes_at_its_marked_place(tmp_path: Path) -> None:
    """run.boundary at the top of a while loop's body restores at its first call and saves what is due."""
    expected = []
    for directory, stops in ((tmp_path / "whole", (9,)), (tmp_path / "parts", (5, 9))):
        for stop in stops:
            run, model, update = small(directory, save_every=1)
            while True:
                run.boundary()
                if run.completed_steps >= stop:
                    break
                run.step(loss=update())
            run.close()
        expected.append(model[0].weight.clone())
    assert torch.equal(*expected)


def test_two_phases_resume_in_the_second(tmp_path: Path) -> None:
    """What a script does between two loops is not redone on top of a state of the second loop."""
    weights = []
    for directory, breaks in ((tmp_path / "whole", (None,)), (tmp_path / "parts", (5, None))):
        for stop in breaks:
            run, model, update = small(directory, save_every=1)
            rate = run._tracked.objects["optimizer"].param_groups[0]
            train(run, update, 3)
            rate["lr"] *= 0.5
            for step in run.steps(8):
                run.step(loss=update())
                rate["lr"] *= 0.9
                if step == stop:
                    break
            run.close()
        weights.append((model[0].weight.clone(), rate["lr"]))
    assert torch.equal(weights[0][0], weights[1][0])
    assert weights[0][1] == weights[1][1]


def test_a_second_run_of_the_same_directory_takes_over(tmp_path: Path) -> None:
    """A notebook cell that makes the run again takes it over, but not from a loop that is running."""
    run, _, update = small(tmp_path)
    train(run, update, 2)
    again, _, update = small(tmp_path)
    assert train(again, update, 4) == [2, 3]
    with pytest.raises(RunLocked):
        for _ in again.steps(5):
            again.step(loss=update())
            small(tmp_path)


def test_tracking_mistakes_have_clear_messages(tmp_path: Path) -> None:
    """A name taken twice, a name of the run's own, a late track and an untrackable object are each refused by name."""
    run, model, _ = small(tmp_path)
    with pytest.raises(NotTracked, match="'model' is taken"):
        run.track(model=nn.Linear(1, 1))
    with pytest.raises(NotTracked, match="belongs to the run"):
        run.track(random=nn.Linear(1, 1))
    with pytest.raises(NotTracked, match=r"samestep\.DataLoader"):
        run.track(loader=torch.utils.data.DataLoader([1, 2]))
    with pytest.raises(NotTracked):
        run.track(function=lambda: None)
    run.track(model=model)
    with pytest.raises(WrongPlace, match="The loop has begun"):
        for _ in run.steps(1):
            run.track(late=nn.Linear(1, 1))


def test_another_architecture_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    """R20: missing, unexpected and misshapen tensors are all listed, and the model stays as it was."""
    run, _, update = small(tmp_path)
    train(run, update, 1)
    run.close()
    run = samestep.Run(tmp_path, seed=0, save_every=None)
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.2), nn.Linear(5, 1), nn.Linear(1, 1))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    run.track(model=model, optimizer=torch.optim.Adam(model.parameters()))
    with pytest.raises(StateMismatch) as caught:
        next(iter(run.steps(2)))
    text = str(caught.value)
    assert "0.weight" in text
    assert "3.weight" in text
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_objects_that_come_and_go_must_be_named(tmp_path: Path) -> None:
    """A tracked name that the checkpoint lacks, or has alone, is an error unless allow_missing names it."""
    run, model, update = small(tmp_path)
    train(run, update, 1)
    run.close()
    run, model, update = small(tmp_path)
    run.track(extra=np.random.default_rng(0))
    with pytest.raises(StateMismatch, match="extra"):
        train(run, update, 2)
    run.close()
    run, model, update = small(tmp_path, allow_missing=["extra"])
    run.track(extra=np.random.default_rng(0))
    assert train(run, update, 2) == [1]


def test_untracked_objects_are_named_once(tmp_path: Path) -> None:
    """At the first save an untracked optimizer in the loop's reach is named with its line; later saves are silent."""
    run = samestep.Run(tmp_path, seed=0, save_every=1)
    model = nn.Linear(1, 1)
    forgotten = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model)
    with pytest.warns(UserWarning, match=r"(?s)not tracked.*forgotten.*test_loop\.py:\d+") as caught:
        for _ in run.steps(3):
            forgotten.step()
            run.step()
    assert len(caught) == 1


def test_an_untracked_evaluation_loader_is_named(tmp_path: Path) -> None:
    """A samestep loader that evaluates without being tracked would begin at epoch 0 again: it is named."""
    run, _, update = small(tmp_path, save_every=1)
    validation = samestep.DataLoader(list(range(4)))
    with pytest.warns(UserWarning, match=r"(?s)not tracked.*validation \(loader\)"):
        for _ in run.steps(2):
            run.step(loss=update())
            with run.isolated():
                list(validation)


def test_carried_variables_and_changing_attributes_are_named(tmp_path: Path) -> None:
    """What a loop carries in local variables, and what it changes in plain attributes, is named at the first save."""
    run, model, update = small(tmp_path, save_every=1)
    best = 0.0
    with pytest.warns(UserWarning, match="begins them anew") as caught:
        for step in run.steps(3):
            run.step(loss=update())
            best = max(best, step)
            model[1].p *= 0.9
    texts = [str(each.message) for each in caught]
    assert len(texts) == 2
    assert "best" in texts[0]
    assert "test_loop.py" in texts[0]
    assert "model.1.p: 0.2 -> 0.18" in texts[1].replace('["1"]', ".1")


def test_only_a_counter_is_told_how_to_count_on(tmp_path: Path) -> None:
    """Behind the counter of an enumerate on which a step hangs stands how it counts on; behind a best score nothing."""
    run, _, update = small(tmp_path, save_every=1)
    loader = samestep.DataLoader(list(range(4)))
    run.track(loader=loader)
    best = 0.0
    with pytest.warns(UserWarning, match="begins them anew") as caught:
        for _ in run.epochs(1):
            for number, _ in enumerate(loader):
                best = max(best, number)
                if number % 2:
                    continue
                run.step(loss=update())
    (lines,) = (str(each.message).splitlines() for each in caught)
    assert "enumerate" not in lines[0]
    assert [line.endswith("(or count on: enumerate(…, start=loader.position))") for line in lines[1:]] == [False, True]
    assert [line.split(",")[0].strip() for line in lines[1:]] == ["best", "number"]


def test_a_generator_that_only_splits_the_data_gives_no_alarm(tmp_path: Path) -> None:
    """A seeded generator of random_split is not named; one that the loop draws from later is, at the next save."""
    run, _, update = small(tmp_path, save_every=1)
    split, later = torch.Generator().manual_seed(1), np.random.default_rng(2)
    parts = torch.utils.data.random_split(range(8), [4, 4], generator=split)
    names = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in run.steps(4):
            names.append([str(each.message).partition("\n  ")[2] for each in caught])
            if step == 2:
                later.random()
            run.step(loss=update() + len(parts) + split.initial_seed())
    assert names[:3] == [[], [], []]
    assert len(caught) == 1
    assert "later (generator)" in str(caught[0].message)


@pytest.mark.parametrize("make", [np.random.default_rng, random.Random, random.SystemRandom])
def test_a_generator_that_starts_otherwise_each_time_is_named(tmp_path: Path, make: Callable[[], Any]) -> None:
    """A generator without a seed, or one that does not say its seed, is named at once: no restart brings it back."""
    run, _, update = small(tmp_path, save_every=1)
    noise = make()
    with pytest.warns(UserWarning, match=r"(?s)not tracked.*noise \(generator\)"):
        for _ in run.steps(2):
            run.step(loss=update())
            assert noise


def test_a_resume_under_other_conditions_says_so(tmp_path: Path) -> None:
    """R31: another thread count and another configuration are named with how sure it is that bits change.

    Reported as pytorch#88718, pytorch#2201.
    """
    run, _, update = small(tmp_path, config={"lr": 0.1})
    train(run, update, 1)
    run.close()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        run, _, update = small(tmp_path, config={"lr": 0.2})
        with pytest.warns(UserWarning, match=r"(?s)thread.*config\.lr: 0\.1 -> 0\.2"):
            train(run, update, 2)
    finally:
        torch.set_num_threads(threads)


def test_the_library_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run prints nothing; it logs under "samestep"."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run, _, update = small(tmp_path)
        train(run, update, 2)
    assert capsys.readouterr() == ("", "")
    assert logging.getLogger("samestep").level == logging.NOTSET


def test_every_boundary_can_be_resumed(tmp_path: Path) -> None:
    """samestep.testing restores a training with epochs, scores and its own values at every boundary."""

    def whole(directory: Path) -> None:
        run = samestep.Run(directory, seed=0, save_every=None)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters())
        data = torch.utils.data.TensorDataset(torch.arange(24.0).view(12, 2))
        loader = samestep.DataLoader(data, batch_size=4, shuffle=True)
        run.track(model=model, optimizer=optimizer, loader=loader)
        for _ in run.epochs(3):
            run.state.sum = 0.0
            for (x,) in loader:
                loss = (model(x) + torch.rand(())).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.step(loss=loss)
                run.state.sum += loss.item()
            run.score(loss=run.state.sum)

    assert check_every_step(whole) == 3 * (3 + 1)


def test_a_lost_state_is_found(tmp_path: Path) -> None:
    """samestep.testing names the boundary and the part when a training keeps something outside of its checkpoints."""
    lost = {"scale": 1.0}

    def forgets(directory: Path) -> None:
        lost["scale"] = 1.0
        run = samestep.Run(directory, seed=0, save_every=None)
        model = nn.Linear(2, 1)
        run.track(model=model)
        for _ in run.steps(4):
            with torch.no_grad():
                model.weight += 0.1 * lost["scale"]
            lost["scale"] /= 2
            run.step()

    with pytest.raises(AssertionError, match=r"restored at boundary \d.*model: weight"):
        check_every_step(forgets)
