"""House rule 2: the README's annotated tree is the folder."""

import re

from sources import PACKAGE, ROOT

_LINE = re.compile(r"^(?P<indent> *)(?P<name>[\w.]+/?)(?: {2,}(?P<phrase>\S.*))?$")


def described():
    """Read the README's fenced tree of src/samestep: each path with its phrase."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(src/samestep/\n.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, "README.md needs one fenced block that begins with the line src/samestep/"
    found, parents = {}, []
    for line in blocks[0].splitlines()[1:]:
        match = _LINE.match(line)
        assert match, f"This line of the tree is no indented name with a phrase: {line!r}"
        level = len(match["indent"]) // 2 - 1
        parents = [*parents[:level], match["name"]]
        found["".join(parents)] = match["phrase"]
    return found


def existing():
    """List the modules and folders; `__init__.py` files are what their folder is."""
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    folders = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE}
    return {path.relative_to(PACKAGE).as_posix() for path in modules} | {f"{each.as_posix()}/" for each in folders}


def test_the_tree_is_the_folder():
    """The README's tree names every module and folder of src/samestep and nothing else."""
    assert set(described()) == existing()


def test_every_file_has_its_phrase():
    """Each line of the tree says in one phrase what the file is for."""
    assert [name for name, phrase in described().items() if not phrase] == []
