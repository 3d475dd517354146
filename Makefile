# The verbs of this repository. Each makes what it needs: the environment, the wheel.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find rust python -type f -not -name '*.so' -not -path '*/__pycache__/*') Cargo.toml Cargo.lock pyproject.toml

.PHONY: demo test test-browser test-gym bench soak lint format
.DEFAULT_GOAL := test

demo: $(VENV)/installed  ## train a tiny model with TRL through turnloom, on the CPU
	$(BIN)/turnloom demo $(DEMO)

test: $(VENV)/installed lint  ## the lint gate and all tests but those of a real NeMo Gym and of a browser
	cargo test --quiet --locked
	$(BIN)/python -m pytest -m "not gym and not browser" $(PYTEST)

test-browser: $(VENV)/installed  ## the tests that open the inspector's page in Debian's chromium
	$(BIN)/python -m pytest -m browser $(PYTEST)

test-gym: $(VENV)/installed  ## the tests that start a real NeMo Gym
	$(BIN)/python -m pytest -m gym $(PYTEST)

bench: $(VENV)/installed  ## the tables of the README and of docs/
	$(BIN)/python benches/bench_parse.py $(BENCH)
	$(BIN)/python benches/bench_collate.py $(filter --fast,$(BENCH))
	$(BIN)/python benches/bench_memory.py $(filter --fast,$(BENCH))
	$(BIN)/python benches/bench_event_loop.py $(filter --fast,$(BENCH))
	$(BIN)/python benches/bench_big_answers.py $(filter --fast,$(BENCH))
	$(BIN)/python benches/bench_records.py $(filter --fast,$(BENCH))
	$(BIN)/python benches/bench_http.py $(filter --fast,$(BENCH))

soak: $(VENV)/installed  ## 20 minutes of rollouts with faults, each accounted for
	$(BIN)/python benches/soak.py $(SOAK)

lint: $(VENV)/installed
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo clippy --locked --all-targets --features python -- -D warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest turnloom._native

format: $(VENV)/installed
	cargo fmt
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(VENV)/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "turnloom needs CPython 3.11 or later: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv "maturin>=1.16,<2"

$(VENV)/installed: $(VENV)/bin/uv $(SOURCES)
	rm -rf dist
	$(BIN)/maturin build --quiet --release --locked --interpreter $(BIN)/python --out dist
	$(BIN)/uv pip install --quiet --python $(BIN)/python --reinstall-package turnloom "turnloom[dev] @ $$(ls dist/*.whl)"
	touch $@
