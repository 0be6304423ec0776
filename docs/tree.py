"""Prints the annotated tree for the README, one phrase a file, from what each module says that it owns."""

# ruff: noqa: INP001 — a script, no part of a package

import ast
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "samestep"


def phrase(path: Path) -> str:
    """Take the first sentence of a module's docstring, without "Owns"."""
    opening = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    sentence = re.split(r"\.(?:\s|$)|;\s", " ".join(opening.split()))[0]
    return sentence.removeprefix("Owns ").replace("`", "")


def lines(folder: Path, indent: str) -> list[str]:
    """List a folder: its modules, then its folders."""
    paths = [path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    found = []
    for path in sorted(paths, key=lambda each: (each.is_dir(), each.name)):
        if path.is_dir():
            found.append(f"{indent + path.name + '/':<28}  {phrase(path / '__init__.py')}")
            found += lines(path, indent + "  ")
        elif path.name != "__init__.py":
            found.append(f"{indent + path.name:<28}  {phrase(path)}")
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(["```", "src/samestep/", *lines(PACKAGE, "  "), "```"]) + "\n")
