"""Owns the page of a proof: one HTML file that needs no network, no script and no other file. Runs nothing.

It is built of a proof's JSON alone. Names in it come from scripts of others: each is escaped, and the page forbids a
browser to load or run anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from samestep.errors import SamestepError
from samestep.proof.strips import Strips, text
from samestep.proof.telling import SOUND, VERDICTS, headline, kills_of, made_a_step, moment
from samestep.store import files

_STYLE = """
:root{color-scheme:light dark;--ground:#fff;--card:#f5f6f8;--text:#1c2330;--soft:#5a6372;--line:#d5dae1;--empty:#eceff3;
--before:#8b9db8;--same:#2c8f60;--first:#c01f2e;--follows:#c99393;--code:#eef0f4}
@media screen and (prefers-color-scheme:dark){:root{--ground:#14181f;--card:#1c222b;--text:#e4e8ee;--soft:#9aa5b4;
--line:#343d4a;--empty:#262e39;--before:#6b7f9d;--same:#3ba374;--first:#f0616d;--follows:#8a5a5f;--code:#262d38}}
*{box-sizing:border-box}body{margin:0;background:var(--ground);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:62rem;margin:0 auto;padding:1.5rem 1.25rem 3rem}h1{font-size:1.5rem;line-height:1.25;margin:0 0 .4rem}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem}h3{font-size:1rem;margin:0 0 .3rem}p{margin:.3rem 0}
header{border-left:6px solid var(--soft);padding:.2rem 0 .2rem 1rem}header.proved{border-color:var(--same)}
header.diverged{border-color:var(--first)}code,pre{font-family:ui-monospace,monospace;font-size:.875em}
pre{background:var(--code);padding:.6rem .8rem;border-radius:4px;white-space:pre-wrap;overflow-wrap:anywhere}
code{overflow-wrap:anywhere}dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.6rem 0}
dt{color:var(--soft)}dd{margin:0;min-width:0;overflow-wrap:anywhere}.soft,.life,.legend{color:var(--soft);font-size:.875rem}
section{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.8rem 1rem;margin:.8rem 0}
section{break-inside:avoid}section.failed{border-left:4px solid var(--first)}.verdict{color:var(--same)}
.failed .verdict{color:var(--first)}.strip{display:block;overflow:visible;font-size:12px;margin:.1rem 0 .3rem}
.strip text{fill:var(--text)}
.empty{fill:var(--empty)}rect.before{fill:var(--before)}rect.same{fill:var(--same)}rect.first{fill:var(--first)}
rect.follows{fill:var(--follows)}#grid{stroke:var(--card);stroke-width:1px;fill:none}.edge{stroke:var(--text);stroke-width:1.5}
.save{fill:var(--text)}.strip text.scale{fill:var(--soft)}.strip text.first{fill:var(--first);font-weight:600}
line.kill,line.resume{stroke:var(--text);stroke-width:2}line.first{stroke:var(--first);stroke-width:2}
.strip .sign{font-size:13px;font-weight:700}
.legend span{margin-right:1.1rem;white-space:nowrap}
.legend svg{vertical-align:-2px;margin-right:.3rem}.lost{border-left:3px solid var(--first);padding-left:.6rem}
.finding{border-top:1px solid var(--line);margin-top:.7rem;padding-top:.5rem}
@media print{main{max-width:none;padding:0}body{font-size:12px}}
"""

_HEAD = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)

_LEGEND = (
    ("before", 'height="12"', "before the kill"),
    ("same", 'height="12"', "the same, bit for bit"),
    ("first", 'height="12"', "the first difference"),
    ("follows", 'y="4" height="5"', "behind it: other steps follow"),
)


def page(proof: Mapping[str, Any]) -> str:
    """Show a proof as a page.

    Args:
        proof: The proof, as `Proof.as_json` or `samestep prove --json` gives it.

    Returns:
        The HTML, whole.
    """
    strips = Strips(proof)
    trials, steps = dict(enumerate(proof["trials"], 1)), proof["steps"]
    failed = {number: each for number, each in trials.items() if each["verdict"] not in SOUND}
    sound = {number: each for number, each in trials.items() if each["verdict"] in SOUND}
    title = f"{proof['verdict']}: {' '.join(proof['command'])}"
    return "\n".join(
        [
            f"{_HEAD}<title>{text(title)}</title><style>{_STYLE}</style></head><body><main>",
            _header(proof),
            _undisturbed(proof, strips),
            *_trials("Killed, and then another training", failed, steps, strips),
            *_trials("Killed, and the same", sound, steps, strips),
            "</main></body></html>\n",
        ]
    )


def require_writable(path: Path) -> None:
    """Raise if a page cannot be written, before a proof takes its time.

    Args:
        path: The page's file; one that is there is left as it is.

    Raises:
        SamestepError: It cannot be written.
    """
    draft = path.with_name(f"{path.name}.try")
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "It is a directory", str(path))
        with files.new_file(draft):
            pass
        files.remove_file(draft)
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or str(error)
        raise SamestepError(
            "The page cannot be written.", path=path, found=found, hint="Give a file in a directory that is there."
        ) from error


def write_page(path: Path, proof: Mapping[str, Any]) -> None:
    """Write a proof's page, over an older one.

    Raises:
        OSError: It cannot be written.
    """
    files.replace_file(path, page(proof).encode())


# --- parts of the page -----------------------------------------------------------------------------------


def _header(proof: Mapping[str, Any]) -> str:
    facts = [
        ("Begun", proof["begun"].replace("T", " ").replace("+00:00", " UTC")),
        ("Took", f"{proof['seconds']:.0f} s"),
        ("With", ", ".join(f"{name} {version}" for name, version in proof["versions"].items())),
        ("Steps", str(proof["steps"]) + (f" on each of {proof['ranks']} ranks" if proof["ranks"] > 1 else "")),
        ("Epochs begin", _counted(proof["epochs"])),
        ("Saves", _counted(proof["saves"])),
        ("Trials", _tally(proof["trials"])),
    ]
    reason = "" if proof["verdict"] == "proved" else f"<p>{text(proof['reason'])}</p>"
    notes = "".join(_said(text(each), "soft") for each in proof["notes"])
    return (
        f'<header class="{text(proof["verdict"])}"><h1>{text(headline(proof))}</h1>{reason}</header>'
        f"<pre>{text(' '.join(proof['command']))}</pre>{_facts(facts)}{notes}"
    )


def _undisturbed(proof: Mapping[str, Any], strips: Strips) -> str:
    repeat, control = proof["repeat"], proof["control"]
    shown = [f"<h2>Undisturbed</h2><section>{_said('The training', 'life')}", strips.reference(proof)]
    if repeat is not None or proof["trials"]:
        shown += [_said("The same again", "life"), strips.repeat(repeat)]
    if repeat is not None:
        shown.append(_said(f"Differs without a kill: {_difference(repeat, proof['steps'])}", "lost"))
    if proof["masked"]:
        shown.append(_said(f"Differ already here, and nothing follows from them: {_parts(proof['masked'])}"))
    if control is not None:
        said = "was noticed, as it must be" if control else "was not noticed"
        shown.append(_said(f"A resume that we spoiled by one bit of one parameter {said}."))
    return "".join(shown) + f"{_legend(strips)}</section>"


def _legend(strips: Strips) -> str:
    keys = [
        f'<span><svg width="12" height="12"><rect class="{kind}" {box} width="12"/></svg>{says}</span>'
        for kind, box, says in _LEGEND
    ]
    signs = ("● saved", "│ an epoch begins", "✕ killed", "▸ went on")
    cell = "One cell is one step; steps are numbered from 0." if strips.has_cells else "Steps are numbered from 0."
    return f'<p class="legend">{" ".join([*keys, *(f"<span>{each}</span>" for each in signs)])} {cell}</p>'


def _trials(title: str, trials: Mapping[int, Mapping[str, Any]], steps: int, strips: Strips) -> list[str]:
    """Show trials; what several of them have lost is told once, with how to repair it."""
    told: list[tuple[int, Any]] = []
    shown = [f"<h2>{title}</h2>"] if trials else []
    for number, trial in trials.items():
        findings = trial["findings"]
        before = next((other for other, each in told if each == findings), None)
        repairs = "".join(_finding(each) for each in findings)
        if findings and before is not None:
            repairs = _said(f'What is lost is the same as in <a href="#trial-{before}">trial {before}</a>.', "soft")
        told.append((number, findings))
        shown.append(_trial(number, trial, steps, strips, repairs))
    return shown


def _trial(number: int, trial: Mapping[str, Any], steps: int, strips: Strips, repairs: str) -> str:
    is_sound = trial["verdict"] in SOUND
    verdict = VERDICTS.get(trial["verdict"], trial["verdict"])
    harmless = _said(f"Differ, and nothing follows from them: {_parts(trial['harmless'])}") if trial["harmless"] else ""
    shown = [
        f'<section class="{"sound" if is_sound else "failed"}" id="trial-{number}">',
        f'<h3>{number}. {text(_sentence(kills_of(trial)))}: <span class="verdict">{text(verdict)}</span></h3>',
        _said(text(trial["explanation"])) if trial["explanation"] else "",
        strips.trial(trial) if trial["steps"] else "",
        "" if is_sound else _lost(trial, steps),
        harmless,
        repairs,
        "</section>",
    ]
    return "".join(shown)


def _lost(trial: Mapping[str, Any], steps: int) -> str:
    first = trial["first_difference"]
    nothing = "nothing" if made_a_step(trial) else ""
    facts = [("Restored", ", ".join(trial["restored"]) or nothing)]
    shown = _facts([*facts, ("Not restored", ", ".join(trial["not_restored"]) or nothing)])
    return (_said(f"First difference: {_difference(first, steps)}", "lost") if first else "") + shown


def _difference(first: Mapping[str, Any], steps: int) -> str:
    rank = f" of rank {first['rank']}" if first["rank"] else ""
    others = [each for each in first["parts"] if each != first["part"]]
    also = f"; with it {_parts(others)}" if others else ""
    detail = f": {text(first['detail'])}" if first["detail"] else ""
    return f"{moment(first['step'], steps)}{text(rank)}, <code>{text(first['part'])}</code>{detail}{also}"


def _finding(finding: Mapping[str, str]) -> str:
    repairs = _facts([("In PyTorch", finding["repair"]), ("With samestep", finding["with_samestep"])])
    what = f"<code>{text(finding['part'])}</code>" + (f": {text(finding['what'])}" if finding["what"] else "")
    return f'<div class="finding">{_said(what)}{repairs}</div>'


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _said(content: str, kind: str = "") -> str:
    return f'<p class="{kind}">{content}</p>' if kind else f"<p>{content}</p>"


def _facts(pairs: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{text(name)}</dt><dd>{text(value)}</dd>' for name, value in pairs if value)}</dl>"


def _parts(parts: Sequence[str]) -> str:
    return ", ".join(f"<code>{text(each)}</code>" for each in parts)


def _counted(places: Sequence[int]) -> str:
    shown = ", ".join(map(str, places[:12])) + (f" … {places[-1]}" if len(places) > 12 else "")  # noqa: PLR2004
    return f"{len(places)} (after step {shown})" if places else "none seen"


def _tally(trials: Sequence[Mapping[str, Any]]) -> str:
    counts = {verdict: sum(each["verdict"] == verdict for each in trials) for verdict in [t["verdict"] for t in trials]}
    return ", ".join(f"{count} {VERDICTS.get(verdict, verdict)}" for verdict, count in counts.items())
