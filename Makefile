# Every target makes the virtual environment that it needs; nothing has to be installed before.
#   make test                                    in .venv, made with python3
#   make test VENV=.venv-313 PYTHON=python3.13   elsewhere, with another Python

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

BIN := $(VENV)/bin
# A file is run by one worker, so that what its tests share is made once.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations 20
PIP_INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PRECIOUS: $(VENV)/.installed-%
.PHONY: help venv demo test test-slow test-compiled test-newest lint docs notebooks benchmark clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s  %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

venv: $(VENV)/.installed-dev  ## make the virtual environment with everything for development

demo: $(VENV)/.installed-examples  ## sample the paper's toy Gaussian with every method
	$(BIN)/python examples/toy_gaussian.py

test: $(VENV)/.installed-test $(VENV)/.installed-particles  ## run the tests that are not slow
	$(PYTEST)

# What is run in Python and compiled: whole runs against exact answers.
COMPILED_TESTS := $(addprefix tests/statistical/test_,toy_gaussian.py random_effects.py)

# Some of them with SLOW="FILES", all but some with EXCEPT="FILES".
test-slow: $(VENV)/.installed-test  ## run the slow statistical tests
	$(PYTEST) -m slow $(SLOW) $(addprefix --ignore=,$(EXCEPT))

test-compiled: $(VENV)/.installed-test  ## run whole runs with compiled steps
	PYMC_APM_COMPILE=1 $(PYTEST) -m "slow or not slow" $(COMPILED_TESTS)

# What hooks into PyMC. Not in .ci/run: that somebody else has released something is no failure of a change.
NEWEST_TESTS := $(addprefix tests/test_,hooks.py claims.py interoperation.py copies.py potential.py)

test-newest:  ## try the newest PyMC that can be installed, in .venv-newest, supported or not
	$(MAKE) --no-print-directory VENV=.venv-newest .venv-newest/.installed-test
	.venv-newest/bin/python -m pip install -q --disable-pip-version-check --pre --upgrade --upgrade-strategy eager pymc
	.venv-newest/bin/python -c "import pymc; print('PyMC', pymc.__version__)"
	.venv-newest/bin/python -m pytest -n $(WORKERS) $(NEWEST_TESTS)

lint: $(VENV)/.installed-dev  ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pymc_apm

docs: $(VENV)/.installed-docs  ## build the documentation, and execute the notebooks that changed
	$(BIN)/python -m sphinx -W --keep-going -E -a -q -b html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html
	@echo "open docs/_build/html/index.html"

notebooks: $(VENV)/.installed-docs  ## execute the notebooks
	$(BIN)/python examples/notebooks.py run

benchmark: $(VENV)/.installed-examples  ## time the samplers against PyMC's own
	$(BIN)/python examples/benchmark.py

clean:  ## delete the virtual environments, caches and build products
	@for venv in $(VENV) .venv-pymc5 .venv-pymc6 .venv-newest; do \
		if [ -e "$$venv/.made-by-make" ]; then rm -rf "$$venv"; fi; \
	done
	rm -rf build dist docs/_build docs/notebooks .mypy_cache .pytest_cache .ruff_cache
	find pymc_apm tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made-by-make:
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The package particles asks for an old numpy, but works with the one that PyTensor needs.
$(VENV)/.installed-particles: $(VENV)/.installed-test
	$(PIP_INSTALL) joblib scikit-learn
	$(PIP_INSTALL) --no-deps particles
	@touch $@

# One stamp for each extra of pyproject.toml: installed again when that file changes.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.made-by-make
	$(PIP_INSTALL) -e ".[$*]"
	@touch $@

# The extra dev has all others in it.
$(VENV)/.installed-dev: pyproject.toml $(VENV)/.made-by-make
	$(PIP_INSTALL) -e ".[dev]"
	@touch $(addprefix $(VENV)/.installed-,examples test docs dev)
