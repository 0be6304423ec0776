"""What happens to a long training from outside: signals at random moments, and moves of its directory in between."""

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import enduring
from processes import start_child

HANGS = 900
"""Seconds after which an attempt counts as hung: the last one may have hundreds of steps before it."""

MOST_BEHIND_A_SIGNAL = 10
"""Lines of its ledger that an attempt may still write when it has been asked to end."""

TERMINATING = ("SIGTERM", "SIGINT", "SIGUSR1")

NAMES = (
    "plain",
    "spaces and umlauts äöü ß",
    "訓練 走る",
    "🚂💥",
    "line\nbreak\ttab",
    "e\u0301 decomposed, \u00e9 composed",
    "x" * 200,
    "-dash @400 100% [a-z]* ~ $HOME 'quoted\"",
    os.fsdecode(b"no UTF-8 \xff\xfe"),
    "/".join(["nested " + "y" * 90] * 6),
)
"""Names that a user may give a directory, or a system may make of them."""


class Places:
    """The places that a run directory is moved to, in a drawn order.

    Args:
        root: An empty folder.
        elsewhere: Another empty folder, on another file system where there is one.
        draw: What draws the order.
    """

    def __init__(self, root: Path, elsewhere: Path, draw: random.Random) -> None:
        self._root, self._draw = root, draw
        (root / "real parent").mkdir()
        (root / "linked parent").symlink_to(root / "real parent")
        self._all = [
            *((str(root), str(root / name)) for name in NAMES),
            (str(root), str(root / "linked parent" / "run")),
            (str(root), "relative run"),
            (str(root / "real parent"), "../relative from below"),
            (str(root), str(elsewhere / "other file system")),
        ]
        self.working_directory, self.directory = self._all[0]

    @property
    def path(self) -> Path:
        """Where the run is."""
        return Path(self.working_directory) / self.directory

    def move(self) -> None:
        """Move the run to another place, or name it another way."""
        before = self.path
        self.working_directory, self.directory = self._draw.choice([each for each in self._all if each != self._now()])
        if before.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(before, self.path)

    def _now(self) -> tuple[str, str]:
        return self.working_directory, self.directory


