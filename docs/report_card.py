"""Makes docs/report-card.md: how the recipes in examples/peers survive kills, from what `samestep prove --json` found.

How to run it: `python docs/report_card.py FOLDER` reads one JSON file per proof in FOLDER, with `about.json` besides;
with `--prove` it first makes them, with the Python that runs it (`make report-card` does so). Nothing in the report is
typed in: each verdict, cause and sentence comes from the JSON, each description from the script's own docstring.
"""

# ruff: noqa: INP001, RUF001 — a script, no part of a package; its table has signs of its own

import argparse
import ast
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "examples" / "peers"
CASES = (
    "plain_recipe.py",
    "plain_random_state.py --noise --workers 2",
    "fabric_loop.py",
    "checkpoint_dcp.py",
    "torchdata_stateful.py --workers 2",
    "torchdata_stateful.py --noise --workers 2",
    "torchdata_dataset_state.py --noise --workers 2",
    "lightning_epoch.py",
    "lightning_trainer.py",
    "transformers_trainer.py",
    "transformers_trainer.py --noise",
    "transformers_trainer.py --noise --workers 2",
    "transformers_vit.py",
    "accelerate_state.py",
    "accelerate_state.py --noise --workers 2",
    "accelerate_stateful.py",
    "accelerate_set_epoch.py",
    "ignite_epoch.py --noise --workers 2",
    "ignite_deterministic.py --workers 2",
    "ignite_deterministic.py",
    "ignite_deterministic.py --noise --workers 2",
    "samestep_plain.py --noise --workers 2",
)
KILLS = ("step:24", "step:29", "epoch:2", "save:2", "end")
"""In the middle of an epoch; in the next epoch, behind a save at its edge; at its end; at all of a save; when done."""

PACKAGES = (
    "torch",
    "torchdata",
    "lightning",
    "transformers",
    "accelerate",
    "pytorch-ignite",
    "scikit-learn",
    "numpy",
    "samestep",
)
COLUMNS = {
    "step": "between steps",
    "epoch": "at an epoch's end",
    "save": "in a save",
    "random": "at random",
    "end": "when done",
}
FAULTS = {
    "diverged": "another training",
    "from_scratch": "begins again",
    "older_checkpoint": "older checkpoint",
    "weights_not_restored": "weights lost",
    "skipped_steps": "steps skipped",
    "repeated_steps": "steps repeated",
    "crashed": "crashes",
    "unstable": "differs by itself",
}
"""Verdicts over single kills, in words."""

# --- making the proofs --------------------------------------------------------------------------------------


def name_of(case: str) -> str:
    """Name the file of a case: its words, without what files do not like."""
    return "_".join(case.replace(".py", "").replace("--", "").split())


def prove(folder: Path, cases: Sequence[str]) -> None:
    """Prove each case and keep what was found; a proof that is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    moments = [word for kill in KILLS for word in ("--at", kill)]
    for case in cases:
        file = folder / f"{name_of(case)}.json"
        if file.exists():
            continue
        command = [sys.executable, "-m", "samestep", "prove", "--json", *moments, "--", sys.executable, *case.split()]
        done = subprocess.run(command, cwd=PEERS, capture_output=True, text=True, check=False)  # noqa: S603 — our own
        sys.stdout.write(f"{case}: {done.returncode}\n")
        if done.returncode not in {0, 1, 3}:
            sys.stderr.write(done.stdout + done.stderr)
            continue
        file.write_text(done.stdout, encoding="utf-8")
    (folder / "about.json").write_text(json.dumps(about(), indent=1) + "\n", encoding="utf-8")


def about() -> dict[str, Any]:
    """Describe where and when the proofs were made."""
    return {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "machine": f"{processor()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        "versions": {name: found for name in PACKAGES if (found := version_of(name))},
    }


def processor() -> str:
    """Name the processor as Linux does, else by its family."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def version_of(package: str) -> str | None:
    """Give the version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# --- reading what was found ---------------------------------------------------------------------------------


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read what is told about the proofs, and the proofs in the order of the cases, others behind them."""
    described = folder / "about.json"
    told = json.loads(described.read_text(encoding="utf-8")) if described.exists() else {}
    order = [name_of(case) for case in CASES]
    files = [each for each in folder.glob("*.json") if each.name != "about.json"]
    files.sort(key=lambda each: (order.index(each.stem) if each.stem in order else len(order), each.stem))
    proofs = []
    for file in files:
        proof = json.loads(file.read_text(encoding="utf-8"))
        named = title(proof.get("command") or [file.stem])
        proofs.append(proof | {"title": named, "code": f"`{named}`"})
    return told, proofs


