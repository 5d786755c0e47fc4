# The entry point for all work. Every target builds what it needs in .venv and build/ and nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 100
FROM ?= 0
STEPS ?= 200
ROUNDS ?=
CELLS ?=
ENSEMBLE ?=
SEED ?=
HOURS ?= 1
MINUTES ?= 5
PART ?= all
PORT ?=
WORKERS ?= 2
BASE ?= HEAD

# Compiled modules are kept, even if PYTHONDONTWRITEBYTECODE is set: without them every
# process that a test starts compiles our sources again, and pytest rewrites every test file in each worker.
unexport PYTHONDONTWRITEBYTECODE

STAMP := $(VENV)/.installed
KERNELS := build/.kernels
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

.PHONY: help demo test quick changed check hooks interop sim chaos soak fuzz bench up clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Millstream needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Millstream and its tools into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,bench]'
	@touch $@

# Without a C compiler this works too (unless MILLSTREAM_REQUIRE_KERNELS=1), in pure Python.
$(KERNELS): $(STAMP) $(wildcard src/millstream/kernels/_compiled/*.p*)
	@mkdir -p build
	@$(BIN)/python setup.py --quiet build_ext --inplace >build/kernels.log 2>&1 \
	  || { cat build/kernels.log; exit 1; }
	@$(BIN)/millstream version 2>/dev/null | grep -q 'kernels *compiled$$' \
	  || echo "kernels: not compiled, using pure Python, about ten times slower (see build/kernels.log)"
	@touch $@

demo: $(KERNELS) ## a self-checking end-to-end example
	@$(BIN)/python -m examples.shop

test: $(KERNELS) ## unit, property and simulation tests with fixed seeds, and tests of real processes
	@$(PYTEST) -m "not interop" --durations=15 --durations-min=5 tests

quick: $(KERNELS) ## unit tests except the slow ones: under a minute and a half on two cores
	@$(PYTEST) -m "not interop and not slow" tests/unit

# The selection is in tests/kits/repository/changed_tests.py. It lists files without tests, or with tests in other targets.
changed: $(KERNELS) ## tests of what differs from the last commit (or from BASE), by path
	@tests=$$(PYTHONPATH=tests $(BIN)/python -m kits.repository.changed $(BASE)); \
	  if test -n "$$tests"; then echo "$$tests"; $(PYTEST) -m "not interop" $$tests; fi

check: $(KERNELS) ## ruff, cython-lint, mypy --strict, stubs against kernels, import-linter, docs
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cython-lint src/millstream/kernels # it calls pycodestyle
	@$(BIN)/mypy
	@$(BIN)/python -m millstream.testing.stubs
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mkdocs build --quiet --strict --site-dir build/site

hooks: $(STAMP) ## let git run ruff on every commit
	@git config core.hooksPath .githooks

interop: $(KERNELS) ## tests with Apache Kafka, its tools, other clients and Spark
	@$(PYTEST) -m interop tests/interop

# With PROOF=1 bugs are planted in the cluster's and the groups' code, one by one, and each must be detected.
sim: $(KERNELS) ## seeds FROM .. FROM+SEEDS of the simulator: PART log, broker, cluster, groups or all
	@$(BIN)/python -m millstream.testing.simulation.run --part $(PART) --seeds $(SEEDS) --from $(FROM) --steps $(STEPS) \
	  $(if $(PROOF),--proof)

# Without ROUNDS: 10 of each, but for Spark the whole matrix: every kill once (CELLS='driver / topic'
# chooses some by name), and for hostile clients every attack once and some random ones (CELLS='keeper').
# ENSEMBLE=1 runs the cluster on three real ZooKeeper servers.
chaos: $(KERNELS) ## ROUNDS of real processes killed or attacked while they work: PART log, broker, spark, cluster, groups, hostile or all
	@$(BIN)/python -m millstream.testing.chaos.run --part $(PART) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(CELLS),--cells "$(CELLS)") $(if $(ENSEMBLE),--ensemble)

soak: $(KERNELS) ## HOURS of simulation and chaos, alternating: PART log, broker or all
	@$(BIN)/python -m millstream.testing.soak --part $(PART) --hours $(HOURS) $(if $(SEED),--seed $(SEED))

# Seeds go up from FROM; the last line of a run says where to go on.
fuzz: $(KERNELS) ## MINUTES of damaged requests for all request parsers, compiled and plain
	@$(BIN)/python -m millstream.testing.fuzz --minutes $(MINUTES) --from $(FROM)

# For broker and cluster: C generators (gcc and librdkafka-dev, installed when missing and root), QUICK=1
# for a short run, CELLS=requests,produce for some groups only. Both are passed as environment variables. For
# Spark the same, with Java and its connector from Maven Central. Hostile has no peer.
bench: $(KERNELS) ## benchmarks against a peer: PART kernels, log, broker, cluster, spark, groups, hostile or all
	@$(if $(filter all broker cluster groups,$(PART)),$(BIN)/python -m bench.broker_generators,true)
	@$(BIN)/python -m bench --part $(PART)

# PORT=0 chooses a free port; without PORT it is 9092, or the one in
# data/broker-1/server.properties.
up: $(KERNELS) ## three brokers (BROKERS=n, or those in ./data) with data in ./data, until Ctrl-C
	@exec $(BIN)/millstream up --data-dir data $(if $(PORT),--port $(PORT)) \
		$(if $(BROKERS),--brokers $(BROKERS),$(if $(wildcard data/broker-1),,--brokers 3))

clean: ## remove everything that the targets built
	rm -rf build $(VENV) src/millstream/kernels/_compiled/*.so src/*.egg-info
	find src tests bench examples -name __pycache__ -prune -exec rm -rf {} +
