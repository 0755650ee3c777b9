# Two commands on a fresh machine: `make demo` and `make test`. Each makes the environment that it needs.
# `make test` has everything important in it, in about sixteen minutes on two cores; docs/testing.md tells of the others.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
# The GPU extra is taken only where an NVIDIA driver is present, elsewhere the compiler of kernels for the CPU.
GPU    := $(shell ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' && echo yes)
EXTRAS := $(if $(GPU),cu13,cpu)

.PHONY: demo test test-all test-torch sanitize lint typecheck bench ledger clean

# Two processes, each with one thread for its arithmetic, take as long on two cores as the longest half. Each begins
# with a half of the files, so that what the tests of a file share is made once, and takes of the other's when done.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(shell nproc) --dist worksteal
# Bytecode is kept: the processes that tests start, and the next run, need not compile the sources again.
unexport PYTHONDONTWRITEBYTECODE
# The files that compare with PyTorch: to collect the others for it would take a minute.
COMPARING = $(shell grep -rl --include='test_*.py' 'mark\.torch' tests)
# What each run passed and skipped, for tools.ledger and tools.skips.
REPORT  = --junitxml=build/results/$@.xml

demo: $(VENV)/.demo
	$(BIN)/lamina train alexnet --data digits

test: $(VENV)/.test build/cudnn-9.28
	$(PYTEST) $(REPORT)

test-torch: $(VENV)/.torch build/cudnn-9.28
	$(PYTEST) $(REPORT) -m 'torch and not slow and not gpu' $(COMPARING)

test-all: $(VENV)/.torch build/cudnn-9.28
	$(PYTEST) $(REPORT) -m 'slow and not gpu' --durations=20

# The kernels on the CPU under GCC's checks for undefined behaviour and for accesses outside of memory.
sanitize: $(VENV)/.test
	LAMINA_TEST_SANITIZER=undefined $(PYTEST) $(REPORT) -m 'not gpu and not torch' tests/backends/cuda tests/cudnn/test_contest.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m codegen check
	$(BIN)/python -m tools.stubs check

typecheck: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

ledger: $(VENV)/.test
	$(BIN)/python -m tools.ledger

clean:
	rm -rf $(VENV) build dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[data,$(EXTRAS)]'
	touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[test]'
	touch $@

# PyTorch's wheel without CUDA where the index has it under that name; elsewhere the plain one may be just that.
# torchvision, torchaudio, timm and transformers lend networks to convert; what they depend on is here, and would bring CUDA.
$(VENV)/.torch: $(VENV)/.test
	$(PIP) install 'torch==2.13.0+cpu' || $(PIP) install 'torch==2.13.0'
	$(PIP) install -e '.[test,torch]' einops pyyaml transformers
	$(PIP) install --no-deps 'torchvision==0.28.0' 'torchaudio==2.11.0' 'timm>=1.0'
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[dev]'
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) install -e '.[dev,torch]'
	touch $@

# A second, newer cuDNN: the binding must load and gate every version from 9.0 on.
build/cudnn-9.28: | $(BIN)/python
	$(PIP) install --no-deps --target $@.part nvidia-cudnn-cu13==9.28.0.42
	mv $@.part $@
