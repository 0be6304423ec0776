"""What a script does wrong, in its own process: one message that says what, where and what to do instead."""

import atexit
import copy
import os
import warnings

import pytest
import torch
from test_loop import small, train
from torch import nn

import samestep
from samestep import mistakes
from samestep.errors import NotTracked, RunLocked, SamestepError, StateMismatch, UnsupportedValue, WrongPlace


def says(caught, *parts, lines=14):
    """Check that a message opens with one sentence, holds the parts and is short."""
    text = str(caught.value)
    assert text.splitlines()[0].endswith(".")
    assert len(text.splitlines()) <= lines
    for part in parts:
        assert part in text


# --- tracking ---------------------------------------------------------------------------------------------


INSTEAD = {
    "None": (lambda: None, "Build it before run.track"),
    "a class": (lambda: nn.Linear, "Track an object of the class"),
    "a list of models": (lambda: [nn.Linear(1, 1)], "run.track(thing_0=…)"),
    "a dict of models": (lambda: {"a": nn.Linear(1, 1)}, "run.track(thing_a=…)"),
    "a state dict": (lambda: nn.Linear(1, 1).state_dict(), "Track the object itself"),
    "parameters": (lambda: nn.Linear(1, 1).parameters(), "Track what it comes from"),
    "a data set": (lambda: torch.utils.data.TensorDataset(torch.ones(2)), "samestep.DataLoader(dataset)"),
    "a sampler": (lambda: torch.utils.data.RandomSampler([1]), "sampler=sampler"),
    "a plain loader": (lambda: torch.utils.data.DataLoader([1]), "samestep.DataLoader, which takes the same"),
    "a number": (lambda: 3, "run.state"),
}


@pytest.mark.parametrize("kind", INSTEAD)
def test_what_cannot_be_tracked_says_what_to_track(kind, tmp_path):
    """Each thing that has no state of its own is refused by its name, with what to track in its place."""
    make, instead = INSTEAD[kind]
    with pytest.raises(NotTracked, match="thing cannot be tracked") as caught:
        samestep.Run(tmp_path).track(thing=make())
    says(caught, instead)


def test_values_without_a_name_are_refused(tmp_path):
    """run.track(model), run.step(loss) and run.score(0.5) show how it is written with a name."""
    run, model, update = small(tmp_path)
    with pytest.raises(SamestepError, match=r"run\.track needs a name") as caught:
        run.track(model)
    says(caught, "run.track(model=model", "Sequential")
    for _ in run.steps(1):
        with pytest.raises(SamestepError, match=r"run\.step needs a name"):
            run.step(update())
        with pytest.raises(SamestepError, match=r"run\.score needs a name"):
            run.score(0.5)
        run.step()


def test_one_object_under_two_names_is_refused(tmp_path):
    """An object is tracked once: `ema=model` is the model and no average; the same name again is no mistake."""
    run, model, update = small(tmp_path)
    with pytest.raises(NotTracked, match="same object as 'model'") as caught:
        run.track(ema=model)
    says(caught, "copy it first")
    run.track(model=model, ema=copy.deepcopy(model))
    objects = run._tracked.objects
    run.track(optimizer=objects["optimizer"])
    assert train(run, update, 2) == [0, 1]
    assert run._tracked.updates == 2


def test_an_optimizer_of_another_model_is_refused_before_the_first_step(tmp_path):
    """An optimizer built before its model was rebuilt is refused when the loop begins, not at the first save."""
    run = samestep.Run(tmp_path, save_every=None)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = nn.Linear(2, 1)
    run.track(model=model, optimizer=optimizer)
    with pytest.raises(NotTracked, match="no tracked object") as caught:
        next(iter(run.steps(2)))
    says(caught, "build the optimizer last", "[1, 2]")


def test_a_value_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path):
    """An object in run.state is refused when the loop begins, under the name that the script uses."""
    run, _, _ = small(tmp_path)
    run.state.meters = [print]
    with pytest.raises(UnsupportedValue) as caught:
        next(iter(run.steps(2)))
    says(caught, "run.state.meters[0]")
    assert "run.values" not in str(caught.value)


