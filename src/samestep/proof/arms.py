"""Owns the arms of a proof: a training that runs undisturbed, or is killed and started again until done.

Reads what they noted; judges nothing.
"""

import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

from samestep.errors import SamestepError
from samestep.proof.ledger import Ledger, find_ledgers
from samestep.proof.lives import Life, by_rank, joined, together
from samestep.proof.planning import Kill
from samestep.proof.recording import Launch, Settings
from samestep.proof.starting import Attempt, Attempts
from samestep.proof.workspace import Workspace
from samestep.store.json_lines import parse_line
from samestep.wording import CONTINUED


@dataclass(frozen=True)
class Order:
    """What is proved, and how.

    Args:
        command: The command and its arguments.
        resume: The command that starts it again; None: the same.
        directory_argument: The option that names the output directory, added with the arm's.
        settings: How it is recorded.
        source: The directory in which the command would run.
        left_out: Patterns of what the arms do not see of it.
        timeout: After how many seconds without an end a process is killed; None: never.
    """

    command: Sequence[str]
    source: Path
    resume: Sequence[str] | None = None
    directory_argument: str | None = None
    settings: Settings = field(default_factory=Settings)
    left_out: Sequence[str] = ()
    timeout: float | None = None


@dataclass
class Outcome:
    """What one process of an arm has come to.

    Args:
        status: Its exit status, negative for a signal; None if it did not end in time.
        ledgers: What its ranks noted.
        tail: The last lines of what it printed.
        was_killed: Whether it was killed.
        is_late: Whether the write in which it should have died was over when it died.
        seconds: How long it ran.
    """

    status: int | None
    ledgers: Sequence[Ledger]
    tail: Sequence[str]
    was_killed: bool = False
    is_late: bool = False
    seconds: float = 0.0


class Arm:
    """One training in a workspace of its own.

    Args:
        order: What is proved.
        base: The folder of all arms.
        name: The arm's name.
        attempts: Starts its processes, and ends them if the proof is ended.
        launch: Starts a process, as `subprocess.Popen` does.
    """

    def __init__(self, order: Order, base: Path, name: str, attempts: Attempts, launch: Launch) -> None:
        self.order, self._attempts, self._launch = order, attempts, launch
        self.workspace = Workspace(base, name, order.source, left_out=order.left_out)
        self.outcomes: list[Outcome] = []
        self.kills: list[Kill] = []

    def run(self, kill: Kill | None = None, extra: Mapping[str, str] | None = None) -> Outcome:
        """Start the command, and wait until it ends or is killed.

        Args:
            kill: When it is killed.
            extra: Further variables of its environment.
        """
        number, order = len(self.outcomes), self.order
        self.kills += [] if kill is None else [kill]
        words = order.command if number == 0 or order.resume is None else order.resume
        command = self.workspace.command(words, order.directory_argument)
        # Where the resumed process stands is known by its first step only: all of its steps are noted whole.
        settings = replace(order.settings, every=None) if number else order.settings
        variables = {**(extra or {}), **(kill.variables() if kill else {})}
        attempt = Attempt(command, self.workspace, number, settings, variables=variables, launch=self._launch)
        begun = time.monotonic()
        self._attempts.start(attempt)
        was_killed = kill is not None and kill.delay is not None and attempt.kill_when(kill.at, kill.delay)
        if attempt.wait(order.timeout) is None:
            attempt.kill()
            attempt.status = None
        folder = attempt.ledgers
        ledgers = find_ledgers(folder) if any(folder.glob("rank-*.jsonl")) else []
        deaths = [parse_line(each.read_bytes()) or {} for each in folder.glob("killed-*.json")]
        was_killed = was_killed or bool(deaths) or (kill is not None and kill.kind == "end")
        is_late = any(each.get("fallback") for each in deaths)
        seconds, tail = time.monotonic() - begun, attempt.tail(20).splitlines()
        self.outcomes.append(Outcome(attempt.status, ledgers, tail, was_killed, is_late, seconds))
        return self.outcomes[-1]

    def twin(self, name: str) -> "Arm":
        """Copy the arm as it stands on disk."""
        twin = copy(self)
        twin.workspace, twin.outcomes, twin.kills = self.workspace.copy_to(name), [*self.outcomes], [*self.kills]
        return twin

    def lives(self) -> dict[int, list[Life]]:
        """Give what each rank noted: its first process first, then each resumed one."""
        lives: dict[int, list[Life]] = {each.rank: [] for outcome in self.outcomes for each in outcome.ledgers}
        for number, outcome in enumerate(self.outcomes):
            found = by_rank(outcome.ledgers)
            if number == 0 or all(len(each) == 1 for each in found.values()):
                for rank, life in together({rank: joined(found.get(rank, [])) for rank in lives}).items():
                    lives[rank].append(life)
            else:
                for rank in lives:
                    lives[rank] += [Life(each.steps, each.end) for each in found.get(rank, [])] or [Life([])]
        return lives


def require_success(outcome: Outcome, command: Sequence[str]) -> None:
    """Raise if a command does not work by itself.

    Raises:
        SamestepError: It failed, or it did not end.
    """
    if outcome.status == 0:
        return
    found = "no end in time" if outcome.status is None else f"exit status {outcome.status}"
    raise SamestepError(
        "The command does not come to its end by itself, so nothing can be proved of it.",
        path=" ".join(command),
        expected="exit status 0",
        found=CONTINUED.join([found, *outcome.tail[-10:]]),
    )
