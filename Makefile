# Two commands matter: `make demo` and `make test`. Each needs only Python (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all soak lint clean

demo: $(VENV)/installed
	$(BIN)/samestep demo

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" tests src

test-all: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal tests src

soak: $(VENV)/installed
	$(BIN)/python -m pytest -s -m slow tests/exactness/test_long_life.py tests/exactness/test_level.py

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
