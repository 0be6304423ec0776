"""A proof with a tolerance: for trainings that are never the same bit for bit, the samples and losses alone count."""

import pytest
from test_prove import SOUND, without

from samestep.errors import SamestepError
from samestep.proof import telling
from samestep.proof.arms import Order
from samestep.proof.ledger import Step
from samestep.proof.material import are_near
from samestep.proof.proving import Wishes, prove

BEHIND = "        optimizer.step()\n"
NOISY = SOUND.replace("Adam(model.parameters())", "Adam(model.parameters(), lr=0.1)")
NOISY = NOISY.replace("import torch\n", "import torch\n\nnoise = torch.Generator()\nnoise.seed()\n", 1).replace(
    BEHIND,
    BEHIND + "        for each in model.parameters():\n"
    "            each.data += 1e-6 * torch.randn(each.shape, generator=noise)\n",
)
"""Each step adds noise that nobody has seeded, as atomic additions on a GPU do."""


@pytest.fixture
def near(forks, tmp_path):
    """Prove a script within a tolerance; give what was found."""

    def run(text, tolerance=1e-3, at=("step:4",)):
        source = tmp_path / "project"
        source.mkdir()
        (source / "train.py").write_text(text)
        wishes = Wishes(at=at, tolerance=tolerance, launch=forks.launch)
        return prove(Order(["python", "train.py"], source), tmp_path / "arms", wishes)

    return run


def test_proved_within(near):
    """A noisy training that restores everything is proved within the tolerance, and the words say what was compared."""
    found = near(NOISY, at=["step:4", "step:8", "step:5+step:2", "save:2.1"]).as_json()
    assert (found["verdict"], found["tolerance"], found["control"]) == ("proved", 1e-3, True)
    assert [each["resumes"] for each in found["trials"]] == [[3], [6], [3, 3], [3]]
    assert telling.headline(found).startswith("Proved within 0.001: killed 4 times, and ")
    assert telling.headline(found).endswith("samples, and losses within 0.001; nothing else was compared.")


def test_bits_are_the_default(near):
    """Without a tolerance the same training is unverified."""
    assert near(NOISY, 0.0).verdict == "unverified"


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('    optimizer.load_state_dict(saved["optimizer"])\n', "loss"),
        ('    model.load_state_dict(saved["model"])\n', "loss"),
        ('    torch.set_rng_state(saved["random"])\n', "batch"),
        ('    epoch = saved["epoch"]\n', "steps"),
    ],
)
def test_what_is_lost_is_noticed(near, line, part):
    """A lost optimizer, lost weights, a lost order and a lost counter are found, although no digest counts."""
    found = near(without(NOISY, line))
    assert found.verdict == "diverged"
    assert found.trials[0].first_difference.part == part


def test_resumed_behind_the_last_step(near):
    """A resume from what was saved behind the last step is aligned there by its samples and losses, not by its rate."""
    halved = '    optimizer.param_groups[0]["lr"] = 0.1 if epoch < 1 else 0.05\n    for batch in'
    text = NOISY.replace("    for batch in", halved) + '    open("log.txt", "w").close()\n'
    found = near(text, at=["save:2.3"])
    assert (found.verdict, list(found.trials[0].resumed_from), list(found.trials[0].steps)) == ("proved", [6], [6, 3])


def test_from_scratch(near):
    """A training that begins anew is no resume, although all its losses are near."""
    assert near(NOISY.replace('os.path.exists("last.pt")', "False")).trials[0].verdict == "from_scratch"


def test_too_wide(near):
    """Within a tolerance in which even spoiled weights are not noticed nothing is proved."""
    found = near(NOISY, 1e6)
    assert (found.verdict, found.control) == ("unverified", False)


def test_too_narrow(near):
    """Where two undisturbed trainings differ by more, that is said, with both losses."""
    found = near(NOISY, 1e-12)
    assert (found.verdict, found.repeat.part) == ("unverified", "loss")
    assert "more than 1e-12" in found.reason
    assert " and " in found.repeat.detail


def test_no_losses(near):
    """A training whose losses are not seen cannot be proved within a tolerance."""
    blind = NOISY.replace(".mean().backward()", "\n        sum(each.square().sum() for each in model.parameters())")
    with pytest.raises(SamestepError, match="Losses are to be compared"):
        near(blind)


@pytest.mark.parametrize(
    ("left", "right", "is_near"),
    [
        ([0.0], [0.009], True),
        ([0.0], [0.011], False),
        ([1000.0], [1009.0], True),
        ([1000.0], [1011.0], False),
        (["nan"], ["nan"], True),
        (["nan"], [0.0], False),
        ([1.0], [1.0, 1.0], False),
    ],
)
def test_near(left, right, is_near):
    """Losses are near if they differ by 0.01 at most: absolutely, and above 1 relatively; nan is near nan alone."""
    assert are_near(Step(0, 0, {}, {}, {"loss": left}), Step(0, 0, {}, {}, {"loss": right}), 0.01) == is_near