# --- what the loop says -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["high", "0.5", None, {"top1": 0.5}, torch.ones(3), [0.5, 0.6]])
def test_a_score_that_is_no_number_is_refused(value, tmp_path):
    """A score that is no number is refused by its name, in the library's own words."""
    run, _, update = small(tmp_path)
    for _ in run.steps(1):
        run.step(loss=update())
        with pytest.raises(SamestepError, match="score 'acc' is not a number") as caught:
            run.score(acc=value)
    says(caught, "run.score", "one element")


def test_a_score_with_a_graph_is_taken_without_a_word(tmp_path):
    """A tensor that needs a gradient is a score; torch's warning about it does not reach the user."""
    run, _, update = small(tmp_path, keep=samestep.Keep(best=1, metric="acc"))
    for _ in run.steps(1):
        run.step(loss=update())
        run.score(acc=nn.Parameter(torch.full((1,), 0.5)) * 1)
    assert run.best == (0.5, 1)


@pytest.mark.parametrize("call", [lambda run: run.score(acc=0.5), lambda run: run.save()])
def test_scores_and_saves_before_the_loop_are_refused(call, tmp_path):
    """Before its first loop the run has restored nothing: what is scored or saved there would not be its state."""
    run, _, update = small(tmp_path)
    with pytest.raises(WrongPlace, match="restored nothing yet") as caught:
        call(run)
    says(caught, "in the loop or behind it")
    assert not (tmp_path / "checkpoints").exists()
    assert train(run, update, 1) == [0]


@pytest.mark.parametrize("name", ["step", "epoch"])
def test_the_names_of_the_run_are_taken(name, tmp_path):
    """run.step(epoch=…) is refused, since each line of metrics.jsonl has its epoch already."""
    run, _, update = small(tmp_path)
    for _ in run.steps(1):
        run.step(loss=update())
        with pytest.raises(SamestepError, match=f"'{name}' belongs to the run"):
            run.step(**{name: 3})


def test_a_value_that_is_no_metric_is_refused_at_its_line(tmp_path):
    """A tensor of several elements is refused by run.step itself, and not by a later one that writes the file."""
    run, _, update = small(tmp_path)
    for _ in run.steps(1):
        update()
        with pytest.raises(UnsupportedValue, match="not one element") as caught:
            run.step(logits=torch.ones(2, 3))
    says(caught, "metrics.logits", "[2, 3]")


def test_a_fork_does_not_train_in_its_parents_run(tmp_path):
    """A forked child is refused by loop and step, and leaves no trace when it ends in the middle of a body."""
    run, _, update = small(tmp_path, save_every=1)
    loop = run.steps(3)
    next(loop)
    run.step(loss=update())
    before = (tmp_path / "attempts.jsonl").read_bytes()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test runner has threads; the child uses none
        child = os.fork()
    if not child:
        refusals = []
        for call in (lambda: run.step(loss=0.0), lambda: next(loop), lambda: next(iter(run.steps(9)))):
            try:
                call()
            except (RunLocked, WrongPlace, StopIteration) as error:
                refusals.append(type(error).__name__)
        os.write(write, ",".join(refusals).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 1000).decode().split(",")[:2] == ["RunLocked", "RunLocked"]
    os.close(read)
    assert (tmp_path / "attempts.jsonl").read_bytes() == before
    assert not list((tmp_path / "checkpoints").glob("step-*"))
    for _ in loop:
        run.step(loss=update())
    assert run.completed_steps == 3


# --- what is warned of ------------------------------------------------------------------------------------


def test_a_loop_left_by_break_is_told_at_the_end_of_the_process(tmp_path):
    """At the interpreter's end a loop that was left with unsaved steps is named, unless another Run has gone on."""
    run, _, update = small(tmp_path)
    for _ in run.steps(5):
        run.step(loss=update())
        break
    assert atexit.unregister(mistakes._say_what_is_lost) is None
    atexit.register(mistakes._say_what_is_lost)
    with pytest.warns(UserWarning, match=r"left at step 1 by break or return[^$]*run\.stop"):
        mistakes._say_what_is_lost()
    run.close()
    mistakes._say_what_is_lost()


