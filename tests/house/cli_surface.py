"""Owns the frozen surface of the command line. `python tests/house/cli_surface.py` freezes what there is now."""

import json
from pathlib import Path

import click

from samestep.cli.group import VERBS, group

FILE = Path(__file__).with_name("cli_surface.json")


def surface():
    """Describe every verb: its words, options, defaults and texts, as users and scripts know them."""
    context = click.Context(group)
    verbs = {name: group.get_command(context, name) for name in VERBS}
    return {name: describe(command) for name, command in {"": group, **verbs}.items()}


def describe(command):
    """Describe one command."""
    return {
        "help": command.help,
        "short_help": command.short_help,
        "parameters": [parameter(each) for each in command.params],
    }


def parameter(each):
    """Describe one parameter; only what does not depend on click's version."""
    described = {"name": each.name, "words": sorted([*each.opts, *each.secondary_opts]), "required": each.required}
    described["type"] = each.type.name
    if isinstance(each, click.Option):
        described["help"] = each.help
        described["default"] = each.default if isinstance(each.default, str | int) else None
    return described


if __name__ == "__main__":
    FILE.write_text(json.dumps(surface(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
