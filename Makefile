# The commands of the README. `make setup` is the first half of `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# setuptools explains at length what an editable installation is.
INSTALL := PYTHONWARNINGS=ignore $(BIN)/pip install --quiet
STAMP := $(VENV)/.installed
NATIVE := $(shell find prophet plugins -name '*.h' -o -name '*.cc') setup.py pyproject.toml prophet-autoload.pth
# Distributions of their own, beside core's.
PLUGINS := $(patsubst %/pyproject.toml,./%,$(wildcard plugins/*/pyproject.toml))
BUILDER := $(shell find plugins/byteps/prophet_byteps/build -type f)

.PHONY: setup demo test sanitize fuzz releases lint torch-tests bench validate replay allreduce eighth scaling blocks real-blocks ablation real-ablation changing baselines observed mlfabric papers results advice stacks torches pages site profiles guard overhead screenshots map memory coordinator backlog regret soak testbed operations golden release clean

# Runs a tool that measures, makes the pages of what is kept then, and ends as the tool did.
then-pages = $(BIN)/python -m tools.$(1); status=$$?; $(BIN)/python -m tools.pages && exit $$status

setup: $(STAMP)

$(VENV)/.packages: setup.py $(PLUGINS:=/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	$(INSTALL) --editable ".[experiments,mlfabric,mxnet,papers,report,docs,dev]" $(PLUGINS:%=--editable %)
	@touch $@ $(VENV)/.package

# Python is run where it lies; what is compiled is compiled anew when it changes.
$(VENV)/.package: $(VENV)/.packages $(NATIVE)
	$(INSTALL) --no-deps --editable .
	@touch $@

# BytePS for the CPU is built once and cached in the user's cache folder, keyed by what it is built from.
$(STAMP): $(VENV)/.package $(BUILDER)
	$(BIN)/python -m prophet_byteps.build install
	@touch $@

demo: setup
	$(BIN)/prophet doctor
	$(BIN)/prophet run configs/quickstart.yaml --out build/demo

# Two tests at a time: jobs on real networks, one after another, and beside them the rest (tests/support/shares.py).
test: setup
	$(BIN)/pytest --numprocesses 2

# The queue, the simulator and the hook under the compiler's checks of memory, undefined behaviour and data races: about
# a minute. Needs no BytePS. `make test` makes them as well where the machine can. What is compiled for them is kept in the
# user's cache folder, as BytePS is.
sanitize: $(VENV)/.package
	SANITIZERS=required $(BIN)/pytest tests/native

# Every reader and protocol, and the queue under ASan, on damaged and hostile input: EXAMPLES a test, other ones each time, and
# first those that once failed, which are kept in .hypothesis/examples. `make test` has a short form.
EXAMPLES ?= 2000
fuzz: $(VENV)/.package
	EXAMPLES=$(EXAMPLES) SANITIZERS=required $(BIN)/pytest --hypothesis-profile fuzz \
		$$(grep -rlE '^(from|import) hypothesis' tests/core tests/lab tests/native tests/plugins/mlfabric tests/watch --include='test_*.py')

# The hook on older releases of BytePS, each built once: some minutes a release.
releases: setup
	RELEASES=required $(BIN)/pytest tests/net/test_releases.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m tools.lines
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cc')

# The queue and the planner, beside the last figures (docs/results/data/bench.json) if this machine made them.
bench: setup
	$(call then-pages,measure bench)

# The simulator against real runs: about an hour on a quiet machine.
validate: setup
	$(call then-pages,studies validation)

# ResNet-50's gradients under every policy on a real slow network: about 25 minutes on a quiet machine.
replay: setup
	$(call then-pages,studies replay-resnet50)

# Prophet on DistributedDataParallel beside DDP at its best, on real networks: two and a half hours on a quiet machine,
# and it can be interrupted.
allreduce: setup
	$(call then-pages,studies allreduce)

# PACE and Caramel with real all-reduces, at an eighth of the papers' bytes and rates: about a quarter of an hour.
eighth: setup
	$(call then-pages,studies eighth)

# How the simulator's cost grows: about five minutes.
scaling: setup
	$(call then-pages,measure scaling)

# Blocks that adapt beside blocks of one size, simulated: about a quarter of an hour.
blocks: setup
	$(call then-pages,studies blocks-simulated)

# The same on real networks: two and a half hours on a quiet machine, and it can be interrupted.
real-blocks: setup
	$(call then-pages,studies blocks)

# What each part of Prophet is worth, simulated: some minutes.
ablation: setup
	$(call then-pages,studies ablation-simulated)

# The same on real networks: a little over two hours on a quiet machine, and it can be interrupted.
real-ablation: setup
	$(call then-pages,studies ablation)

# Networks that change under a job, real: about a quarter of an hour on a quiet machine.
changing: setup
	$(call then-pages,measure changing)

# What else a job on a slow network could do, to the same accuracy: about a quarter of an hour on a quiet machine.
baselines: setup
	$(call then-pages,measure baselines)

# What a watched job predicts of changes, and runs with each change made: about 20 minutes on a quiet machine.
observed: setup
	$(call then-pages,measure observed)

# The papers' tables, simulated: about two minutes.
papers: setup
	$(call then-pages,measure papers)

# MLfabric's nine cells, simulated and on real transfers: about half an hour on a quiet machine, and it can be interrupted.
mlfabric: setup
	$(BIN)/python -m tools.measure mlfabric-simulated
	$(call then-pages,measure mlfabric)

# The paper's experiments on real engines: a little over two hours on a quiet machine, and it can be interrupted.
results: setup
	$(call then-pages,studies real --missing)

# What `prophet advise` predicts beside real runs with the change made: about 20 minutes on a quiet machine.
advice: setup
	$(call then-pages,measure advice)

# The tests of DistributedDataParallel that the installed torch ships, plain and under Prophet: about six minutes.
# TORCH_PYTHON names an interpreter with another torch. TORCH_SOURCES names a folder of torch's sources, whose tests of
# FSDP2 run instead: some half an hour.
torch-tests: setup
	$(BIN)/python -m tools.torch_tests $(TORCH_PYTHON:%=--python %) $(TORCH_SOURCES:%=--sources %)

# Trainers of known libraries under Prophet: installs them into .venv, where CI's are not, and runs their tests.
stacks: setup
	$(INSTALL) --editable ".[stacks]"
	$(BIN)/pytest tests/scripts/test_stacks.py

# What watching every use of a parameter costs: about two minutes on a quiet machine.
guard: setup
	$(call then-pages,measure guard)

# What it costs to be watched: status, record and figures, each on and off. About ten minutes on a quiet machine.
overhead: setup
	$(call then-pages,measure watching)

# The pictures of docs/watching.md, from a short job that is started for them; needs chromium.
screenshots: setup
	$(BIN)/python -m tools.measure screenshots

# What Prophet gains over DDP, from much communication to little, simulated: about three minutes.
map: setup
	$(call then-pages,measure map)

# What a message costs in memory, on either build of BytePS: about ten minutes.
memory: setup
	$(call then-pages,measure memory)

# What the coordinator of MLfabric jobs costs and withstands: about four minutes on a quiet machine.
coordinator: setup
	$(call then-pages,measure coordinator)

# What it costs a job to find out which blocks are its best, simulated: some five minutes.
regret: setup
	$(call then-pages,measure regret)

# Whether jobs of many small gradients end on BytePS as released: up to half an hour.
backlog: setup
	$(call then-pages,measure backlog)

# Starts, tasks, long training and faults, and docs/reliability.md: about four hours, and it can be interrupted.
soak: setup
	$(call then-pages,measure soak)

# What the testbed's links do, with and without a delay: about three minutes on a quiet machine.
testbed: setup
	$(call then-pages,measure testbed)

# What one of gloo's all-reduces takes, which the simulator has its numbers of: about ten minutes on a quiet machine.
operations: setup
	$(call then-pages,measure operations)

# The pages of docs/results from what is kept in docs/results/data, and all else that follows from code; measures nothing.
pages: setup
	$(BIN)/python -m tools.pages
	$(BIN)/python -m tools.derived

# The pages of docs/ as a site that needs no network, in build/site.
site: $(VENV)/.package
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/doctrees docs build/site

# The profiles of configs/profiles, recorded from real training: about five minutes on a quiet machine.
profiles: setup
	$(BIN)/python -m tools.measure profiles

# What is deterministic, written anew under tests/golden: the diff shows which numbers a change has moved.
golden: setup
	$(BIN)/pytest --write-golden $$(grep -rl golden.check tests --include='test_*.py' | grep -v tests/support/)

# Training scripts over DDP on releases of torch, TORCHES="2.4.0 2.14.1" or all: some minutes and gigabytes a release.
torches: setup
	$(BIN)/python -m tools.torches $(TORCHES)

# Source distribution, and a wheel for this Python or those of PYTHONS="A B", built and tried: a minute each.
release: setup
	$(BIN)/python -m tools.release --out dist $(PYTHONS)

clean:
	rm -rf $(VENV) build *.egg-info
