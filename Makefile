.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup test soak mutants lint format docs reference sim bench demo lock clean java

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests are independent of each other. Many of them wait for real processes: three at a time keep two cores busy.
JOBS ?= 3
PYTEST_ARGS ?=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with everything pinned; instant when nothing changed

PYTEST := $(BIN)/pytest -n $(JOBS) --durations 10

# A file stays with one process, which starts its cluster once; those that start clusters come first.
test: setup ## Run the test suite
	@$(PYTEST) --dist loadfile --no-loadscope-reorder -m "not soak" $(PYTEST_ARGS)

soak: setup ## Run the tests that take long
	@$(PYTEST) --dist worksteal -m soak --timeout 600 $(PYTEST_ARGS)

# One edit at a time meets the tests that belong to its file, until SECONDS are over; SEED draws the same ones
# again, FILES='zk/*,worker/reads/reads.py' draws from some, ONLY=NAME tries one, QUICK=1 starts no cluster.
SECONDS ?= 600

mutants: setup ## Count which slips of the hand the tests notice, in a sample of edits
	@$(BIN)/python -m tests.mutants --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) \
		$(if $(FILES),--files '$(FILES)') $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick)

lint: setup ## Check style, formatting, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: setup ## Format the code and fix what can be fixed mechanically
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# A link that leads nowhere, or a page that the navigation lacks, fails the build.
docs: setup ## Build the documentation site into build/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in build/docs; look at it with: $(BIN)/python -m http.server --directory build/docs"

reference: setup ## Write the pages of docs/reference/ from the code
	@$(BIN)/python -m docs.generate

sim: setup ## Run 300 seeds of the deterministic simulator
	@$(BIN)/stretto sim --seeds 300

bench: setup ## Measure the log, the state, replication and the simulator against their floors
	@$(BIN)/stretto bench

demo: setup ## Run a cluster, an example module and a load, and show what happens
	@$(BIN)/stretto demo

COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: setup ## Resolve the dependencies of pyproject.toml anew into the lock files
	@$(COMPILE) --upgrade --output-file requirements.lock
	@$(COMPILE) --upgrade --group dev --constraint requirements.lock --output-file requirements-dev.lock

clean: ## Remove .venv, caches and build products
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A candidate counts only if it runs: a version manager's shim may exist for a Python that is not active.
PYTHONS := python3.14 python3.13 python3.12 python3.11 python3

define FIND_PYTHON
python=; unusable=; \
for candidate in $(if $(PYTHON),"$(PYTHON)",$(PYTHONS)); do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	if "$$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; \
	then python=$$candidate; break; else unusable=$${unusable:-$$candidate}; fi; \
done; \
if [ -z "$$python" ] && [ -n "$$unusable" ]; then \
	echo "$$unusable cannot create virtual environments; install that part with: apt-get install $$unusable-venv" >&2; exit 1; \
elif [ -z "$$python" ]; then \
	echo "stretto needs Python 3.11 or newer; install it with: apt-get install python3 python3-venv" >&2; exit 1; \
fi
endef

# Build isolation would fetch build tools that no lock pins; so the one that dependencies need goes first.
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-build-isolation

$(STAMP): requirements-dev.lock pyproject.toml | java
	@$(BIN)/python -c 'import pip' >/dev/null 2>&1 || { $(FIND_PYTHON); "$$python" -m venv --clear $(VENV); }
	@echo "Installing the pinned dependencies into $(VENV)"
	@awk '/^[^ #]/ { wanted = /^setuptools==/ } wanted' requirements-dev.lock > $(VENV)/setuptools.lock
	@$(PIP_INSTALL) --require-hashes --requirement $(VENV)/setuptools.lock
	@$(PIP_INSTALL) --require-hashes --requirement requirements-dev.lock
	@$(PIP_INSTALL) --no-deps --editable .
	@touch $@

# Spark and the embedded ZooKeeper run on the JVM. Like Spark, prefer JAVA_HOME to PATH.
java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "stretto needs Java 17 or newer; install it with: apt-get install openjdk-17-jre-headless" >&2; exit 1; \
	fi
