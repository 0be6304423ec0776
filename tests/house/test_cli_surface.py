"""The words of the command line."""

import json

import click
from cli_surface import FILE, surface

from samestep.cli.group import VERBS, group


def test_surface_is_frozen():
    """Verbs, options, defaults and help texts change only on purpose: `python tests/house/cli_surface.py`."""
    assert surface() == json.loads(FILE.read_text(encoding="utf-8"))


def test_every_verb_speaks_json():
    """Every verb has --json."""
    context = click.Context(group)
    for name in VERBS:
        words = [word for each in group.get_command(context, name).params for word in each.opts]
        assert "--json" in words, name


def test_every_option_has_its_help():
    """Every option of every verb says what it does."""
    for name, verb in surface().items():
        for each in verb["parameters"]:
            assert each.get("help", "an argument"), (name, each["name"])
