# One-word targets; each sets up what it needs. `make run` and `make test` are all a newcomer needs.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
WORKERS ?= 3
# Markers of tests that need programs of others, or hours; each has a target of its own.
ELSEWHERE := java or node or cpp or browser or torture or slow
export PYTHONUNBUFFERED := 1
# Bytecode is kept: the tests start hundreds of processes, each of which would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run demo test test-rest test-newcomer test-peers test-browser torture sanitize check docs dist bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard $(addprefix src/penstock/format/kernels/*,.pyx .pxi .h))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "penstock: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt setuptools cython wheel
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[all]'
	tools/ensure-java
	@touch $@

run: setup
	$(BIN)/penstock serve

# A broker is killed while a shop sells, and nothing is lost: the whole of it in two minutes, with a page of charts.
demo: setup
	$(BIN)/penstock demo

# Five minutes on two cores: the tests on the compiled kernels, a few with Spark, and the checks beside them.
test: setup
	@mkdir -p .cache
	@$(MAKE) --no-print-directory check > .cache/check.log 2>&1 & checks=$$!; \
	$(BIN)/python -m pytest -m "not rest and not ($(ELSEWHERE))" -n $(WORKERS) --in-memory --durations=15; tests=$$?; \
	wait $$checks; checks=$$?; cat .cache/check.log; \
	test $$tests = 0 || echo "make test: the tests failed; see above" >&2; \
	test $$checks = 0 || echo "make test: the checks failed; see above, or run make check" >&2; \
	exit $$((tests || checks))

# What make test leaves out: the plain kernels, the other tests with Spark, more damage, kills and power losses. On disk.
test-rest: setup
	$(BIN)/python -m pytest -m "rest and not ($(ELSEWHERE))" -n $(WORKERS) --durations=15

# As a newcomer would: README and quickstart in a clean clone, sdist and wheel in an empty environment, the demo with
# Spark, and the pages whose commands serve, or run on a cluster.
test-newcomer: setup
	$(BIN)/python -m pytest -m slow -rs --durations=10

# Real clients and Apache RocketMQ itself: through Maven, npm and PyPI. Skips, with the reason, what cannot be had.
test-peers: setup
	$(BIN)/python -m pytest -m "java or node or cpp" -rs

# The console's pages in a real Chromium; skipped, with the reason, where there is none. PENSTOCK_SCREENSHOTS=docs/images
# has it write the pictures that the README shows.
test-browser: setup
	$(BIN)/python -m pytest -m browser -rs tests/browser

# What takes minutes to hours: a million mutated frames, kills, power losses, damage: whatever is marked `torture`. Prints
# its seeds; PENSTOCK_SEED, PENSTOCK_ROUNDS, PENSTOCK_IMAGES, PENSTOCK_DAMAGES and PENSTOCK_FRAMES choose others, and how
# many.
torture: setup
	$(BIN)/python -m pytest -m torture -s

# The kernels with AddressSanitizer and UndefinedBehaviorSanitizer: their tests and fuzzers, at most five minutes
# (SANITIZE_SECONDS). Does nothing, and says so, without gcc's sanitizers.
sanitize: setup
	PYTHON=$(BIN)/python tools/sanitize

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The documents as a site, in site/.
docs: setup
	$(BIN)/zensical build --strict -f mkdocs.yml

# sdist and wheel, in dist/.
dist: setup
	$(BIN)/python -m build --no-isolation

bench: setup
	$(BIN)/python -m bench

clean:
	rm -rf .venv .cache build dist src/*.egg-info site data penstock-demo.html
	find src -name '*.so' -delete -o -name '_compiled.c' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
