# Everything here creates what it needs; a second call is quick. `make help` lists the targets.
PYTHON ?= python3
JOB    ?= examples/cartpole/job.yaml
LEARNER ?= examples/cartpole/learner.py
ARGS   ?=
BIN    := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install run test lint bench bench-learning soak crd clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.venv/.made:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.local: .venv/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local]'
	@touch $@

.venv/.dev: .venv/.local
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

.venv/.bench: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@

install: .venv/.dev ## create .venv with everything for running and developing

run: .venv/.local ## train CartPole through a RolloutJob on this machine (JOB=, LEARNER=, ARGS=)
	$(BIN)/rolloutctl run $(JOB) --learner $(LEARNER) $(ARGS)

test: .venv/.dev ## the whole test suite
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

lint: .venv/.dev ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.bench ## product and peers side by side, the short form
	$(BIN)/python -m benchmarks --short

bench-learning: .venv/.local ## ten seeds of the CartPole example; at least nine must learn
	$(BIN)/python -m benchmarks.learning --seeds 10

soak: .venv/.dev ## all rounds of the fault tests, and memory over 10 million frames
	SOAK=1 $(BIN)/python -m pytest tests/integration tests/soak -m "slow or not slow" --timeout 1800 $(ARGS)

crd: .venv/.dev ## write the definition of the resource, as the contract makes it, into charts/
	$(BIN)/python charts/write_crd.py

clean: ## remove what was installed and what runs left
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
