# One-word targets; each sets up what it needs. `make run` and `make test` are all a newcomer needs.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
export PYTHONUNBUFFERED := 1

.PHONY: setup run test test-peers check bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard src/penstock/format/kernels/*.p[yx][xi])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "penstock: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt setuptools cython wheel
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[all]'
	tools/ensure-java
	@touch $@

run: setup
	$(BIN)/penstock tour

test: check
	$(BIN)/python -m pytest -m "not java and not node and not torture"

# Needs Maven, and Apache RocketMQ's published artifacts through it; skips with the reason where they cannot be had.
test-peers: setup
	$(BIN)/python -m pytest -m "java or node" -rs

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: setup
	$(BIN)/python -m bench

clean:
	rm -rf .venv build dist src/*.egg-info site data
	find src -name '*.so' -delete -o -name '_compiled.c' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
