# Needs git, make and a python3 that has venv; everything else goes into .venv.
#
# Torch is chosen when .venv is made and left alone afterwards (delete .venv to choose again):
#   make install TORCH="torch --index-url https://download.pytorch.org/whl/cu126"    another build
#   make install TORCH=                                                              .venv has one already
# It comes first because a range would bring the newest, and is not in constraints.txt because a pin there would
# fight the build you bring. So would sympy and setuptools, on which releases of torch disagree.

PYTHON = python3
TORCH = torch==2.13.0 sympy==1.14.0 setuptools==84.2.1

BIN := .venv/bin
PIP := $(BIN)/python -m pip install

COUNT = 200
SETTINGS = 20

.PHONY: help install car test docs crash-test constraints

help:
	@echo 'make install      set up .venv (PYTHON=python3.12 and TORCH=... choose others than the usual)'
	@echo 'make car          set up, then train the car'
	@echo 'make test         set up, then lint, check types, build the documentation and run the tests'
	@echo 'make docs         set up, then build the documentation into build/docs'
	@echo 'make crash-test      kill runs at random and resume them, COUNT=200 times, and agents with SETTINGS=20 draws of settings; ends with a table'
	@echo 'make constraints  pin the newest release of every dependency anew'

install: .venv/installed

car: install
	$(BIN)/python -m td3_lightning fit --config car.yaml

# Small networks slow down when two test workers have more threads than there are cores.
test: .venv/installed-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(MAKE) docs
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

# -E reads every page anew, so that a change of a docstring is seen.
docs: .venv/installed-for-tests
	$(BIN)/python -m sphinx -q -E -W --keep-going docs build/docs

crash-test: .venv/installed-for-tests
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/support/crash_test.py $(COUNT) --settings $(SETTINGS)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/support/faulty_disk.py

# The files touched below are stamps, made last: a set-up that was interrupted runs again.
.venv/installed: .venv/torch pyproject.toml constraints.txt
	$(PIP) --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/installed-for-tests: .venv/torch pyproject.toml constraints.txt
	$(PIP) --quiet --constraint constraints.txt --editable '.[docs,test]'
	@touch .venv/installed $@

.venv/torch: | $(BIN)/pip
	$(if $(TORCH),$(PIP) $(TORCH))
	@touch $@

$(BIN)/pip:
	$(PYTHON) -m venv .venv

# What torch alone brings to a GPU belongs to its build, and is left out with it.
constraints: .venv/torch
	$(PIP) --quiet uv
	printf '%s\n' $(TORCH) | $(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.10 \
		--constraints - --no-annotate --custom-compile-command 'make constraints' --quiet > .venv/pins
	grep -Ev '^(torch|sympy|setuptools|triton|nvidia-.*|cuda-.*)==' .venv/pins > constraints.txt
