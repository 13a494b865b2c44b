# `make help` lists the targets. Only python3 (3.11 or newer), pip and make are needed beforehand.
# pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, ...) are respected, for
# instance to take torch's smaller builds without CUDA.

PYTHON      ?= python3
WORKERS     ?= 2
PYTEST_ARGS ?=
BENCH_ARGS  ?=
TORCH_MIN   ?= 2.4.1
NUMPY_MIN   ?= 1.26.4

# An activated environment is left alone: everything below names its interpreter by path.
unexport VIRTUAL_ENV PYTHONHOME

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test check bench docs test-min clean

# One torch thread for each test worker, or the workers fight over the cores.
PYTEST = OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# pip shows its progress bars on a terminal and keeps quiet in a log.
PIP_INSTALL = quiet=--quiet; [ ! -t 1 ] || quiet=; \
	$(1)/bin/python -m pip install --disable-pip-version-check $$quiet

# $(call ENVIRONMENT,DIR): DIR is a virtual environment with pip and a Python that is new enough.
define ENVIRONMENT
@if $(1)/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
then exit 0; fi; \
command -v $(PYTHON) >/dev/null || { \
	echo "error: there is no '$(PYTHON)' here. Install Python 3.11 or newer," \
	     "or name one: make PYTHON=/path/to/python3" >&2; exit 1; }; \
version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])') || exit 1; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "error: '$(PYTHON)' is Python $$version; vcmm needs 3.11 or newer." \
	     "Name one: make PYTHON=/path/to/python3" >&2; exit 1; }; \
echo "Creating $(1) with Python $$version"; \
$(PYTHON) -m venv --clear $(1) || { rm -rf $(1); \
	echo "error: '$(PYTHON) -m venv' failed, so there is no $(1)." >&2; \
	echo "On Debian and Ubuntu it needs a package of its own:" \
	     "apt install python3-venv (or python$$version-venv)" >&2; exit 1; }
endef

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: .venv/.stamp  ## compare methods on real data, in about two minutes, and write a report
	@.venv/bin/vcmm demo

test: .venv/.stamp  ## run the tests (WORKERS=2, PYTEST_ARGS=)
	@$(call PYTEST,.venv)

check: .venv/.stamp  ## formatting, lint, types
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/pyright --project pyproject.toml

bench: .venv/.stamp  ## measure what the controller costs, as ratios (BENCH_ARGS=)
	@.venv/bin/python benchmarks/overhead.py $(BENCH_ARGS)

docs: .venv/.stamp  ## build docs/_build/html, with warnings as errors
	@.venv/bin/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

test-min: .venv-min/.torch-$(TORCH_MIN)  ## run the tests on the oldest supported torch (large download)
	@$(call PYTEST,.venv-min) -W default

clean:  ## remove caches and build products; the environments stay
	@rm -rf build dist docs/_build .pytest_cache .ruff_cache .hypothesis
	@find . -path './.venv*' -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

.venv/.stamp: pyproject.toml constraints.txt
	$(call ENVIRONMENT,.venv)
	@echo "Installing vcmm and its development tools into .venv; torch is a large download"
	@$(call PIP_INSTALL,.venv) -c constraints.txt -e ".[dev]"
	@touch $@

# Every pin of constraints.txt holds here too, except those of torch and numpy.
.venv-min/.torch-$(TORCH_MIN): pyproject.toml constraints.txt
	$(call ENVIRONMENT,.venv-min)
	@echo "Installing torch $(TORCH_MIN) into .venv-min. On Linux x86 this downloads several GB:"
	@echo "the old releases on PyPI are CUDA builds."
	@grep -Ev '^(torch|numpy)==' constraints.txt >.venv-min/constraints.txt
	@$(call PIP_INSTALL,.venv-min) -c .venv-min/constraints.txt \
		torch==$(TORCH_MIN) numpy==$(NUMPY_MIN) -e ".[test]" || { rm -rf .venv-min; \
		echo "error: an old torch has wheels for the Pythons of its time only" \
		     "(2.4: up to 3.12). Name one: make test-min PYTHON=python3.11" >&2; exit 1; }
	@touch $@
