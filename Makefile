# Every target sets up what it needs: Python 3.10 or newer and Java 17 or newer are all that must
# be there. A second run finds everything in .venv and starts at once.

.DEFAULT_GOAL := help
.PHONY: help setup stores screenshots demo test test-fast test-thorough simulate exhaustive differential fuzz chaos test-matrix test-environments smoke lint bench docs clean
.DELETE_ON_ERROR:
SHELL := /bin/sh
# Some images forbid it, and then each of a thousand processes compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
JARS := $(VENV)/.jars
KAFKA := $(VENV)/.kafka
S3 := $(VENV)/.s3
STORES := $(VENV)/.stores
BENCH := $(VENV)/.bench
DOCS := $(VENV)/.docs
BROWSER := $(VENV)/.browser
PROMETHEUS := $(VENV)/.prometheus

# How many tests run at once: each worker has a JVM of a gigabyte or more, and often waits for it.
WORKERS := 3

# Which part of the slow tests that quote no guarantee: 0 to 11 or all; empty: the commit's.
SHARD :=

# How many inputs `make fuzz` tries.
INPUTS := 120000

# Arguments of `make bench`, `make chaos`, `make simulate` and others, for example: make bench ARGS='--quick --only a,b'
ARGS :=

help: ## list the targets
	@echo "make demo    run the example from end to end"
	@echo "make test    run the tests: all that quote a guarantee, and a twelfth of the other slow ones"
	@echo "             (SHARD=all: all of them; WORKERS=3: how many at once)"
	@echo "make test-fast  those that need no JVM (a minute)"
	@echo "make test-thorough  all tests with every matrix in full (CONTRIBUTING.md says what that adds)"
	@echo "make bench   measure it beside its peers (three hours or so; ARGS=--quick: a few minutes)"
	@echo "make fuzz    120,000 broken inputs to everything that is parsed (INPUTS= another number)"
	@echo "make simulate  10,000 random histories of crashes and lost answers (three minutes; ARGS=--help)"
	@echo "make differential  random topologies against plain Python (100 programs; ARGS='--seeds 1000';"
	@echo "                   ARGS=--sources: files of strangers against an independent reader)"
	@echo "make exhaustive  every state of small worlds around the core (some minutes; ARGS=--help)"
	@echo "make chaos   kill everything at random and judge the tables (five minutes; see ARGS=--help)"
	@echo "make test-matrix  the same tests on every Spark, Python and Java (hours; ARGS=--quick: fewer)"
	@echo "make test-environments  install the wheel beside each Spark, with pip and with uv"
	@echo "make smoke   an empty environment: install the wheel, first batch, spark-submit by wheel and zip"
	@echo "make screenshots  draw the pictures of docs/dashboard.md, and record its run anew"
	@echo "make docs    build the site of the documentation into build/site, and check its links"
	@echo "make lint    check format, style, types and who imports whom"
	@echo "make stores  install the servers of remote storage for test-thorough (needs npm and Go)"
	@echo "make setup   set up only (the others do so themselves)"
	@echo "make clean   delete what set-up and runs have made in this folder"

setup: $(JARS) $(KAFKA) $(S3) $(BROWSER) $(PROMETHEUS)

demo: $(JARS) ## run the example
	@$(PY) -m examples.demo

test: $(JARS) $(KAFKA) $(S3) $(BROWSER) $(PROMETHEUS) ## run the tests
	@TXN_TEST_SHARD=$(SHARD) $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-fast: $(STAMP) ## the tests that need no JVM
	@$(PY) -m pytest -q -n auto --dist worksteal -m fast

test-thorough: $(JARS) $(KAFKA) $(S3) $(STORES) $(BROWSER) $(PROMETHEUS) ## all tests, nothing left short
	@TXN_TEST_THOROUGH=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

fuzz: $(STAMP) ## broken inputs to everything that is parsed
	@TXN_FUZZ_INPUTS=$(INPUTS) $(PY) -m pytest -q -n 2 tests/fuzz

simulate: $(STAMP) ## the simulation (docs/simulation.md): 10,000 seeds, or as ARGS says
	@$(PY) -m tests.simulation $(ARGS)

differential: $(JARS) ## random topologies against plain Python (docs/differential.md): 100, or as ARGS says
	@$(PY) -m tests.differential $(ARGS)

exhaustive: $(STAMP) ## every state of small worlds around the core (docs/simulation.md)
	@$(PY) -m tests.exhaustive $(ARGS)

bench: $(JARS) $(BENCH) ## benchmarks: table, charts and raw figures in build/bench
	@$(PY) -m tests.benchmarks $(ARGS)

chaos: $(JARS) $(KAFKA) ## faults for five minutes: the history and a report in build/chaos
	@$(PY) -m tests.chaos $(ARGS)

test-matrix: $(JARS) $(KAFKA) $(S3) ## every Spark, Python and Java that go together
	@$(PY) -m tests.matrix $(ARGS)

test-environments: $(STAMP) ## install the wheel where users have Spark, with pip and with uv
	@$(PY) -m tests.matrix.environments $(ARGS)

smoke: $(STAMP) ## from pip install to the first committed batch, in an empty environment
	@$(PY) -m tests.matrix.smoke $(ARGS)

