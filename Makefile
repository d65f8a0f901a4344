# Every target sets up what it needs. VENV is the virtual environment, PYTHON the interpreter that creates it.
VENV ?= .venv
PYTHON ?= python3
export VENV PYTHON
RUN := $(VENV)/bin/python
# Test processes: one more than there are cores, because many tests wait for processes that they started. Every
# one of them imports all test modules, so that `quick`, whose tests do not wait, has one per core.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 8 ? n + 1 : 9)))

.PHONY: help setup demo claims docs test quick exhaustive lint pytest format clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup:  ## create or update the virtual environment
	@tools/setup_env.sh

demo: setup  ## train one InLine backbone for three tasks on digit scenes and write a report
	$(RUN) tools/demo.py

claims: setup  ## test the paper's claims with two probes and five attention mechanisms on digits
	$(RUN) tools/claims.py

docs: setup  ## build the documentation into site/ and check its links
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --clean

# The type checker uses one core, so the tests start beside it.
test:  ## formatter, linter, type checker and tests (9 minutes on 2 cores)
	@$(MAKE) --no-print-directory --jobs=2 lint pytest SELECTION="-m 'not exhaustive'"

quick:  ## formatter, linter, type checker and unit tests (90 seconds on 2 cores)
	@$(MAKE) --no-print-directory --jobs=2 lint pytest WORKERS=$$(nproc) SELECTION="-m 'not slow and not exhaustive'"

exhaustive:  ## the long tests that `test` leaves out: more families, formats and compilers
	@$(MAKE) --no-print-directory pytest SELECTION="-m exhaustive"

pytest: setup
	$(RUN) -m pytest -n $(WORKERS) --dist worksteal $(SELECTION)

lint: setup  ## formatter check, linter and type checker
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

format: setup  ## format the code and sort imports
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

clean:  ## remove caches and build files; keep the environment, data and work_dirs
	rm -rf build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find inline tools tests configs -name __pycache__ -type d -prune -exec rm -rf {} +
