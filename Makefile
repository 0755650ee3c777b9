# Two commands on a fresh machine: `make demo` and `make test`. Each makes the environment that it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
# The GPU extra is taken only where an NVIDIA driver is present.
GPU    := $(shell ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' && echo yes)
EXTRAS := $(if $(GPU),cu13,)

.PHONY: demo test lint typecheck bench ledger clean

demo: $(VENV)/.demo
	$(BIN)/lamina train alexnet --data digits

test: $(VENV)/.test build/cudnn-9.28
	$(BIN)/python -m pytest

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
	$(PIP) install -e '.[data$(if $(EXTRAS),$(comma)$(EXTRAS))]'
	touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[test]'
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

comma := ,
