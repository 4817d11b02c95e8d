# Everything here creates what it needs; a second call is quick. `make help` lists the targets.
PYTHON ?= python3
JOB    ?= examples/cartpole/job.yaml
LEARNER ?= examples/cartpole/learner.py
ARGS   ?=
SEEDS  ?= 10
BIN    := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install run test lint rows bench bench-learning soak crd code oracle pins images e2e clean

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

rows: ## rows of the design's tables that no test stands for
	$(PYTHON) tests/rows.py

bench: .venv/.bench ## product and peers side by side, the short form
	$(BIN)/python -m benchmarks --short

bench-learning: .venv/.local ## ten seeds of the CartPole example (SEEDS=); nine of ten must learn
	$(BIN)/python -m benchmarks.learning --seeds $(SEEDS)

soak: .venv/.dev ## all rounds of the fault tests, and memory over 10 million frames
	SOAK=1 $(BIN)/python -m pytest tests/integration tests/stream tests/worker $(ARGS)

crd: .venv/.dev ## write the definition of the resource, as the contract makes it, into charts/
	$(BIN)/python charts/write_crd.py

code: ## write the examples' Python files into the ConfigMaps that bring them to a cluster
	$(PYTHON) examples/write_code.py

# TorchRL 0.11.1 needs tensordict 0.11, so the oracle lives in a virtual environment of its own.
.venv-oracle/.made: tests/parity/requirements.txt
	$(PYTHON) -m venv .venv-oracle
	.venv-oracle/bin/python -m pip install --quiet --disable-pip-version-check -r tests/parity/requirements.txt
	@touch $@

oracle: .venv-oracle/.made ## write what TorchRL gives into tests/parity/expected/ (ARGS=--check compares)
	.venv-oracle/bin/python tests/parity/write_expected.py $(ARGS)

pins: .venv/.dev ## write the versions of this environment into images/constraints.txt
	$(BIN)/python images/pin.py

images: ## build the images with docker, podman or buildah (TAG=, REGISTRY=, BASE=, BUILDER=, LOADER=, TARGETS=)
	images/build.sh $(TARGETS)

# Takes KUBECONFIG; without it starts the test cluster beside the checkout. LOADER=kind or k3d for a cluster of theirs.
e2e: .venv/.dev ## build the images, load them, and run the tests that need a cluster (KUBECONFIG=, LOADER=, E2E_TAG=)
	tests/e2e/run.sh $(ARGS)

clean: ## remove what was installed and what runs left
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
