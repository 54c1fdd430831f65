# Set-up, checks and tests. `make demo` and `make test` work in a fresh clone on Debian with Python 3.11 and make alone:
# they make .venv and, as root, install the missing system packages; otherwise they print the line that does.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The first interpreter that really starts and is new enough; override with `make PYTHON=...`.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
ARGS ?=
# Test processes.
PROCESSES ?= 2
MINUTES ?= 10
# For `deflake`.
N ?= 20
TEST ?=

.DEFAULT_GOAL := help
.PHONY: help install prerequisites demo serve check format quick test test-long gate explore deflake screenshots bench storm overload faults soak soak-short crash-long model-long simulation-long spark-long clean demo-cluster
.NOTPARALLEL:

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: $(STAMP) ## make .venv and install Pushq with all that its checks and tests need

$(STAMP): pyproject.toml setup.py
	@if [ -z "$(PYTHON)" ]; then \
		echo "no Python >= 3.11 found; install with: sudo apt-get install -y python3" >&2; exit 3; fi
	@$(PYTHON) tests/support/prerequisites.py run
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then $(PYTHON) -m venv --clear $(VENV); fi
	@echo "installing Pushq and what it needs into $(VENV), about a minute"
	@# The pip that comes with Python 3.11 takes half as long again; a newer one shows what setuptools warns of.
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --upgrade 'pip>=24,<27'
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile -e '.[test]'
	@touch $@

prerequisites: $(STAMP)
	@$(BIN)/python tests/support/prerequisites.py test

demo: $(STAMP) ## the demo page on http://127.0.0.1:8080/demo, with a server that comes back after a crash
	@exec $(BIN)/pushq demo $(ARGS)

demo-cluster: $(STAMP) ## a cluster on this machine and a page that kills its parts, on http://127.0.0.1:8080
	@$(BIN)/python tests/support/prerequisites.py cluster
	@exec $(BIN)/pushq dev-cluster demo $(ARGS)

serve: $(STAMP) ## a server on ./pushq-data; flags go into ARGS
	@exec $(BIN)/pushq serve $(ARGS)

check: $(STAMP) ## format, lint, types, import directions
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(STAMP) ## write what `check` asks for, where a tool can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

quick: check ## check and the unit tests that start nothing
	@$(BIN)/pytest -q --tier pure --numprocesses $(PROCESSES) --dist worksteal tests/unit $(ARGS)

test: prerequisites ## check, then every test: what needs no machine strictly, the rest patiently
	@$(BIN)/python -m tests.tools.warm & warming=$$!; \
		$(MAKE) --no-print-directory check; code=$$?; wait $$warming; exit $$code
	@$(BIN)/python -m tests.tools.run --processes $(PROCESSES) $(ARGS)

test-long: prerequisites ## the tests that `test` leaves out: more transports, rounds and forms of clusters (tests/long.toml)
	@$(BIN)/python -m tests.tools.run --long --processes $(PROCESSES) $(ARGS)

gate: $(STAMP) ## what is committed, in a fresh clone, as .ci/run does it; ARGS="--hog --times 3"
	@$(BIN)/python -m tests.tools.gate $(ARGS)

explore: prerequisites ## the tests that draw from a seed with new seeds, for MINUTES; ARGS="model" names suites
	@$(BIN)/python -m tests.tools.explore --minutes $(MINUTES) $(ARGS)

deflake: $(STAMP) ## one test N times on a busy machine: TEST=tests/…::test_…
	@$(BIN)/python -m tests.tools.deflake --times $(N) $(ARGS) "$(TEST)"

screenshots: prerequisites ## pictures of each view of the console, light and dark, wide and narrow: artefacts/console/index.html
	@$(BIN)/python -m tests.browser.gallery $(ARGS)

bench: $(STAMP) ## the benchmark, on this machine
	@$(BIN)/python -m tests.bench $(ARGS)

storm: $(STAMP) ## everybody comes back at once: as many clients as this machine has files for; STORM_RECORD=FILE keeps rows
	@STORM_CLIENTS=$${STORM_CLIENTS:-20000} $(BIN)/pytest -s tests/storm $(ARGS)

overload: $(STAMP) ## a minute of twice the load that the server can take
	@OVERLOAD_SECONDS=$${OVERLOAD_SECONDS:-60} $(BIN)/pytest -s tests/overload $(ARGS)

crash-long: $(STAMP) ## many more rounds of SIGKILL under load
	@CRASH_ROUNDS=$${CRASH_ROUNDS:-1000} GATEWAY_KILLS=$${GATEWAY_KILLS:-60} $(BIN)/pytest tests/crash $(ARGS)

model-long: $(STAMP) ## many more examples against the reference queue
	@$(BIN)/pytest tests/model --hypothesis-profile=long $(ARGS)

faults: $(STAMP) ## every fault of clusters of both models under load, within the times that are promised on a quiet machine
	@FAULTS=$${FAULTS:-all} FAULTS_SLACK=$${FAULTS_SLACK:-1} $(BIN)/pytest -s tests/cluster/test_faults.py $(ARGS)

soak: $(STAMP) ## an hour, or SOAK_SECONDS, of faults at random from TEST_SEED, in both models and both modes
	@SOAK_SECONDS=$${SOAK_SECONDS:-3600} $(BIN)/pytest -s tests/cluster/test_faults.py $(ARGS)

soak-short: $(STAMP) ## four minutes of the same
	@SOAK_SECONDS=$${SOAK_SECONDS:-240} $(BIN)/pytest -s tests/cluster/test_faults.py $(ARGS)

simulation-long: $(STAMP) ## many more seeds of the simulated clocks, producers and partitions
	@SIMULATION_SEEDS=$${SEEDS:-500} SIM_SEEDS=$${SEEDS:-500} $(BIN)/pytest tests/simulation $(ARGS)

spark-long: $(STAMP) ## jobs over 50 million rows of the ledger and 10 million of minutes, and a tenth of them; 4 GB of disk
	@$(BIN)/python -m tests.bench.spark_scale $(ARGS)

clean: ## remove .venv and what tools left behind; data folders stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
