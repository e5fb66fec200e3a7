SHELL := /bin/sh
# The first interpreter that is new enough; `make PYTHON=…` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && echo $$python && break; done)
BIN := .venv/bin
STAMP := .venv/.stamp

.PHONY: help demo test containers check bench verify clean

help:
	@echo 'make demo    watch duplicates being stopped while nodes and workers die'
	@echo 'make test    run the tests on real servers'
	@echo 'make containers  run real workers and nodes in Docker, disturb them, and count'
	@echo 'make check   lint, format, types'
	@echo 'make bench   measure'
	@echo 'make verify  models, simulation, chaos: minutes of faults, and a table'
	@echo 'make clean   remove .venv and everything else that was built'

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo 'Python 3.10 or newer is needed' >&2; exit 1; }
	$(PYTHON) -m venv .venv || $(PYTHON) -m virtualenv .venv || uv venv --seed --python $(PYTHON) .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/dramatiq-idem demo --report build/demo.html $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest --cov --cov-report=term $(ARGS)

containers: $(STAMP)
	$(BIN)/python -m pytest -m containers tests/containers $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy redlock dramatiq_idem $(wildcard tests/unit/typing_api.py)

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks $(ARGS)

verify: $(STAMP)
	$(BIN)/python -m tests.verify $(ARGS)

clean:
	rm -rf .venv build dist htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
