"""The scripts of the power table are what they are said to be, by brute force: exact, or wrong in one way."""

import pytest
from brute import EXACT, STEP, TORN, chosen, difference, text_of, train, undisturbed
from forked import BEHIND, forker
from mistakes import HARMLESS, MISTAKES, SAVES, spoiled

SCRIPTS = sorted(each.stem for each in EXACT.glob("*.py"))
PARTS = {
    "parameters", "buffers", "optimizer", "learning_rate", "scaler", "batch", "random.python", "random.numpy",
    "random.torch", "inputs", "gradients", "loss", "objects", "steps", "files",
}  # fmt: skip
VERDICTS = {
    "diverged", "weights_not_restored", "from_scratch", "older_checkpoint", "skipped_steps", "repeated_steps",
    "crashed",
}  # fmt: skip


@pytest.fixture(scope="module")
def run():
    """Give what runs scripts in children of one process that has imported torch."""
    with forker() as run:
        yield run


def name(mistake):
    return mistake.name


def few(moments):
    """Choose a step, the middle of a save and the moment behind one, all in the second half."""
    kinds = [[each for each in moments if each[0] == kind] for kind in (STEP, TORN, BEHIND)]
    return [each[len(each) * 2 // 3] for each in kinds if each]


@pytest.mark.parametrize("script", SCRIPTS)
def test_exact_scripts_are_exact(script, run, tmp_path):
    """Killed at a step, within a save and behind one, a script goes on from its last save, to the same end."""
    reference = train(run, text_of(script), tmp_path / "reference")
    assert reference.lives[0][0] == 0
    assert 16 <= len(reference.lives[0][1]) <= 30
    for kill in few(reference.moments):
        assert difference(reference, train(run, text_of(script), tmp_path / "killed", [kill])) == ""
    often = [(STEP, 7), (STEP, 9), (STEP, 8)]
    assert difference(reference, train(run, text_of(script), tmp_path / "often", often)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_exact_scripts_are_exact_at_every_moment(script, run, tmp_path, record_property):
    """Killed behind any step, within any save, before and behind any rename, a script goes on to the same end."""
    reference = train(run, text_of(script), tmp_path / "reference")
    wrong = {}
    for kill in reference.moments:
        found = difference(reference, train(run, text_of(script), tmp_path / "killed", [kill]))
        wrong |= {kill: found} if found else {}
    record_property("moments", len(reference.moments))
    assert wrong == {}


@pytest.mark.parametrize("mistake", MISTAKES, ids=name)
def test_every_mistake_has_a_consequence(mistake, run, tmp_path):
    """Without a kill a script with a mistake trains as the exact one does; with one it does not."""
    reference = train(run, spoiled(mistake), tmp_path / "reference")
    assert reference.lives[0][0] == 0
    exact = train(run, text_of(mistake.script), tmp_path / "exact")
    assert undisturbed(exact, reference) == mistake.undisturbed
    kills = chosen(reference.moments, saves=mistake in SAVES)
    found = (difference(reference, train(run, spoiled(mistake), tmp_path / "killed", [kill])) for kill in kills)
    assert any(found)


@pytest.mark.parametrize("harmless", HARMLESS, ids=name)
def test_what_is_harmless_has_no_consequence(harmless, run, tmp_path):
    """What looks like a mistake and is none leaves every step as it is."""
    reference = train(run, spoiled(harmless), tmp_path / "reference")
    assert reference.lives[0][0] == 0
    for kill in chosen(reference.moments):
        found = difference(reference, train(run, spoiled(harmless), tmp_path / "killed", [kill]))
        assert found in {"", *(f"other files: {each}" for each in harmless.files)}


def test_the_table_uses_the_words_of_the_prover():
    """There are at least 16 exact scripts and 28 mistakes, each with parts and a verdict that exist, under one name."""
    assert len(SCRIPTS) >= 16
    assert len(MISTAKES) >= 28
    assert {part for each in MISTAKES for part in each.parts} <= PARTS
    assert {each.verdict for each in MISTAKES} <= VERDICTS
    assert {each.verdict for each in HARMLESS} == {"proved"}
    names = [each.name for each in (*MISTAKES, *HARMLESS)]
    assert sorted(names) == sorted(set(names))
