PYTHON ?= python3
BIN := .venv/bin
# The tests' small networks are faster on one thread than on two, so each core runs its own tests.
# A test that ends its process would be repeated in each new one, so no process is restarted.
TESTS := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --max-worker-restart 0

.PHONY: setup demo test test-all test-ray attack docs wheel bench speed evidence

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The demo needs only the core dependencies, which keeps its set-up short on a new machine.
.venv/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

demo: .venv/core
	$(BIN)/offrec demo --out demo

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TESTS) -m 'not all'

test-all: setup
	$(TESTS)

# Ray and its dependencies are large, so these tests have an environment of their own. They take a few minutes.
.venv-ray/ready: pyproject.toml constraints.txt
	test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]' pytest
	touch $@

test-ray: .venv-ray/ready
	OMP_NUM_THREADS=1 .venv-ray/bin/pytest tests/scale/test_ray.py

# Attack offrec with random cases, and kill every writing command before each change of the file system.
CASES ?= 5000
attack: setup
	rm -rf build/attack && mkdir -p build/attack
	OMP_NUM_THREADS=1 $(BIN)/python tests/attack/attack_base.py build/attack/base > build/attack/base.log
	OMP_NUM_THREADS=1 $(BIN)/python tests/attack/crash_points.py build/attack/base --json build/attack/crash_points.json
	OMP_NUM_THREADS=1 $(BIN)/python tests/attack/two_processes.py build/attack/base --json build/attack/two_processes.json
	OMP_NUM_THREADS=1 $(BIN)/python tests/attack/every_value.py build/attack/base --json build/attack/every_value.json
	OMP_NUM_THREADS=1 $(BIN)/python tests/attack/attack.py --base build/attack/base --cases $(CASES) --json build/attack/attack.json

# Build the documentation into site/; warnings are errors. `make test` builds it too, in tests/docs.
docs: setup
	$(BIN)/sphinx-build -q -W --keep-going -b html docs site

wheel: setup
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation

# Measure every figure of the speed page (benchmarks/ledger.py). DATASET is the prepared log retailrocket-sessions, LOG its Parquet
# file, ENVIRONMENTS the folder of the other libraries' environments, BEFORE the source folder of version 0.1 (with its tests and
# benchmarks next to it) and BEFORE_DATASET the log prepared by it; sections that need a missing one keep their earlier figures. NOTE
# is printed with the tables, for example if other work uses the machine.
LEDGER := $(if $(DATASET),--dataset $(DATASET)) $(if $(LOG),--log $(LOG)) $(if $(ENVIRONMENTS),--environments $(ENVIRONMENTS)) $(if $(BEFORE),--before $(BEFORE)) $(if $(BEFORE_DATASET),--before-dataset $(BEFORE_DATASET)) $(if $(NOTE),--note "$(NOTE)") $(if $(ONLY),--only $(ONLY))

bench: setup
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/ledger.py cpu $(LEDGER)

# On a GPU machine, which may have no network: it uses the Python that has torch and triton, and installs nothing.
speed:
	PYTHONPATH=src $(PYTHON) benchmarks/ledger.py gpu $(LEDGER)

# List which files in results/ are current, stale or unstamped. `make evidence STRICT=--strict` fails if a page quotes a stale file.
evidence: setup
	$(BIN)/python benchmarks/list_evidence.py $(STRICT)
