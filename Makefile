# Two commands for a fresh clone: `make run` and `make test`. Both make their own virtual environment.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test lint docs clean

run: $(READY)
	$(BIN)/gossamer compare

test: lint
	$(BIN)/pytest -n 2 --cov --cov-report=term --cov-fail-under=95

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python -m gossamer.reference docs/experiment.md

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
