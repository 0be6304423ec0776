"""Starts the command line for `python -m samestep`."""

from samestep.cli import main

main()
