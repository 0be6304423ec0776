# Two commands matter: `make demo` and `make test`. Each needs only Python (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint chaos clean

demo: $(VENV)/installed
	$(BIN)/samestep demo

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" tests src

test-all: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal tests src

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

chaos: $(VENV)/installed $(VENV)/chaos/installed
	$(BIN)/python benchmarks/chaos.py --harness $(VENV)/chaos/bin/ckpt-chaos

$(VENV)/chaos/installed: $(VENV)/installed
	$(PYTHON) -m venv $(VENV)/chaos
	$(VENV)/chaos/bin/python -m pip install -q ckpt-chaos==0.1.8
	touch $@

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
