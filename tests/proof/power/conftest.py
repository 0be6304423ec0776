"""Keeps what stands for other people's scripts from being imported: they train."""

collect_ignore_glob = ["conftest.py", "exact/*"]  # --doctest-modules would import them
