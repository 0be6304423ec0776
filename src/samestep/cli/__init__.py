"""Owns the entry of the command line; one module per verb, and no logic of their own. Never imports torch to start."""


def main() -> None:
    """Run the command line on the arguments of this process, and end it with the verb's exit status."""
    from samestep.cli.group import run

    raise SystemExit(run())
