"""Checks by brute force that mistakes have a consequence: `python tests/proof/power/check_mistakes.py [NAME …]`."""

import sys
import tempfile
from collections import Counter
from pathlib import Path

from brute import chosen, difference, text_of, train, undisturbed
from forked import forker
from mistakes import HARMLESS, MISTAKES, SAVES, spoiled


def main(names):
    with forker() as run, tempfile.TemporaryDirectory() as place:
        for mistake in (*MISTAKES, *HARMLESS):
            if names and mistake.name not in names:
                continue
            reference = train(run, spoiled(mistake), Path(place) / "reference")
            exact = train(run, text_of(mistake.script), Path(place) / "exact")
            again = difference(reference, train(run, spoiled(mistake), Path(place) / "again"))
            same = undisturbed(exact, reference)
            found, total = Counter(), Counter()
            examples = {}
            for kill in chosen(reference.moments, saves=mistake in SAVES):
                wrong = difference(reference, train(run, spoiled(mistake), Path(place) / "killed", [kill]))
                total[kill[0]] += 1
                found[kill[0]] += bool(wrong)
                if wrong:
                    examples.setdefault(wrong, kill)
            shares = ", ".join(f"{kind} {found[kind]}/{total[kind]}" for kind in total)
            flags = f"status {reference.lives[0][0]}{'' if same == mistake.undisturbed else ' UNDISTURBED?'}"
            sys.stdout.write(f"{mistake.name} [{mistake.script}] {mistake.verdict}: {flags} {again} | {shares}\n")
            for each, kill in list(examples.items())[:4]:
                sys.stdout.write(f"      {kill}: {each}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