def test_a_step_that_is_counted_twice_is_told_once(tmp_path):
    """A loop that calls run.step twice for each update is told so, with both numbers."""
    run, _, update = small(tmp_path)
    with pytest.warns(UserWarning, match=r"called 64 times, and .* made 32 updates") as caught:
        for _ in run.steps(80):
            run.step(loss=update())
            run.step()
    assert len(caught) == 1


def test_steps_that_a_scaler_skips_give_no_alarm(tmp_path):
    """A loop whose first 20 of 60 updates were skipped, as a gradient scaler does, is not told anything."""
    run, _, update = small(tmp_path)
    for step in run.steps(60):
        if step >= 20:
            update()
        run.step()


def test_a_best_that_is_never_scored_is_told(tmp_path):
    """When a loop ends and run.score was never called, it is said that nothing is kept as the best."""
    run, _, update = small(tmp_path, keep=samestep.Keep(best=1, metric="acc"))
    with pytest.warns(UserWarning, match=r"'acc', and run\.score was never called"):
        train(run, update, 2)


def test_many_loops_of_one_run_are_told(tmp_path):
    """A script whose every loop keeps a checkpoint for good is told so, once, when eight have ended."""
    run, _, update = small(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for phase in range(1, 11):
            for _ in run.steps(phase):
                update()
                run.step()
            assert len(caught) == (phase >= 8)
    assert "8 loops of this script have ended" in str(caught[0].message)
    assert len(list(run._attempt.directory.glob("checkpoints/step-*"))) == 10


def test_a_run_of_more_epochs_is_told(tmp_path):
    """A script that asks for fewer epochs than the directory's run has done is told so; the same number is silent."""
    for bound, is_told in ((3, False), (3, False), (1, True)):
        run, _, update = small(tmp_path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in run.epochs(bound):
                run.step(loss=update())
        run.close()
        assert ["nothing is trained" in str(each.message) for each in caught] == [True] * is_told


@pytest.mark.parametrize("is_generator", [False, True])
def test_a_plain_iterator_that_steps_carry_is_told(is_generator, tmp_path):
    """In a loop by steps the place in a plain PyTorch loader is lost, shuffled or not: its iterator is named."""
    run, _, update = small(tmp_path, save_every=2)

    def endless(loader):
        while True:
            yield from loader

    loader = torch.utils.data.DataLoader(list(range(4)))
    batches = endless(loader) if is_generator else iter(loader)
    with pytest.warns(UserWarning, match=r"(?s)not tracked.*batches \(counter\)"):
        for _ in run.steps(3):
            next(batches)
            run.step(loss=update())


def test_an_epoch_without_a_place_to_save_is_told(tmp_path):
    """When a plain loader's epoch is long, it is said once that the checkpoints that are due cannot be taken."""
    run, _, update = small(tmp_path, save_every=2)
    loader = torch.utils.data.DataLoader(list(range(40)))
    with pytest.warns(UserWarning, match=r"No checkpoint for 20 steps[^$]*samestep\.DataLoader") as caught:
        for _ in run.epochs(1):
            for _ in loader:
                run.step(loss=update())
    assert len(caught) == 1


def test_a_warning_of_the_resume_points_at_the_loop(tmp_path):
    """What a resume has to say stands at the line of the script's loop, not inside a library."""
    run, _, update = small(tmp_path, config={"lr": 0.1})
    train(run, update, 1)
    run.close()
    run, _, update = small(tmp_path, config={"lr": 0.2})
    with pytest.warns(UserWarning, match=r"config\.lr") as caught:
        train(run, update, 2)
    assert caught[0].filename.endswith("test_loop.py")


def test_state_mismatches_name_their_object(tmp_path):
    """With two loaders, the message about another data set says which loader it is about."""
    for sizes, is_right in (((4, 6), True), ((4, 8), False)):
        run, _, update = small(tmp_path)
        loaders = {name: samestep.DataLoader(list(range(n))) for name, n in zip("ab", sizes, strict=True)}
        run.track(**loaders)
        if is_right:
            train(run, update, 1)
        else:
            with pytest.raises(StateMismatch, match="another data set") as caught:
                train(run, update, 2)
            says(caught, "b.dataset.length", "expected: 6", "found:    8", "allow_missing")
        run.close()
