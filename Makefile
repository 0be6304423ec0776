# Two commands matter: `make demo` and `make test`. Each needs only Python (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all soak chaos power report-card lint fuzz fuzz-keep clean

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

# Each target for five minutes; or FUZZ_SECONDS=3600, or FUZZ_RUNS=20000. What it finds lies in .fuzz/.
FUZZ_TARGETS := manifest safetensors_header tree
FUZZ_SECONDS ?= 300
FUZZ_RUNS ?= -1

fuzz: $(VENV)/installed-fuzz
	set -e; for target in $(FUZZ_TARGETS); do \
		$(BIN)/python fuzz/starter.py $$target -max_total_time=$(FUZZ_SECONDS) -runs=$(FUZZ_RUNS); \
	done

# Adds to the corpus, as small as it can be, the inputs that have reached something new.
fuzz-keep: $(VENV)/installed-fuzz
	set -e; for target in $(FUZZ_TARGETS); do \
		$(BIN)/python fuzz/starter.py $$target -merge=1; \
	done

$(VENV)/installed-fuzz: $(VENV)/installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[fuzz]'
	touch $@

chaos: $(VENV)/installed $(VENV)/chaos/installed
	$(BIN)/python benchmarks/chaos.py --harness $(VENV)/chaos/bin/ckpt-chaos

$(VENV)/chaos/installed: $(VENV)/installed
	$(PYTHON) -m venv $(VENV)/chaos
	$(VENV)/chaos/bin/python -m pip install -q ckpt-chaos==0.1.8
	touch $@

# Proves the exact and the sabotaged trainings of tests/proof/power and writes docs/power.md; ten minutes.
power: $(VENV)/installed
	$(BIN)/python tests/proof/power/table.py > docs/power.md

# Proves the recipes of other projects (examples/peers) and writes docs/report-card.md; an hour and more on two cores.
# What was proved already lies in .peers/ and is not proved again.
report-card: $(VENV)/peers/installed
	OMP_NUM_THREADS=1 $(VENV)/peers/bin/python docs/report_card.py .peers --prove

$(VENV)/peers/installed: $(VENV)/installed examples/peers/requirements.txt
	$(PYTHON) -m venv $(VENV)/peers
	$(VENV)/peers/bin/python -m pip install -q -c constraints.txt -r examples/peers/requirements.txt -e .
	touch $@

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
