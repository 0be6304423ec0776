"""What all tests share: how they are collected, and that the figures which they note are printed at the end."""

collect_ignore_glob = ["*conftest.py"]  # --doctest-modules would import them all under the one name "conftest"


def pytest_terminal_summary(terminalreporter):
    """Print what tests have noted by `record_property("states", 4715)`, so that a run shows its figures."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    noted = sorted(
        (each.nodeid, *each.user_properties) for each in reports if each.when == "call" and each.user_properties
    )
    if noted:
        terminalreporter.section("figures")
    for test, *figures in noted:
        terminalreporter.line(f"{test}: " + ", ".join(f"{name} {value}" for name, value in figures))
