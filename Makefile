# demo         train the demo on this machine
# quick        the tests that need no training and no testbed: under 3 minutes on two cores
# test         the tests that CI runs
# long         those that CI leaves out, in named parts, each with its table: PART=kaggle runs one
# durations    print what the tests took when they ran last, by file and by test: TOP=40
# lint         format, lint, types
# check        lint and test
# docs         build the pages of docs/ into site/
# bench        write the figures
# links        write the table of bad links
# kills        write the table of random kills
# faults       write the table of faults: those of `launch drill`, and those that need root
# moves        write the table of moves whose client is killed
# segments     write the table of runs in sessions whose follower is killed
# late         write the table of kernels that show late, whose client is killed
# batches      write the table of batches whose worker is killed
# rents        write the table of clients that rent and are killed
# orders       write the table of random removals and pulls
# slurm        write the table of faults on a Slurm cluster
# large        write the table of large trees
# fuzz         write the table of generated cases
# precision    write the table of gradients and false alarms in each precision
# curves       draw the loss in each rung, split and world size: JOB=distill, STEPS=100
# trainings    train healthy and broken cases under the guard, and write their table
# memory       write the table of estimated and measured memory
# gpu          everything that needs a card, and its figures; PART=… runs some, WHEELS=… installs from a folder, REHEARSE=1 tries it on a CPU
# scripts      launch training programs of PyPI packages, and write their table
# cast         record a first session, and draw it for README and docs
# mutants      break the product by each patch, and show that the tests notice
# testbed-up   leave two machines running
# testbed-down end them
# clean        remove what these targets made
.PHONY: demo quick test long durations check lint docs cast bench held links kills faults moves segments late rents batches orders slurm large precision curves memory fuzz gpu scripts mutants testbed-up testbed-down clean

PYTHON ?= python3
BIN := .venv/bin

# Made once, and again when the requirements change. TORCH_INDEX may name another index for torch (cu126, rocm, …).
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "launch needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt -e '.[train,dev,docs]'
	touch $@

demo: .venv/ready
	$(BIN)/launch

quick: .venv/ready
	$(BIN)/python -m pytest -n 3 -m "not training and not testbed and not slow and not long and not gpu"

# Four workers on two cores: most tests wait for another process.
test: .venv/ready
	$(BIN)/python -m pytest -n 4

long: .venv/ready
	$(BIN)/python tests/bench/scenarios.py long $(PART)

durations: .venv/ready
	$(BIN)/python tests/testbed/durations.py $(TOP)

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

docs: .venv/ready
	$(BIN)/mkdocs build --strict

bench: .venv/ready
	$(BIN)/python tests/bench/bench.py

# What has to pass whether connections are held or not.
held: export TESTBED_HOLD_S = 60
held: .venv/ready
	$(BIN)/python -m pytest -n 3 tests/transport/test_line.py tests/transport/test_login.py tests/transport/test_ssh.py \
		tests/runs/recover/test_bad_links.py tests/runs/safe/test_hostile_job.py tests/runs/copy/test_hostile_outputs.py tests/runs/recover/test_kills.py \
		tests/runs/places/test_over_ssh.py tests/runs/safe/test_private_root.py tests/runs/safe/test_secrets.py tests/runs/upload/test_tree.py

links: .venv/ready
	$(BIN)/python tests/bench/scenarios.py links

kills: .venv/ready
	$(BIN)/python tests/bench/scenarios.py kills

faults: .venv/ready
	$(BIN)/python tests/bench/scenarios.py faults

moves: .venv/ready
	$(BIN)/python tests/bench/scenarios.py moves

segments: .venv/ready
	$(BIN)/python tests/bench/scenarios.py segments

late: .venv/ready
	$(BIN)/python tests/bench/scenarios.py late

batches: .venv/ready
	$(BIN)/python tests/bench/scenarios.py batches

rents: .venv/ready
	$(BIN)/python tests/bench/scenarios.py rents

orders: .venv/ready
	$(BIN)/python tests/bench/scenarios.py orders

slurm: .venv/ready
	$(BIN)/python tests/bench/scenarios.py slurm
	$(BIN)/python tests/bench/scenarios.py slurm-ends

large: .venv/ready
	$(BIN)/python tests/bench/scenarios.py large

fuzz: .venv/ready
	$(BIN)/python tests/fuzz/run.py

precision: .venv/ready
	$(BIN)/python tests/bench/precision.py

curves: .venv/ready
	$(BIN)/python tests/bench/curves.py $(if $(JOB),--job $(JOB)) $(if $(STEPS),--steps $(STEPS))

trainings: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/trainings/table.py

cast: .venv/ready
	$(BIN)/python tests/cast/make.py

memory: .venv/ready
	$(BIN)/python tests/bench/memory.py

# Without .venv/ready, which needs a network: that machine has a torch for its card, and maybe a folder of wheels.
gpu:
	@$(firstword $(wildcard $(BIN)/python) $(PYTHON)) tests/gpu/run.py

scripts: .venv/ready
	$(BIN)/python tests/programs/scripts.py

mutants: .venv/ready
	$(BIN)/python tests/mutants/prove.py

testbed-up: .venv/ready
	$(BIN)/python tests/testbed/machine.py up

testbed-down: .venv/ready
	$(BIN)/python tests/testbed/machine.py down

clean:
	rm -rf .venv .gpu .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