screenshots: $(JARS) $(BROWSER) $(PROMETHEUS) ## the pictures of docs/dashboard.md, and its recorded run
	@$(PY) -m tests.dashboard.screenshots

docs: $(DOCS) ## the site of the documentation, in build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo "Open build/site/index.html, or serve it: $(PY) -m mkdocs serve"

stores: $(S3) $(STORES) ## the servers of remote storage that tests start

lint: $(STAMP) ## static checks
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

clean: ## delete what was made here
	rm -rf $(VENV) .txn data warehouse spark-warehouse build dist
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The Python environment. Rebuilt when pyproject.toml changes.
$(STAMP): pyproject.toml
	@say() { printf '\n%s\n' "$$*" | fold -s -w 100 >&2; }; \
	python=; \
	for name in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10; do \
	  if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then \
	    python=$$name; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  say "No Python 3.10 or newer was found on the PATH (python3 there: $$(python3 --version 2>/dev/null || echo none))." \
	      "Install one (Debian or Ubuntu: apt install python3 python3-venv; macOS: brew install" \
	      "python), or name it: make PYTHON=/path/to/python3 ..."; \
	  exit 1; \
	fi; \
	java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	major=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	if [ "$${major:-0}" -lt 17 ]; then \
	  say "Spark needs Java 17 or newer; $$java is $${major:-not there}$${major:+, too old}" \
	      "(JAVA_HOME is $${JAVA_HOME:-not set}). Install one (Debian or Ubuntu: apt install" \
	      "openjdk-17-jre-headless; macOS: brew install openjdk@17), or point JAVA_HOME at one."; \
	  exit 1; \
	fi; \
	if [ ! -x $(PY) ] && ! "$$python" -m venv $(VENV) >.venv.log 2>&1; then \
	  tail -n 5 .venv.log >&2; rm -rf $(VENV) .venv.log; \
	  say "$$python could not make the virtual environment $(VENV). On Debian and Ubuntu its venv" \
	      "module is a package of its own: apt install python3-venv"; \
	  exit 1; \
	fi; \
	rm -f .venv.log; \
	echo "Installing into $(VENV) (once; a minute or two) ..."; \
	if ! $(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev,examples]' </dev/null; then \
	  say "pip could not install the project's packages; its own words stand above. Most often" \
	      "there is no network, or a proxy or mirror must be set (pip config set global.index-url" \
	      "..., or PIP_INDEX_URL). Then run make again: it goes on where it stopped."; \
	  exit 1; \
	fi; \
	touch $(STAMP)

# Delta's jars and the archive of Spark's classes (see txn/session.py). Java is checked there.
$(JARS): $(STAMP)
	@echo "Fetching Delta's jars and preparing Java's class archive (once; half a minute) ..."
	@$(PY) -m txn.session </dev/null
	@touch $(JARS)

# What only the tests need: Kafka's broker, and Spark's source for it.
$(KAFKA): $(STAMP)
	@echo "Fetching the jars of Kafka's broker and client for the tests (once; a minute) ..."
	@$(PY) -m tests.spouts.kafka_broker </dev/null
	@touch $(KAFKA)

# What only the tests need: an S3 server, and the jars with which Spark reaches it.
$(S3): $(STAMP)
	@echo "Fetching the jars of an S3 server and of Spark's S3 client for the tests (once; two minutes) ..."
	@$(PY) -m tests.stores.s3 </dev/null
	@touch $(S3)

# What only the tests need: Chromium (installed if this is root on Debian or Ubuntu), and axe-core and pyright, which npm fetches.
$(BROWSER): $(STAMP)
	@echo "Looking for Chromium, axe-core and pyright for the tests (once; a minute) ..."
	@$(PY) -m tests.dashboard.browser </dev/null
	@$(PY) -m pyright --version </dev/null >/dev/null
	@touch $(BROWSER)

# What only the tests need: a Prometheus server (Debian's package, if this is root on Debian or Ubuntu).
$(PROMETHEUS): $(STAMP)
	@echo "Looking for Prometheus for the tests of metrics (once; half a minute) ..."
	@$(PY) -m tests.metrics.server </dev/null
	@touch $(PROMETHEUS)

# What only `make test-thorough` needs: Azure's, Google's, HDFS's and a second S3 server. Node 20 and Go are
# asked for by their installers.
$(STORES): $(STAMP)
	@echo "Installing servers of Azure, Google, HDFS and S3 for the tests (once; five minutes) ..."
	@$(PY) -m tests.stores.hdfs </dev/null
	@$(PY) -m tests.stores.azure </dev/null
	@$(PY) -m tests.stores.versity </dev/null
	@$(PY) -m tests.stores.gcs </dev/null
	@touch $(STORES)

# What only the site of the documentation needs.
$(DOCS): $(STAMP)
	@echo "Installing what builds the site of the documentation (once; half a minute) ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[docs]' </dev/null
	@touch $(DOCS)

# What only the charts of the benchmarks need.
$(BENCH): $(STAMP)
	@echo "Installing what draws the charts of the benchmarks (once; half a minute) ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[bench]' </dev/null
	@touch $(BENCH)
