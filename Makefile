# The commands of the README. `make setup` is the first half of `make demo` and `make test`.
# (-P: the package is the installed one, not the folder of the same name here.)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := $(shell find prophet plugins tools -type f \( -name '*.py' -o -name '*.h' -o -name '*.cc' \)) setup.py pyproject.toml prophet-autoload.pth

.PHONY: setup demo test lint bench validate scaling papers results profiles clean

setup: $(STAMP)

$(VENV)/.packages: setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet ".[experiments,mxnet,dev]"
	@touch $@

$(VENV)/.package: $(VENV)/.packages $(SOURCES)
	$(BIN)/pip install --quiet --no-deps --force-reinstall .
	@touch $@

# The CPU engine is built once and cached in the user's cache folder, keyed by what it is built from.
$(STAMP): $(VENV)/.package
	$(BIN)/python -P -m prophet.tools.engine install
	@touch $@

demo: setup
	$(BIN)/prophet doctor
	$(BIN)/prophet run configs/quickstart.yaml --out build/demo

test: setup
	$(BIN)/pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	# On the installed package, since plugins/ and tools/ are part of it only there.
	cd $(VENV) && bin/mypy --config-file ../pyproject.toml -p prophet
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cc')

bench: setup
	$(BIN)/python -P -m prophet.bench build/bench.json

# The simulator against real runs: about half an hour on a quiet machine.
validate: setup
	$(BIN)/python -P -m prophet.tools.validate --out build

# How the simulator's cost grows: about five minutes.
scaling: setup
	$(BIN)/python -P -m prophet.tools.scaling --out build

# The papers' tables, simulated: about two minutes.
papers: setup
	$(BIN)/python -P -m prophet.tools.papers

# The paper's experiments on real engines: about two hours on a quiet machine, and it can be interrupted.
results: setup
	$(BIN)/python -P -m prophet.tools.results

# The profiles of configs/profiles, recorded from real training: about five minutes on a quiet machine.
profiles: setup
	$(BIN)/python -P -m prophet.tools.record

clean:
	rm -rf $(VENV) build *.egg-info
