"""WHICH batch comes next, and with which random numbers. Knows neither state nor store nor run."""
