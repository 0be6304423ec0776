"""Checks by brute force that scripts are exact: `python tests/proof/power/check_exact.py [NAME …]`. Owns no claim."""

import sys
import tempfile
import time
from pathlib import Path

from brute import EXACT, difference, text_of, train
from forked import forker


def main(names):
    with forker() as run, tempfile.TemporaryDirectory() as place:
        for name in names or sorted(each.stem for each in EXACT.glob("*.py")):
            begin = time.monotonic()
            reference = train(run, text_of(name), Path(place) / "reference")
            again = train(run, text_of(name), Path(place) / "again")
            status, steps, _ = reference.lives[0]
            seconds = (time.monotonic() - begin) / 2
            found = {}
            if status == 0 and not difference(reference, again):
                for kill in reference.moments:
                    wrong = difference(reference, train(run, text_of(name), Path(place) / "killed", [kill]))
                    found |= {kill: wrong} if wrong else {}
            verdict = "exact" if not found and not difference(reference, again) else f"NOT EXACT {found}"
            line = f"{name}: {status}, {len(steps)} steps, {seconds:.2f} s, {len(reference.moments)} moments, {verdict}"
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
