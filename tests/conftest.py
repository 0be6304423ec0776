"""What all tests share: nothing but how they are collected."""

collect_ignore_glob = ["*conftest.py"]  # --doctest-modules would import them all under the one name "conftest"
