# Commands of the README and of CONTRIBUTING. `make demo` and `make test` run `make setup` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without this setting, setuptools prints a long explanation of editable installs.
INSTALL := PYTHONWARNINGS=ignore $(BIN)/pip install --quiet
STAMP := $(VENV)/.installed
NATIVE := $(shell find prophet plugins -name '*.h' -o -name '*.cc') setup.py pyproject.toml prophet-autoload.pth
# Separate distributions, in addition to the core's.
PLUGINS := $(patsubst %/pyproject.toml,./%,$(wildcard plugins/*/pyproject.toml))
BUILDER := $(shell find plugins/byteps/prophet_byteps/build -type f)

MEASUREMENTS := ablation ablation-simulated allreduce baselines bench blocks blocks-simulated changing eighth gpu guard map \
	mlfabric mlfabric-simulated observed operations papers profiles regret replay-resnet50 screenshots simulated-again \
	soak testbed traces validation watching

.PHONY: setup demo test sanitize fuzz lint torch-tests stacks torches pages site golden release clean $(MEASUREMENTS)

setup: $(STAMP)

$(VENV)/.packages: setup.py $(PLUGINS:=/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	$(INSTALL) --editable ".[experiments,mlfabric,mxnet,papers,report,docs,dev]" $(PLUGINS:%=--editable %)
	@touch $@ $(VENV)/.package

# Python code runs in place. Compiled code is rebuilt when it changes.
$(VENV)/.package: $(VENV)/.packages $(NATIVE)
	$(INSTALL) --no-deps --editable .
	@touch $@

# BytePS for the CPU is built once and cached in the user's cache folder, keyed by its sources.
$(STAMP): $(VENV)/.package $(BUILDER)
	$(BIN)/python -m prophet_byteps.build install
	@touch $@

demo: setup
	$(BIN)/prophet doctor
	$(BIN)/prophet run configs/quickstart.yaml --out build/demo

# Two tests at a time: jobs on real networks one after another, other tests beside them (tests/support/shares.py).
test: setup
	$(BIN)/pytest --numprocesses 2

# The queue, the simulator and the hook under the compiler's checks of memory, undefined behaviour and data races: about
# a minute. Needs no BytePS. `make test` includes them if the machine supports them. Like BytePS, the compiled programs
# are cached in the user's cache folder.
sanitize: $(VENV)/.package
	SANITIZERS=required $(BIN)/pytest tests/native

# All readers and protocols, and the queue under ASan, on damaged and hostile input: EXAMPLES per test, new ones each
# time, after those that failed before (kept in .hypothesis/examples). And random programs over DDP, FSDP2 and BytePS,
# PROGRAMS of each, with the bits that they have without Prophet. `make test` has a short form of all.
EXAMPLES ?= 2000
PROGRAMS ?= 300
fuzz: setup
	EXAMPLES=$(EXAMPLES) SANITIZERS=required $(BIN)/pytest --hypothesis-profile fuzz \
		$$(grep -rlE '^(from|import) hypothesis' tests/core tests/lab tests/native tests/plugins/mlfabric tests/watch --include='test_*.py')
	PROGRAMS=$(PROGRAMS) $(BIN)/pytest tests/scripts/test_ddp_scripts.py tests/scripts/test_fsdp_scripts.py \
		tests/plugins/byteps/torch/test_random_programs.py -k random

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m tools.lines
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cc')

# Measurements, such as `make map`: each keeps its data in docs/results/data, and makes its page. CONTRIBUTING.md says
# what they measure and how long they take. OPTIONS are the measurement's, as KEY=VALUE.
$(MEASUREMENTS): setup
	$(BIN)/python -m tools.measure $@ $(OPTIONS); status=$$?; $(BIN)/python -m tools.pages && exit $$status

# The installed torch's own tests of DistributedDataParallel, plain and under Prophet: about six minutes.
# TORCH_PYTHON names an interpreter with another torch. TORCH_SOURCES names a folder of torch's sources, whose tests of
# FSDP2 run instead: about half an hour.
torch-tests: setup
	$(BIN)/python -m tools.torch_tests $(TORCH_PYTHON:%=--python %) $(TORCH_SOURCES:%=--sources %)

# Trainers of known libraries under Prophet: installs the libraries, which CI lacks, into .venv and runs their tests.
stacks: setup
	$(INSTALL) --editable ".[stacks]"
	$(BIN)/pytest tests/scripts/test_stacks.py

# The pages of docs/results from the data kept in docs/results/data, and all files derived from code. Measures nothing.
pages: setup
	$(BIN)/python -m tools.pages
	$(BIN)/python -m tools.derived

# The pages of docs/ as an offline site, in build/site.
site: $(VENV)/.package
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/doctrees docs build/site

# Rewrites the deterministic results in tests/golden: the diff shows which numbers a change has moved.
golden: setup
	$(BIN)/pytest --write-golden $$(grep -rl golden.check tests --include='test_*.py' | grep -v tests/support/)

# Training scripts over DDP on torch releases, TORCHES="2.4.0 2.14.1" or all: a few minutes and gigabytes per release.
torches: setup
	$(BIN)/python -m tools.torches $(TORCHES)

# Builds and tests a source distribution and a wheel for this Python, or for those in PYTHONS="A B": a minute each.
release: setup
	$(BIN)/python -m tools.release --out dist $(PYTHONS)

clean:
	rm -rf $(VENV) build *.egg-info
