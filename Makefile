# Requires git, make and python3 with venv. Everything else is installed into .venv.
#
# PyTorch is installed once, when .venv is created. Delete .venv to choose another build:
#   make install TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"  without CUDA
#   make install TORCH="torch --index-url https://download.pytorch.org/whl/cu126"        another build
#   make install TORCH=                                                                  keep the PyTorch in .venv
# It is installed before the package, because the package's version range would select the newest release. constraints.txt does
# not pin torch, sympy and setuptools, because a pin could conflict with the chosen build.

PYTHON = python3
TORCH = torch==2.13.0 sympy==1.14.0 setuptools==84.2.1

BIN := .venv/bin
PIP := $(BIN)/python -m pip install
# uv installs the other packages ten times as fast as pip and keeps the installed PyTorch. pip installs them if uv cannot: uv
# does not read the settings of pip, such as another package index.
UV := $(BIN)/uv pip install --system-certs --python $(BIN)/python
PINNED = --quiet --constraint constraints.txt --editable

SITE = 'import sysconfig; print(sysconfig.get_path("purelib"))'
EXTRAS = $(shell sed -n '/optional-dependencies/,/^$$/s/^\([a-z]*\) = .*/\1/p' pyproject.toml)
COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.10 --constraints - --no-annotate \
	--custom-compile-command 'make constraints' --quiet
UNPINNED = '^(torch|sympy|setuptools|triton|nvidia-.*|cuda-.*)=='

COUNT = 200
SETTINGS = 20
RANKS = 1
CHECKS = types docs

.PHONY: help install car test types test-without-fast test-robotics coverage docs crash-test ray-test findings constraints

help:
	@echo 'make install      create .venv and install the package (PYTHON=python3.12 and TORCH=... choose other versions)'
	@echo 'make car          install, then train the car'
	@echo 'make test         install the test tools, lint, check types, build the documentation, run the tests'
	@echo 'make test-without-fast  run the tests in a copy of the repository without td3_lightning/fast'
	@echo 'make test-robotics  run the tests of dm_control and Gymnasium-Robotics with an older mujoco, in build/robotics'
	@echo 'make coverage     run the tests, and print the lines and branches that they do not reach'
	@echo 'make types        install the test tools, then check the types'
	@echo 'make docs         install the test tools, then build the documentation into build/docs'
	@echo 'make crash-test   kill runs at random COUNT=200 times and resume them, also with SETTINGS=20 random settings'
	@echo '                  RANKS=2 COUNT=50 kills single ranks of runs with two processes instead'
	@echo 'make ray-test     install Ray, and run sweeps on two nodes of this machine that are killed'
	@echo 'make findings     show surprising behaviour of libraries, each in a virtual environment of its own (see findings/README.md)'
	@echo 'make constraints  pin the newest release of every dependency'

install: .venv/installed

car: install
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m td3_lightning fit --config car.yaml

# Small networks slow down when two test workers have more threads than there are cores.
test: .venv/installed-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(MAKE) --jobs 2 $(CHECKS)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

types: .venv/installed-for-tests
	$(BIN)/mypy

# The package trains without its optional part. tests/test_architecture.py runs a short selection in the same way.
test-without-fast: .venv/installed-for-tests
	rm -rf build/without-fast && mkdir -p build/without-fast
	tar --exclude-vcs --exclude=./.venv --exclude=./build --exclude=fast -cf - . | tar -xf - -C build/without-fast
	cd build/without-fast && PYTHONPATH=$(CURDIR)/build/without-fast OMP_NUM_THREADS=1 ../../$(BIN)/pytest -n 2 --dist worksteal

# Without the extra, pytest collects no test of this file, and fails.
test-robotics: build/robotics/installed
	build/robotics/bin/python -m pip check
	OMP_NUM_THREADS=1 build/robotics/bin/python -m pytest tests/envs/test_robotics.py

# pyproject.toml has the settings. They include the child processes of the tests.
coverage: .venv/installed-for-tests
	mkdir -p build
	$(PIP) --quiet coverage==7.17.5 pytest-cov==7.1.0
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=
	$(BIN)/python -m coverage report

# -E reads every page again, because Sphinx does not notice changed docstrings.
docs: .venv/installed-for-tests
	$(BIN)/python -m sphinx -q -E -W --keep-going docs build/docs

ifeq ($(RANKS),2)
crash-test: .venv/installed-for-tests
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/support/rank_crash_test.py $(COUNT)
else
crash-test: .venv/installed-for-tests
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/support/crash_test.py $(COUNT) --settings $(SETTINGS)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/support/faulty_disk.py
endif

# Ray takes 240 MB, so `make test` does not install it and skips this test.
ray-test: .venv/installed-for-tests
	$(PIP) --quiet --constraint constraints.txt --editable '.[ray]'
	$(BIN)/pytest tests/integration/test_ray.py

# Each script installs its own pinned packages. It fails if the behaviour that it shows has changed.
findings:
	@failed=0; for script in findings/*.sh; do echo "$$script"; bash "$$script" || failed=1; done; exit $$failed

# The files touched below are stamps. They are touched last, so an interrupted installation runs again.
.venv/installed: .venv/torch pyproject.toml constraints.txt
	$(UV) $(PINNED) . || $(PIP) $(PINNED) .
	@touch $@

.venv/installed-for-tests: .venv/torch pyproject.toml constraints.txt
	$(UV) $(PINNED) '.[docs,test]' || $(PIP) $(PINNED) '.[docs,test]'
	@touch .venv/installed $@

# A second environment, because .venv keeps the mujoco of the published results. It imports all other packages from .venv.
# uv cannot see those, so it installs the pinned packages alone, and `make test-robotics` checks that none is missing.
build/robotics/installed: .venv/installed-for-tests constraints-robotics.txt
	rm -rf build/robotics
	$(BIN)/python -m venv --without-pip build/robotics
	$(BIN)/python -c $(SITE) > $$(build/robotics/bin/python -c $(SITE))/venv.pth
	$(BIN)/uv pip install --system-certs --python build/robotics/bin/python --quiet --no-deps \
		--requirement constraints-robotics.txt --editable . \
		|| build/robotics/bin/python -m pip install --quiet --no-compile --constraint constraints-robotics.txt --editable '.[robotics]'
	@touch $@

.venv/torch: | $(BIN)/pip
	$(if $(TORCH),$(PIP) --no-compile $(TORCH))
	-$(PIP) --quiet uv==0.13.9
	@touch $@

$(BIN)/pip:
	$(PYTHON) -m venv .venv

# The GPU packages of torch belong to its build and are not pinned either. The extra robotics requires an older mujoco, so
# its pins have their own file.
constraints: .venv/torch
	printf '%s\n' $(TORCH) | $(COMPILE) $(addprefix --extra=,$(filter-out robotics,$(EXTRAS))) > .venv/pins
	grep -Ev $(UNPINNED) .venv/pins > constraints.txt
	(printf '%s\n' $(TORCH); grep -v '^mujoco' constraints.txt) | $(COMPILE) --extra=robotics > .venv/pins
	grep -Ev $(UNPINNED) .venv/pins | grep -vxF "$$(grep '==' constraints.txt)" > constraints-robotics.txt
