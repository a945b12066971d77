# Two commands for a fresh clone: `make run` and `make test`. Both make their own virtual environment. `make help` lists all.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run help test coverage chromium quick lint scripts bench which-method reproduction docs report-picture live-pictures site clean

run: $(READY)  ## Compare five methods on a ring of 16 clients (the default).
	$(BIN)/gossamer compare

help:  ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

test: lint chromium  ## Lint, types and all tests (ten minutes on two fast cores, twenty on slow ones).
	$(BIN)/pytest -n 2

coverage: $(READY) chromium  ## All tests with coverage, which takes half as long again.
	$(BIN)/pytest -n 2 --cov --cov-report=term --cov-fail-under=95

chromium:  # A browser for the tests of pages: Debian's package, where it may be installed.
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get -qq update && apt-get -qq install --no-install-recommends -y chromium; } || \
		echo "WARNING: no Chromium: the tests of pages are skipped. On Debian: apt-get install chromium" >&2

quick: $(READY)  ## The tests that neither start processes nor compile (under a minute).
	$(BIN)/pytest -n 2 -m "not slow"

lint: $(READY) scripts  ## Lint, formatting and types; the pages' scripts where npm is present.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# No retries: without a network this should not take a minute.
ESLINT := npm_config_fetch_retries=0 npm_config_prefer_offline=true npx --yes eslint@9.39.1

scripts:
	@if ! command -v npx >/dev/null; then echo "WARNING: no npm: the pages' scripts are not linted. On Debian: apt-get install npm" >&2; \
	elif ! $(ESLINT) --version >/dev/null 2>&1; then echo "WARNING: npm cannot fetch eslint: the pages' scripts are not linted" >&2; \
	else cd src/gossamer/pages/scripts && $(ESLINT) --no-config-lookup -c $(CURDIR)/tests/pages/eslint.config.mjs \
		--ignore-pattern "uplot/**" . ; fi

bench: $(READY)  ## Write the table of docs/benchmarks.md: Gossamer against the loop an expert would write, and JAX (a quarter of an hour, on an idle machine).
	$(BIN)/python -m benchmarks --out docs/tables/benchmarks.md

which-method: $(READY)  ## Write the table of all methods on digits, not tuned (some minutes).
	rm -rf runs/which-method-digits
	$(BIN)/gossamer compare experiments/which-method-digits.toml --out runs/which-method-digits
	cp runs/which-method-digits/table.md docs/tables/which-method-digits.md

reproduction: $(READY)  ## Write the tables of docs/reproduction.md and docs/which-method.md anew from results/.
	$(BIN)/python -m gossamer.pages.reproduction results docs/reproduction.md docs/which-method.md

report-picture: $(READY) chromium  ## Write the README's picture of a report (a minute; needs Chromium).
	rm -rf runs/report-picture
	$(BIN)/gossamer compare --out runs/report-picture
	chromium --headless=new --no-sandbox --hide-scrollbars --window-size=1280,1180 \
		--screenshot=docs/images/report.png "file://$(CURDIR)/runs/report-picture/report.html"

live-pictures: $(READY) chromium  ## Write the documentation's pictures of the live page (two minutes; needs Chromium).
	$(BIN)/python tests/helpers/live_picture.py docs/images

docs: $(READY)  ## Write the pages that are generated from the code.
	$(BIN)/python -m gossamer.pages.manual docs

site: $(READY)  ## Build the documentation as a site, build/site/index.html, that needs no network.
	$(BIN)/python -m website build/site

clean:  ## Remove the virtual environment and all caches.
	rm -rf $(VENV) .environments .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)
