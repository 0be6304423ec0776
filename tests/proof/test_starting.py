"""Attempts of an arm: real processes that are started, waited for and killed, and none of which is left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from samestep.errors import SamestepError
from samestep.proof.ledger import LedgerWriter, Step
from samestep.proof.processes import processes_of
from samestep.proof.recording import Settings, run_recorded
from samestep.proof.starting import Attempt, Attempts
from samestep.proof.workspace import Workspace

LIMIT = 30


@pytest.fixture
def workspace(tmp_path):
    """Make an arm of an empty working directory."""
    (tmp_path / "project").mkdir()
    return Workspace(tmp_path / "proof", "arm", tmp_path / "project")


@pytest.fixture
def attempt(workspace):
    """Give what makes an attempt that runs a Python text, and kills what a failing test leaves."""
    made = []

    def make(text, number=0, **options):
        command = [sys.executable, "-S", "-c", textwrap.dedent(text)]
        made.append(Attempt(command, workspace, number, **options))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def until(condition):
    """Wait for a condition and give what it gave."""
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.005)
    return found


def number_in(path):
    """Wait for a file with the number of a process."""
    return int(until(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text()))


def is_alive(process):
    """Tell whether a process runs; one that only waits to be noticed does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


SLEEPS = "import time; time.sleep(600)"


# --- start and end ----------------------------------------------------------------------------------------


def test_an_attempt_runs_in_its_arm_and_its_words_are_kept(attempt, workspace):
    """A command runs in the mirror, without input, its output goes to its log, and its status is given."""
    started = attempt(
        """
        import os, sys
        print(os.getcwd(), os.environ["PWD"], os.environ["SAMESTEP_RECORD"], repr(sys.stdin.read()), flush=True)
        print("to err", file=sys.stderr)
        open("by_relative_path", "w").close()
        sys.exit(3)
        """
    ).start()
    assert started.wait(LIMIT) == started.status == 3
    here = workspace.directory
    assert started.log.read_text() == f"{here} {here} {workspace.folder / 'ledgers-0'} ''\nto err\n"
    assert (here / "by_relative_path").exists()


def test_attempts_have_variables_settings_and_logs_of_their_own(attempt):
    """Settings and more variables reach the command; each attempt's log and ledgers bear its number."""
    text = "import os; print(os.environ['SAMESTEP_RECORD_STEPS'], os.environ['SAMESTEP_RECORD_KILL'])"
    made = [
        attempt(text, number, settings=Settings(steps=7), variables={"SAMESTEP_RECORD_KILL": str(number)}).start()
        for number in (0, 1)
    ]
    assert [each.wait(LIMIT) for each in made] == [0, 0]
    assert [each.tail() for each in made] == ["7 0", "7 1"]
    assert [each.log.name for each in made] == ["log-0.txt", "log-1.txt"]
    assert [each.ledgers.name for each in made] == ["ledgers-0", "ledgers-1"]


def test_an_attempt_that_runs_on_has_no_status(attempt):
    """Waiting ends when its time is over: the command runs on, and has no status yet."""
    started = attempt(SLEEPS).start()
    assert started.wait(0.05) is None
    assert started.status is None
    started.kill()
    assert started.status == started.wait() == -signal.SIGKILL


def test_a_command_that_is_not_there_is_told_as_record_tells_it(workspace, tmp_path):
    """What cannot be started is the same sentence in a proof and in a recording, and has no status."""
    started = Attempt(["nonsense-of-mine"], workspace, 0)
    with pytest.raises(SamestepError) as found:
        started.start()
    with pytest.raises(SamestepError) as expected:
        run_recorded(["nonsense-of-mine"], tmp_path, Settings())
    assert str(found.value) == str(expected.value)
    started.kill()
    assert started.wait() is None


def test_the_last_lines_are_shown_as_a_terminal_would(attempt):
    """Of a long log the last lines are shown, of a progress bar its last state, and nothing that steers a terminal."""
    assert attempt("").tail() == ""
    started = attempt("for i in range(30000): print(i)\nprint('1%\\r50%\\r100%\\r')\nprint('\\x1b[2J')").start()
    started.wait(LIMIT)
    assert started.tail(4) == "29998\n29999\n100%\n\\x1b[2J"


AGENT = "E1130 21:02:42.704000 27529 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {})"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Traceback …\nKeyError: 'epoch'\n" + AGENT.format(1) + "\nTraceback …\n=====", "KeyError: 'epoch'"),
        (
            "[rank1]: Traceback …\n[rank0]: Traceback …\n[rank1]: KeyError: 1\n[rank0]: Connection closed\n"
            + AGENT.format(1),
            "[rank1]: KeyError: 1",
        ),
        ("epoch 1\n" + AGENT.format(-11) + "\nTraceback …\n=====", AGENT.format(-11)),
    ],
)
def test_what_torchrun_says_of_a_rank_is_left_out(attempt, said, kept):
    """The words of a rank that has failed are kept, not its agent's; where it said nothing the agent's status is."""
    started = attempt(f"print({said!r})").start()
    started.wait(LIMIT)
    assert started.tail(1) == kept


