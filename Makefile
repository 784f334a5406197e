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

.PHONY: setup demo test sanitize fuzz lint torch-tests bench validate replay allreduce eighth blocks real-blocks ablation real-ablation changing baselines observed mlfabric papers stacks torches pages site profiles guard overhead screenshots map regret soak testbed traces operations golden release clean

# Runs a measuring tool, makes the pages from the kept results, and exits with the tool's status.
then-pages = $(BIN)/python -m tools.$(1); status=$$?; $(BIN)/python -m tools.pages && exit $$status

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

# Benchmarks of the queue and the planner, compared with this machine's last results (docs/results/data/bench.json).
bench: setup
	$(call then-pages,measure bench)

# The simulator compared with real runs: about an hour on a quiet machine.
validate: setup
	$(call then-pages,studies validation)

# ResNet-50's gradients under every policy on a real slow network: about 25 minutes on a quiet machine.
replay: setup
	$(call then-pages,studies replay-resnet50)

# Prophet on DistributedDataParallel compared with tuned DDP, on real networks: two and a half hours on a quiet machine.
# It can be interrupted.
allreduce: setup
	$(call then-pages,studies allreduce)

# PACE and Caramel with real all-reduces, at an eighth of the papers' bytes and rates: about a quarter of an hour.
eighth: setup
	$(call then-pages,studies eighth)

# Adaptive blocks compared with blocks of one size, simulated: about a quarter of an hour.
blocks: setup
	$(call then-pages,studies blocks-simulated)

# The same on real networks: two and a half hours on a quiet machine. It can be interrupted.
real-blocks: setup
	$(call then-pages,studies blocks)

# The benefit of each part of Prophet, simulated: a few minutes.
ablation: setup
	$(call then-pages,studies ablation-simulated)

# The same on real networks: a little over two hours on a quiet machine. It can be interrupted.
real-ablation: setup
	$(call then-pages,studies ablation)

# Real networks that change during a job: about a quarter of an hour on a quiet machine.
changing: setup
	$(call then-pages,measure changing)

# Alternatives for a job on a slow network, to the same accuracy: about a quarter of an hour on a quiet machine.
baselines: setup
	$(call then-pages,measure baselines)

# A watched job's predictions for changes, and runs with each change made: about 20 minutes on a quiet machine.
observed: setup
	$(call then-pages,measure observed)

# The papers' tables, simulated: about two minutes.
papers: setup
	$(call then-pages,measure papers)

# MLfabric's nine cells, simulated and with real transfers: half an hour on a quiet machine. It can be interrupted.
mlfabric: setup
	$(BIN)/python -m tools.measure mlfabric-simulated
	$(call then-pages,measure mlfabric)

# The installed torch's own tests of DistributedDataParallel, plain and under Prophet: about six minutes.
# TORCH_PYTHON names an interpreter with another torch. TORCH_SOURCES names a folder of torch's sources, whose tests of
# FSDP2 run instead: about half an hour.
torch-tests: setup
	$(BIN)/python -m tools.torch_tests $(TORCH_PYTHON:%=--python %) $(TORCH_SOURCES:%=--sources %)

# Trainers of known libraries under Prophet: installs the libraries, which CI lacks, into .venv and runs their tests.
stacks: setup
	$(INSTALL) --editable ".[stacks]"
	$(BIN)/pytest tests/scripts/test_stacks.py

# The cost of watching every use of a parameter: about two minutes on a quiet machine.
guard: setup
	$(call then-pages,measure guard)

# The cost of status, record and metrics, each on and off: about ten minutes on a quiet machine.
overhead: setup
	$(call then-pages,measure watching)

# The pictures in docs/watching.md, from a short job that this starts. Needs Chromium.
screenshots: setup
	$(BIN)/python -m tools.measure screenshots

# Prophet's gain over DDP, from much communication to little, simulated: about three minutes.
map: setup
	$(call then-pages,measure map)

# The cost to a job of finding its best blocks, simulated: about five minutes.
regret: setup
	$(call then-pages,measure regret)

# Starts, tasks, long training and faults, for docs/reliability.md: about four hours. It can be interrupted.
soak: setup
	$(call then-pages,measure soak)

# The behaviour of the testbed's links, with and without a delay: about three minutes on a quiet machine.
testbed: setup
	$(call then-pages,measure testbed)

# Public traces of real jobs, simulated; FOLDER has clones of HolisticTraceAnalysis and PARAM: about a minute.
FOLDER ?= build/traces
traces: setup
	$(call then-pages,measure traces folder=$(FOLDER))

# The time of a gloo all-reduce, from which the simulator has its numbers: about ten minutes on a quiet machine.
operations: setup
	$(call then-pages,measure operations)

# The pages of docs/results from the data kept in docs/results/data, and all files derived from code. Measures nothing.
pages: setup
	$(BIN)/python -m tools.pages
	$(BIN)/python -m tools.derived

# The pages of docs/ as an offline site, in build/site.
site: $(VENV)/.package
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/doctrees docs build/site

# The profiles in configs/profiles, recorded from real training: about five minutes on a quiet machine.
profiles: setup
	$(BIN)/python -m tools.measure profiles

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