def title(command: Sequence[str]) -> str:
    """Shorten a command to the script and its options."""
    first = next((place for place, word in enumerate(command) if word.endswith(".py")), 0)
    return " ".join([Path(command[first]).name, *command[first + 1 :]])


def description(script: str) -> str:
    """Take the first sentence of a script's docstring and the page that it follows."""
    path = PEERS / script
    if not path.is_file():
        return ""
    paragraphs = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")
    told = " ".join(" ".join(paragraphs).split())
    return told.replace(f"How to run it: `python {script} [--noise] [--workers N]`. ", "")


def is_same(trial: Mapping[str, Any]) -> bool:
    """Tell whether a kill left the training as it was."""
    return trial.get("verdict") == "proved"


def counted(trials: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out trials that ended before the moment of their kill came."""
    return [each for each in trials if each.get("verdict") != "not_killed"]


# --- saying it ----------------------------------------------------------------------------------------------


def cell(trials: Sequence[Mapping[str, Any]]) -> str:
    """Say how the kills of one kind ended: how many were exact, else the faults with their causes."""
    if not trials:
        return "–"
    if all(map(is_same, trials)):
        return f"✔ {len(trials)}"
    faults: dict[str, int] = {}
    for trial in trials:
        if not is_same(trial):
            faults[fault(trial)] = faults.get(fault(trial), 0) + 1
    good = len(trials) - sum(faults.values())
    said = [f"{number}× {what}" if len(trials) > 1 else what for what, number in faults.items()]
    return "<br>".join(([f"✔ {good}"] if good else []) + [f"✗ {each}" for each in said])


def fault(trial: Mapping[str, Any]) -> str:
    """Name a fault with the part that differs first, if one does."""
    verdict = str(trial.get("verdict"))
    part = (trial.get("first_difference") or {}).get("part")
    return FAULTS.get(verdict, verdict) + (f": `{part}`" if part and verdict != "crashed" else "")


def verdict_of(proof: Mapping[str, Any]) -> str:
    """Give the verdict over a proof, with the part that differs first."""
    if proof.get("verdict") == "unverified" and proof.get("repeat"):
        return f"unverified: `{proof['repeat'].get('part')}` differs without a kill"
    return {"proved": "**proved**"}.get(str(proof.get("verdict")), str(proof.get("verdict")))


def sentences(proof: Mapping[str, Any]) -> list[str]:
    """Explain a verdict: one sentence for each fault that occurred, from its first trial."""
    trials = counted(proof.get("trials", []))
    if not trials:
        return [str(proof.get("reason") or "It was not killed.")]
    faults: dict[str, list[Mapping[str, Any]]] = {}
    for trial in trials:
        if not is_same(trial):
            faults.setdefault(fault(trial), []).append(trial)
    if not faults:
        return [f"Killed at {len(trials)} moments, each later step is the same bit for bit."]
    said = [
        sentence(same[0]) + (f" {len(same) - 1} more of this kind." if same[1:] else "") for same in faults.values()
    ]
    good = sum(map(is_same, trials))
    others = {0: "No kill left it as it was.", 1: "One other kill changed nothing."}
    return [*said, others.get(good, f"{good} other kills changed nothing.")]


def sentence(trial: Mapping[str, Any]) -> str:
    """Explain one trial in a sentence: when, from where it went on, what came back, what differs first."""
    kill = trial["kill"]
    when = {
        "step": "Killed after step {at}",
        "epoch": "Killed at an epoch's end, after step {at}",
        "save": "Killed in the save after step {at} ({what})",
        "random": "Killed at a random moment after step {at}",
        "end": "Started again when it was done",
    }.get(str(kill.get("kind")), "Killed after step {at}")
    said = [when.format(at=kill.get("at"), what=kill.get("what") or "at an operation on a file")]
    if trial.get("verdict") == "crashed":
        return f"{said[0]}, it cannot go on: {shortened(trial.get('explanation') or 'the resume crashed')}."
    if trial.get("resumed_from") is not None:
        said.append(f"it went on from step {trial['resumed_from']}")
    said += [
        f"{word} {listed(trial.get(key) or [])}"
        for key, word in (("restored", "with the right"), ("not_restored", "but not the right"))
        if trial.get(key)
    ]
    return ", ".join(said) + difference(trial) + "."


def difference(trial: Mapping[str, Any]) -> str:
    """Say what differs first, or what else is wrong."""
    first = trial.get("first_difference")
    if not first:
        return f": {shortened(trial['explanation'])}" if trial.get("explanation") else ""
    found = next((each for each in trial.get("findings", []) if each.get("part") == first.get("part")), {})
    told = str(found.get("what") or first.get("detail") or "").partition(" ([")[0]
    detail = f" ({shortened(told, 100)})" if told else ""
    return f"; from step {first.get('step')} on it differs, first in `{first.get('part')}`{detail}"


def listed(parts: Sequence[str]) -> str:
    """List parts as a person does."""
    named = [f"`{part}`" for part in parts]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def shortened(text: str, limit: int = 160) -> str:
    """Put a text on one line and cut it where it is too long; no table and no code is broken by it."""
    line = " ".join(str(text).split()).rstrip(".").replace("|", "¦").replace("`", "'")
    return line if len(line) <= limit else f"{line[: limit - 2]} …"


def opening(told: Mapping[str, Any]) -> list[str]:
    """Say what the report is, where it was made and how to read it."""
    versions = ", ".join(f"{name} {number}" for name, number in told.get("versions", {}).items())
    moments = " ".join(f"--at {kill}" for kill in KILLS)
    return [
        "# Report card",
        "",
        "Made by `make report-card` from what `samestep prove` found; nothing is typed in. Each script of",
        "`examples/peers` is written as the documentation of its project says, and proved unchanged: killed with",
        "SIGKILL, started again by the same command until it is done, and compared at every step with the",
        "undisturbed training.",
        "",
        f"- Date: {told.get('date', 'unknown')}",
        f"- Machine: {told.get('machine', 'unknown')}",
        f"- Versions: {versions or 'unknown'}",
        f"- Command, in `examples/peers`: `samestep prove {moments} -- python SCRIPT`",
        "",
        "✔ 3: three kills, and each later step is the same bit for bit. ✗: what is wrong, and the part that differs",
        "first. A kill at an epoch's end comes before what is saved there; steps since the last save are done again.",
        "",
    ]


def report(told: Mapping[str, Any], proofs: Sequence[Mapping[str, Any]]) -> str:
    """Write the whole report."""
    kinds = {each["kill"].get("kind") for proof in proofs for each in proof.get("trials", [])}
    columns = {kind: words for kind, words in COLUMNS.items() if kind in kinds}
    header = ["script", "verdict", *columns.values()]
    lines = [*opening(told), f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for proof in proofs:
        trials = counted(proof.get("trials", []))
        cells = [cell([each for each in trials if each["kill"].get("kind") == kind]) for kind in columns]
        lines.append(f"| {' | '.join([proof['code'], verdict_of(proof), *cells])} |")
    lines += ["", "## What happened", ""]
    for proof in proofs:
        lines += [f"### {proof['code']}", ""]
        told_by_script = description(proof["title"].split()[0])
        lines += [told_by_script, ""] if told_by_script else []
        lines += [*(f"- {each}" for each in sentences(proof)), ""]
    return "\n".join(lines).rstrip() + "\n"


def main(words: Sequence[str] | None = None) -> None:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the JSON files are")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "report-card.md")
    parser.add_argument("--prove", action="store_true", help="make the proofs that are not there yet")
    parser.add_argument("--case", action="append", help="prove this one only, such as 'plain_recipe.py --noise'")
    arguments = parser.parse_args(words)
    if arguments.prove:
        prove(arguments.folder.resolve(), arguments.case or CASES)
    arguments.out.write_text(report(*read(arguments.folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
