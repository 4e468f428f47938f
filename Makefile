# One-word targets; each sets up what it needs. `make run` and `make test` are all a newcomer needs.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
SERVING := .venv/.serving
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard $(addprefix src/penstock/format/kernels/*,.pyx .pxi .h))
WORKERS ?= 3
# Markers of tests that need programs of others, or hours; each has a target of its own.
ELSEWHERE := java or node or cpp or browser or etcd or zookeeper or torture or slow
export PYTHONUNBUFFERED := 1
# Where CI decides, a test that fails is run once more before it fails, and the log shows why (RERUN). By hand, a failure
# is a failure.
PYTEST := $(BIN)/python -m pytest $(if $(CI),--reruns 1)
# Bytecode is kept: the tests start hundreds of processes, each of which would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup serving run demo test test-rest test-newcomer test-peers test-failover test-browser test-spark-matrix torture soak sanitize check docs translated dist wheels bench clean

# The developers' environment, about 1.5 GB. It may follow `make run` in the same .venv.
setup: $(STAMP)

# What a broker with its console needs, under 300 MB: no Spark, no Arrow, no test tools.
serving: $(SERVING)

# For developers, kernels that cannot be built are an error where there is a compiler; elsewhere the plain ones run.
KERNELS := $(if $(shell command -v $(CC) 2> /dev/null),compiled,auto)

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "penstock: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt setuptools cython wheel
	PENSTOCK_KERNELS=$(2) $(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[$(1)]'
endef

$(STAMP): $(SOURCES)
	$(call install,all,$(KERNELS))
	tools/ensure-java
	@touch $@

$(SERVING): $(SOURCES)
	$(call install,console,auto)
	@touch $@

run: $(if $(wildcard $(STAMP)),setup,serving)
	$(BIN)/penstock serve

# A broker is killed while a shop sells, and nothing is lost: the whole of it in two minutes, with a page of charts.
demo: setup
	$(BIN)/penstock demo

# Five minutes on two cores: the tests on the compiled kernels, a few with Spark, and the checks beside them.
test: setup
	@mkdir -p .cache
	@$(MAKE) --no-print-directory check > .cache/check.log 2>&1 & checks=$$!; \
	$(PYTEST) -m "not rest and not ($(ELSEWHERE))" -n $(WORKERS) --in-memory -rfER --durations=15; tests=$$?; \
	wait $$checks; checks=$$?; cat .cache/check.log; \
	test $$tests = 0 || echo "make test: the tests failed; see above" >&2; \
	test $$checks = 0 || echo "make test: the checks failed; see above, or run make check" >&2; \
	exit $$((tests || checks))

# What make test leaves out: the plain kernels, the other tests with Spark, more damage, kills and power losses. On disk.
test-rest: setup
	$(PYTEST) -m "rest and not ($(ELSEWHERE))" -n $(WORKERS) -rfER --durations=15

# As a newcomer would: README and quickstart in a clean clone on each Python from 3.11 to 3.13 that is installed, sdist
# and wheel in an empty environment, the demo with Spark, and the pages whose commands serve, or run on a cluster.
test-newcomer: setup
	$(PYTEST) -m slow -rfEsR --durations=10

# Real clients and Apache RocketMQ itself: through Maven, npm and PyPI. Skips, with the reason, what cannot be had.
test-peers: setup
	$(PYTEST) -m "(java or node or cpp) and not (etcd or zookeeper)" -rfEsR

# Failover with real consensus engines: etcd (Debian's etcd-server, or ETCD=/path/to/etcd) and ZooKeeper (through Maven).
# Skips, with the reason, what cannot be had.
test-failover: setup
	$(PYTEST) -m "(etcd or zookeeper) and not (torture or slow)" -rfEsR

# The console's pages in a real Chromium; skipped, with the reason, where there is none. PENSTOCK_SCREENSHOTS=docs/images
# has it write the pictures that the README shows.
test-browser: setup
	$(PYTEST) -m browser -rfEsR tests/browser

# Each supported Spark with each Python from 3.11 to 3.13 that is installed, in environments of its own under .cache, and
# with Delta and Iceberg where they exist for it. uv's cache takes 2.6 GB with the first version. CELLS="4.2.0/3.12
# 4.0.5/3.13" runs these, CELLS=--short a few checks of two; CELLS=--record writes the table of the documents.
CELLS ?=
test-spark-matrix: setup
	$(BIN)/python tools/spark_matrix.py $(CELLS)

# What takes minutes to hours: a million mutated frames, 10,000 damaged stores, kills, power losses, 1,000 failovers,
# thousands of histories of a store beside its model: whatever is marked `torture`. Another seed each time, printed,
# unless PENSTOCK_SEED is set; PENSTOCK_ROUNDS, PENSTOCK_IMAGES, PENSTOCK_DAMAGES, PENSTOCK_FRAMES, PENSTOCK_FAILOVERS
# and PENSTOCK_HISTORIES choose how many. Four workers, also on two cores: half of the tests wait most of their time.
torture: export PENSTOCK_SEED := $(or $(PENSTOCK_SEED),$(strip $(shell od -An -N3 -tu4 /dev/urandom)))
torture: setup
	@echo "PENSTOCK_SEED=$(PENSTOCK_SEED)"
	$(BIN)/python -m pytest -m torture -s -vv -rfE -n 4 --dist worksteal --durations=40

# A broker under load, killed every minute, while retention deletes and Spark reads: MINUTES of it (60). By hand: it
# needs 1 GiB of disk and a quiet machine. Writes bench/results/soak.json and docs/explanation/soak.svg.
MINUTES ?= 60
soak: setup
	$(BIN)/python -m bench soak --minutes $(MINUTES)

# The kernels with AddressSanitizer and UndefinedBehaviorSanitizer: their tests and fuzzers, at most five minutes
# (SANITIZE_SECONDS). Does nothing, and says so, without gcc's sanitizers.
sanitize: setup
	PYTHON=$(BIN)/python tools/sanitize

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The documents as a site, in site/, with the Python API from docstrings. Open site/index.html: it needs no server.
docs: setup
	$(BIN)/zensical build --strict -f mkdocs.yml

# After a change of an English page and of its translation: the Chinese PAGES say what the English ones say now.
translated: setup
	PYTHONPATH=tests $(BIN)/python -m support.translations $(PAGES)

# sdist and wheel, in dist/.
dist: setup
	$(BIN)/python -m build --no-isolation

# sdist and manylinux wheels, in dist/: for PYTHONS, or for each version from 3.11 to 3.13 that is installed.
wheels: setup
	$(BIN)/python tools/build_wheels.py $(addprefix --python ,$(PYTHONS))

# Everything, about an hour on a quiet machine; or ROWS of it by their names, such as goals or send-128b-64.
ROWS ?=
bench: setup
	$(BIN)/python -m bench $(ROWS)

clean:
	rm -rf .venv .cache build dist src/*.egg-info site data penstock-demo.html
	find src -name '*.so' -delete -o -name '_compiled.c' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