def test_a_death_that_was_asked_for_ends_the_attempt(attempt):
    """When the process that had to die is dead all others of its attempt are killed, not before."""
    started = attempt(SLEEPS).start()
    with ThreadPoolExecutor(1) as threads, subprocess.Popen([sys.executable, "-c", SLEEPS]) as dying:
        waiting = threads.submit(started.wait, LIMIT)
        marker = started.ledgers / "killed-1.json"
        marker.write_text('{"pid": ')
        marker.write_text(f'{{"pid": {dying.pid}}}')
        time.sleep(0.1)
        assert not waiting.done()
        dying.kill()
        assert waiting.result(LIMIT) == -signal.SIGKILL


# --- kills ------------------------------------------------------------------------------------------------


LEAVES = """
import os, subprocess, sys, time
words = [sys.executable, "-S", "-c", "import os, time; open({path!r} + '.tmp', 'w').write(f'{{os.getpid()}}\\\\n'); "
         "os.rename({path!r} + '.tmp', {path!r}); time.sleep(600)"]
subprocess.Popen(words, {how})
while not os.path.exists({path!r}):
    time.sleep(0.005)
{then}
"""

HOW = {
    "a child": "",
    "one with a group of its own": "process_group=0",
    "one with a session of its own": "start_new_session=True",
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("then", ["time.sleep(600)", "sys.exit(5)"], ids=["killed", "ended"])
def test_nothing_of_a_command_is_left_behind(how, then, attempt, tmp_path):
    """Whether a command is killed or ends by itself, what it started is gone, also in a group or session of its own."""
    path = tmp_path / "child"
    started = attempt(LEAVES.format(path=str(path), how=HOW[how], then=then)).start()
    child = number_in(path)
    if "exit" in then:
        assert started.wait(LIMIT) == 5
    else:
        assert is_alive(child)
        started.kill()
        assert started.status == -signal.SIGKILL
    assert not is_alive(child)


def test_a_kill_reaches_no_other_arm(attempt, workspace):
    """A kill ends one attempt and nothing of another one, nor the process that asks for it."""
    other = workspace.copy_to("other")
    beside = Attempt([sys.executable, "-S", "-c", SLEEPS], other, 0).start()
    try:
        started = attempt(SLEEPS).start()
        started.kill()
        assert beside.wait(0.05) is None
        assert len([*processes_of(None, other.ledgers(0))]) == 1
    finally:
        beside.kill()


def test_a_process_that_goes_on_forking_is_killed(attempt, tmp_path):
    """Processes that start another one, in a new session each time, and end themselves are caught."""
    path = tmp_path / "generation"
    started = attempt(
        f"""
        import os, time
        while True:
            time.sleep(0.002)
            if os.fork():
                os._exit(0) if os.path.exists({str(path)!r}) else time.sleep(600)
            os.setsid()
            open({str(path)!r}, "a").write("x")
        """
    ).start()
    until(lambda: path.exists() and path.stat().st_size > 5)
    started.kill()
    size = path.stat().st_size
    time.sleep(0.2)  # what is tested: that nothing more is written
    assert path.stat().st_size == size


def test_an_ended_attempt_is_left_as_it_is(attempt):
    """A kill behind the end changes no status, and a second one does nothing."""
    started = attempt("raise SystemExit(4)").start()
    assert started.wait(LIMIT) == 4
    started.kill()
    started.kill()
    assert started.status == 4


def test_several_threads_may_wait_and_kill(attempt):
    """Threads that wait for one attempt while another kills it are all given the same status."""
    for number in range(5):
        started = attempt(SLEEPS, number).start()
        with ThreadPoolExecutor(5) as threads:
            waiting = [threads.submit(started.wait, LIMIT) for _ in range(4)]
            threads.submit(started.kill)
        assert {each.result() for each in waiting} == {-signal.SIGKILL}


# --- kills at a step --------------------------------------------------------------------------------------


def write_steps(folder, count, rank=0):
    """Write a ledger of some steps."""
    ledger = LedgerWriter(folder, rank, {"pid": 1})
    for number in range(count):
        ledger.write(Step(number, 0, {"parameters": "00"}, {"parameters": {"weight": "00"}}))


def test_steps_are_counted_as_they_come(attempt):
    """Steps are counted in the ledger that holds the most; names and a torn line are none, and nothing counts twice."""
    made = attempt(SLEEPS)
    assert made.steps() == 0
    write_steps(made.ledgers, 3)
    write_steps(made.ledgers, 5, rank=1)
    assert made.steps() == made.steps() == 5
    with (made.ledgers / "rank-0.jsonl").open("a") as ledger:
        ledger.write('{"step": 3, "opt')
        ledger.flush()
        assert made.steps() == 5
        ledger.write('imizer": 0, "parts": {}}\n' + '{"step": 4, "optimizer": 0, "parts": {}}\n' * 3)
    assert made.steps() == 7


def test_a_kill_at_a_step_waits_for_it_and_for_the_delay(attempt):
    """A kill at a step comes some time after a ledger holds it, not before."""
    started = attempt(SLEEPS).start()
    with ThreadPoolExecutor(1) as threads:
        killing = threads.submit(started.kill_when, 3, 0.2)
        write_steps(started.ledgers, 2)
        time.sleep(0.1)
        assert not killing.done()
        write_steps(started.ledgers, 3, rank=1)
        noted = time.monotonic()
        assert killing.result(LIMIT) is True
        assert time.monotonic() - noted >= 0.2
    assert started.status == -signal.SIGKILL


def test_a_kill_that_comes_too_late_says_so(attempt):
    """A command that ends before its kill keeps its status, and the kill says that nothing was running."""
    started = attempt("raise SystemExit(6)").start()
    assert started.kill_when(3) is False
    assert started.status == 6


# --- the prover -------------------------------------------------------------------------------------------


PROVER = """
import signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from samestep.proof.starting import Attempt, Attempts
from samestep.proof.workspace import Workspace
for ending in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(ending, signal.SIG_DFL)  # whoever runs the tests may ignore them, as nohup does

base, source = map(Path, sys.argv[1:])
script = "import os; open('started', 'w').write(f'{os.getpid()}\\\\n'); import time; time.sleep(600)"

def prove(name):
    workspace = Workspace(base, name, source)
    while True:
        attempts.start(Attempt([sys.executable, "-S", "-c", script], workspace, 0)).wait()

with ThreadPoolExecutor(3) as threads, Attempts() as attempts:
    waiting = [threads.submit(prove, name) for name in "abc"]
    prove("main") if MAIN else waiting[0].result()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("is_main", [True, False], ids=["waiting itself", "waiting for threads"])
def test_a_prover_that_is_ended_leaves_no_process(number, is_main, tmp_path):
    """Ctrl-C, also pressed twice, and the signals that end a program end the prover with all its commands."""
    (tmp_path / "project").mkdir()
    words = [sys.executable, "-c", PROVER.replace("MAIN", str(is_main)), tmp_path / "proof", tmp_path / "project"]
    prover = subprocess.Popen(list(map(str, words)), stderr=subprocess.PIPE, start_new_session=True)
    names = ["a", "b", "c", *(["main"] if is_main else [])]
    try:
        commands = [number_in(tmp_path / "proof" / name / "work" / "project" / "started") for name in names]
        assert all(map(is_alive, commands))
        prover.send_signal(number)
        time.sleep(0.01)
        prover.send_signal(number)
        prover.communicate(timeout=LIMIT)
        assert not any(map(is_alive, commands))
    finally:
        prover.kill()
        for name in names:
            for left in processes_of(None, tmp_path / "proof" / name / "ledgers-0"):
                os.kill(left, signal.SIGKILL)


def test_no_command_is_started_behind_the_end(attempt):
    """When the block has ended, no attempt starts any more, and those that ran are gone."""
    with Attempts() as attempts:
        running = attempts.start(attempt(SLEEPS))
    assert running.status == -signal.SIGKILL
    with pytest.raises(SamestepError, match="The proof was ended"):
        attempts.start(attempt(SLEEPS, 1))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_attempts_end_in_threads_too(attempt):
    """A block in a thread that is not the main one kills its commands as well, and leaves the signals alone."""
    started = attempt(SLEEPS)

    def prove():
        with Attempts() as attempts:
            attempts.start(started)

    thread = threading.Thread(target=prove)
    thread.start()
    thread.join(LIMIT)
    assert started.status == -signal.SIGKILL


# --- the seam ---------------------------------------------------------------------------------------------


class Forked:
    """A process forked from this one, as a test starts trainings from a process that has imported torch."""

    def __init__(self, command, *, cwd, env, stdin, stdout, stderr, start_new_session):
        assert (stdin, stderr, start_new_session) == (subprocess.DEVNULL, subprocess.STDOUT, True)
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.chdir(cwd)
            os.dup2(stdout, 1)
            os.write(1, f"{command[-1]} in {env['SAMESTEP_RECORD']}\n".encode())
            time.sleep(600)
            os._exit(0)

    def poll(self):
        return self._note(os.WNOHANG)

    def wait(self, _timeout=None):
        return self._note(0)

    def _note(self, flags):
        if self.returncode is None and (found := os.waitpid(self.pid, flags))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode


def test_a_test_may_start_commands_in_its_own_way(workspace):
    """What starts the command can be replaced; waiting, logs and kills are the same."""
    started = Attempt(["words"], workspace, 0, launch=Forked).start()
    until(started.tail)
    assert started.wait(0.02) is None
    started.kill()
    assert (started.status, started.tail()) == (-signal.SIGKILL, f"words in {started.ledgers}")


def test_steps_of_processes_one_after_the_other_are_added(attempt):
    """Steps are counted over the processes that a rank had in turn; of several ranks the furthest counts."""
    counted = attempt(SLEEPS)
    for rank, counts in ((0, (2, 3)), (1, (4,))):
        for count in counts:
            ledger = LedgerWriter(counted.ledgers, rank, {})
            for number in range(count):
                ledger.write(Step(number, 0, {}))
    assert counted.steps() == 5
