# Every target does its own set-up. VENV names the virtual environment, PYTHON the interpreter it is
# made with.
VENV ?= .venv
PYTHON ?= python3
export VENV PYTHON
RUN := $(VENV)/bin/python
# That run tests: one more than there are cores, because many wait for processes that they started.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 8 ? n + 1 : 9)))

.PHONY: help setup demo claims docs test lint format clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup:  ## make or update the virtual environment
	@tools/setup_env.sh

demo: setup  ## train one InLine backbone for three tasks on digit scenes and write a report
	$(RUN) tools/demo.py

claims: setup  ## try the paper's claims: two probes, five attentions on digits, one page
	$(RUN) tools/claims.py

docs: setup  ## build the pages of docs/ into site/; a link that leads nowhere ends it
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --clean

test: lint  ## formatter, linter, type checker and all tests
	$(RUN) -m pytest -n $(WORKERS) --dist worksteal

lint: setup  ## formatter check, linter and type checker
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

format: setup  ## format the code and sort its imports
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

clean:  ## remove caches and build leftovers; the environment, data and work_dirs stay
	rm -rf build site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find inline tools tests configs -name __pycache__ -type d -prune -exec rm -rf {} +
