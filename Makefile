# Two commands for a fresh clone: `make run` and `make test`. Both make their own virtual environment.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test lint bench which-method docs clean

run: $(READY)
	$(BIN)/gossamer compare

test: lint
	$(BIN)/pytest -n 2 --cov --cov-report=term --cov-fail-under=95

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The table of docs/benchmarks.md, against the loop an expert would write (ten minutes, on a quiet machine).
bench: $(READY)
	$(BIN)/python -m benchmarks --out docs/tables/benchmarks.md

# The tables of docs/which-method.md: every method, measured. The second one needs MNIST (about half an hour in all).
which-method: $(READY)
	rm -rf runs/which-method-digits runs/which-method-mnist
	$(BIN)/gossamer compare experiments/which-method-digits.toml --out runs/which-method-digits
	$(BIN)/gossamer compare experiments/which-method-mnist.toml --out runs/which-method-mnist
	cp runs/which-method-digits/table.md docs/tables/which-method-digits.md
	cp runs/which-method-mnist/table.md docs/tables/which-method-mnist.md

docs: $(READY)
	$(BIN)/python -m gossamer.pages.manual docs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
