PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Tests start programs thousands of times: what they import is compiled once.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo drill cluster-demo shapes chain quick test test-all nightly pytest stress costs check mypy ruff lint-imports reference docs samples screenshots clean

demo: $(VENV)/.train
	$(BIN)/trainworks run examples/stdlib-lm.yaml

# Six throw-away Debian machines in namespaces, and a stack on them. Needs root on Debian, and: apt-get install debootstrap
cluster-demo: $(VENV)/.cluster
	BASE=$$(examples/cluster-demo/base.sh) && export BASE GATEWAY=10.77.0.1/24 && \
	    exec examples/cluster-demo/hall.sh $(CURDIR)/$(BIN)/python examples/cluster-demo/demo.py
# From a goal to the bill on those machines, over a slow node and one that dies.
chain: $(VENV)/.cluster
	BASE=$$(examples/cluster-demo/base.sh) && export BASE GATEWAY=10.77.0.1/24 && \
	    exec examples/cluster-demo/hall.sh $(CURDIR)/$(BIN)/python examples/cluster-demo/demo.py chain
# Clusters of other shapes on such machines, one after the other: SHAPES='one-node roce' for some. That of Kubernetes
# needs tests/kubernetes/apiserver/build.sh.
shapes: $(VENV)/.test $(VENV)/.cluster
	exec $(CURDIR)/$(BIN)/python examples/cluster-demo/shapes.py $(SHAPES)
# Every fault, on two nodes of this machine.
drill: $(VENV)/.train
	$(BIN)/trainworks drill examples/drill.yaml

# The lanes of the suite, each with the tests of those before it: tests/lanes.py. `quick` is for work, without `check`.
quick: $(VENV)/.test
	$(MAKE) --no-print-directory pytest LANE=quick

test test-all: $(VENV)/.test
	$(MAKE) --no-print-directory --jobs 2 check pytest LANE=$@

nightly: $(VENV)/.test $(VENV)/.cluster
	$(MAKE) --no-print-directory --jobs 2 check pytest LANE=$@
	if command -v debootstrap > /dev/null && [ $$(id -u) = 0 ]; then $(MAKE) --no-print-directory cluster-demo shapes SHAPES='one-node two-boxes'; \
	else echo 'SKIPPED: clusters that are built from nothing; as root on Debian: apt-get install debootstrap' >&2; fi

# Three at a time on two cores: tests of clusters and of faults mostly wait. tests/conftest.py has their order.
PROCESSES ?= 3
LANE ?= test

pytest: $(VENV)/.test
	$(BIN)/pytest --lane $(LANE) --numprocesses $(PROCESSES) --dist loadscope --no-loadscope-reorder

# Tests many times beside programs that keep every core busy: make stress TESTS=tests/host TIMES=100; apt-get install stress-ng
TIMES ?= 20

stress: $(VENV)/.test
	stress-ng --quiet --cpu 0 & trap "kill $$!" EXIT; \
	    for time in $$(seq $(TIMES)); do $(BIN)/pytest --quiet $(TESTS) || failed="$$failed $$time"; done; \
	    test -z "$$failed" || { echo "FAILED of $(TIMES) times:$$failed" >&2; exit 1; }

# After `make test`: what each file cost becomes tests/costs/test.csv, which later runs are compared with.
costs: $(VENV)/.test
	$(BIN)/python -m tests.growth $(LANE)

check: $(VENV)/.test
	$(MAKE) --no-print-directory --jobs 2 --output-sync mypy ruff lint-imports reference

mypy lint-imports:
	$(BIN)/$@

ruff:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

reference:
	$(BIN)/python docs/generate_reference.py --check

# The reference from the source, then the site; a broken link or a page outside the navigation is an error.
docs: $(VENV)/.docs
	$(BIN)/python docs/generate_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What pages show of commands, from these commands and from the records in docs/samples; the diff is the review.
samples: $(VENV)/.test
	$(BIN)/python docs/generate_samples.py

# The pictures of the documentation; three minutes on two quiet cores, with Debian's chromium.
screenshots: $(VENV)/.test
	$(BIN)/python docs/screenshots.py

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

# torch first and alone: pip then keeps the build that it finds for the pinned version.
$(VENV)/.train: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'Installing torch into $(VENV), once: 0.2 GB to download for CPUs, 3 GB or more with CUDA'
	$(INSTALL) torch numpy
	@echo 'Installing trainworks and what it trains with into $(VENV), once: some 0.1 GB'
	$(INSTALL) --editable '.[train]'
	touch $@

$(VENV)/.test: $(VENV)/.train plugins/ray/pyproject.toml
	@echo 'Installing what tests and checks need into $(VENV), once'
	$(INSTALL) --editable '.[train,test,check]' --editable plugins/ray
	touch $@

$(VENV)/.cluster: $(VENV)/.train
	@echo 'Installing Ansible into $(VENV), once'
	$(INSTALL) --editable '.[train,deploy]'
	touch $@

$(VENV)/.docs: $(VENV)/.train
	@echo 'Installing what builds the pages into $(VENV), once'
	$(INSTALL) --editable '.[docs]'
	touch $@
