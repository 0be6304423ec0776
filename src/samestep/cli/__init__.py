"""Owns the entry of the command line; one module per verb, no logic of its own. Starts without torch."""


def main() -> None:
    """Run the command line on the arguments of this process, and end it with the verb's exit status."""
    from samestep.cli.group import run

    raise SystemExit(run())
