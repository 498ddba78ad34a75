PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test quick check docs clean

demo: $(VENV)/.train
	$(BIN)/trainworks run examples/stdlib-lm.yaml

# Those that hurt processes, or train on several, have the machine to themselves; of the others two run at a time.
test: check
	$(BIN)/pytest tests/faults tests/worker
	$(BIN)/pytest --ignore tests/faults --ignore tests/worker --numprocesses 2 --dist loadscope --no-loadscope-reorder

# The lane for work: everything that starts no run, no cluster and no group of ranks.
QUICK := not slow and not gpu and not root and not kubernetes and not slurm and not sky and not ray
HEAVY := faults worker cli backends kubernetes deploy host validation

quick: $(VENV)/.test
	$(BIN)/pytest -m '$(QUICK)' $(HEAVY:%=--ignore tests/%) --numprocesses 2 --dist loadscope tests

check: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate_reference.py --check

# The reference from the source, then the site; a broken link or a page outside the navigation is an error.
docs: $(VENV)/.docs
	$(BIN)/python docs/generate_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

# torch first and alone: pip then keeps the build that it finds for the pinned version.
$(VENV)/.train: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch numpy
	$(INSTALL) --editable '.[train]'
	touch $@

$(VENV)/.test: $(VENV)/.train plugins/ray/pyproject.toml
	$(INSTALL) --editable '.[train,test,check]' --editable plugins/ray
	touch $@

$(VENV)/.docs: $(VENV)/.train
	$(INSTALL) --editable '.[docs]'
	touch $@