class Soak:
    """Trains in attempts that are signalled at drawn moments, until one of them comes to the end.

    Args:
        root: An empty folder.
        elsewhere: Another one, see `Places`.
        seed: Decides what is done to which attempt, and after how many of its steps.
        changes: How the training differs from `Enduring`.
        most: After so many attempts the last one is left alone.
    """

    def __init__(self, root: Path, elsewhere: Path, seed: int, changes: dict[str, Any], most: int) -> None:
        self.draw = random.Random(seed)
        self.places = Places(root / "places", elsewhere, self.draw)
        self._root, self._changes, self._most = root, changes, most
        self.ledgers: list[Path] = []
        self.counts: Counter[str] = Counter()
        self.hows: list[str] = []
        self._groups: list[int] = []
        self._signalled_at = 0

    def run(self) -> None:
        """Train to the end."""
        while self._attempt() != 0:
            self.counts["moves"] += 1
            self.places.move()

    def _attempt(self) -> int:
        number = len(self.ledgers)
        ledger, log = self._root / f"attempt-{number}.jsonl", self._root / f"attempt-{number}.log"
        self.ledgers.append(ledger)
        log.touch()
        ledger.touch()
        before = self.lines()
        where = (self.places.working_directory, self.places.directory)
        changes = self._changes | {"workers": self.draw.choice([0, 2, 2])}
        child = start_child(enduring.train_in, *where, ledger, changes, log=log)
        self._groups.append(child.pid)
        bystander = self._look(number) if before and self.draw.random() < 0.2 else None
        last = self._disturb(child, ledger) if number < self._most else "nothing"
        child.join(HANGS)
        assert child.exitcode is not None, f"the attempt hung after {last}: {log.read_text()}"
        if bystander is not None:
            self._check_look(number, bystander)
        gone_on = _count(ledger) - self._signalled_at
        assert last == "nothing" or gone_on < MOST_BEHIND_A_SIGNAL, f"{last} was lost: {log.read_text()}"
        self._check_record(before, child.exitcode, ledger, last, log.read_text())
        self.counts[last if child.exitcode else "nothing more"] += 1
        return child.exitcode

    # --- what is done to an attempt -----------------------------------------------------------------------

    def _disturb(self, child: Any, ledger: Path) -> str:
        """Signal an attempt at drawn moments, and say what ended it."""
        _begun(child)
        while not _moment(child, ledger, self.draw.choice([0, 0, 1, 3, 8, 20]), self.draw.random() * 0.03):
            send = _sender(child.pid, group=self.draw.random() < 0.5)
            what = self.draw.choices(
                ["pause", "kill", "kill while stopped", "ask", "ask while stopped"], [2, 4, 1, 4, 1]
            )[0]
            if what == "pause":
                self.counts[what] += 1
                self._stopped(send)
                send(signal.SIGCONT)
                continue
            if what.endswith("stopped"):
                self._stopped(send)
            name = "SIGKILL" if what.startswith("kill") else self.draw.choice(TERMINATING)
            self._signalled_at = _count(ledger)
            send(signal.Signals[name])
            send(signal.SIGCONT)
            return name + (" while stopped" if what.endswith("stopped") else "")
        return "nothing"

    def _stopped(self, send: Any) -> None:
        send(signal.SIGSTOP)
        time.sleep(self.draw.random() * 0.05)  # what is tested: time that passes while it is stopped

    # --- what must hold after each attempt ----------------------------------------------------------------

    def lines(self) -> list[dict[str, Any]]:
        path = self.places.path / "attempts.jsonl"
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def _check_record(self, before: list[dict[str, Any]], code: int, ledger: Path, last: str, said: str) -> None:
        """Compare the records: an attempt has one line; earlier ones are closed and stay as they were."""
        lines = self.lines()
        new = lines[len(before) :]
        assert [line["attempt"] for line in lines] == list(range(1, len(lines) + 1))
        assert len(new) <= 1
        assert new or not ledger.read_bytes(), f"an attempt that trained is not recorded: {said}"
        for earlier, now in zip(before, lines, strict=False):
            assert now == (earlier if earlier["how"] or not new else earlier | {"how": "killed"})
        self.hows += ["killed" if line["how"] is None else line["how"] for line in new]
        how = new[0]["how"] if new else "no line"
        # Outside of the loop signals do what they always do: before it there is no line, behind it stands its end.
        outside = {"no line", "finished"}
        allowed = {0: {"finished"}, -9: {None, *outside}, -15: outside, -10: outside, 1: outside}
        allowed |= {128 + signal.Signals[name]: {f"signal {signal.Signals[name].value}"} for name in TERMINATING}
        assert how in allowed.get(code, set()), f"exit {code}, {how} after {last}: {said}"
        # Before the child writes to its log it has nothing to say.
        assert code != 1 or not said or said.rstrip().endswith("KeyboardInterrupt"), said

    def _look(self, number: int) -> Any:
        arguments = (str(self.places.path), self._root / f"look-{number}.json")
        return start_child(enduring.look_at, *arguments, log=self._root / f"look-{number}.log")

    def _check_look(self, number: int, bystander: Any) -> None:
        """Commands that look on while checkpoints come and go find no damage."""
        self.counts["looks"] += 1
        bystander.join(HANGS)
        assert bystander.exitcode == 0, (self._root / f"look-{number}.log").read_text()
        for verb, status, said in json.loads((self._root / f"look-{number}.json").read_text()):
            gone = status == 2 and said["error"]["kind"] == "NoCheckpoint"  # none yet, or deleted between two looks
            assert status == 0 or gone, f"{verb}: {said}"
            if verb == "ls":
                assert {each["status"] for each in said["checkpoints"]} <= {"complete"}, said

    def left_over(self) -> list[int]:
        """Give the process groups of attempts of which a process is still there after a while."""
        until = time.monotonic() + 60
        while (alive := list(_alive(self._groups))) and time.monotonic() < until:
            time.sleep(0.05)
        return alive


def train_undisturbed(root: Path, changes: dict[str, Any]) -> Path:
    """Train without any signal and without saves in between, and give the ledger."""
    ledger, log = root / "whole.jsonl", root / "whole.log"
    child = start_child(enduring.train_in, str(root), "whole", ledger, changes | {"save_every": None}, log=log)
    child.join()
    assert child.exitcode == 0, log.read_text()
    return ledger


def _begun(child: Any) -> None:
    """Wait until an attempt runs code of ours, in a group of its own: a fork server's child ignores SIGINT before."""
    with suppress(ProcessLookupError):
        while os.getpgid(child.pid) != child.pid and child.is_alive():
            time.sleep(0.001)


def _count(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n")


def _moment(child: Any, ledger: Path, steps: int, delay: float) -> bool:
    """Wait until an attempt has noted so many steps, and a moment more; tell whether it has ended by itself."""
    goal = _count(ledger) + steps
    while _count(ledger) < goal and child.is_alive():
        time.sleep(0.001)
    time.sleep(delay)
    return not child.is_alive()


def _sender(process: int, *, group: bool) -> Any:
    """Give what signals a process, or its whole group once it has one."""

    def send(number: signal.Signals) -> None:
        try:
            if group and os.getpgid(process) == process:
                os.killpg(process, number)
            else:
                os.kill(process, number)
        except ProcessLookupError:
            pass  # it has ended by itself

    return send


def _alive(groups: list[int]) -> Iterator[int]:
    for group in groups:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            continue
        yield group
