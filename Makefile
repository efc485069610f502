# The list of habits. `make fuzz` and `make test` need nothing but Python 3.11 and a network; both install into .venv first.
# Variables: PYTHON (an interpreter, 3.11 or newer), PIP_FLAGS (for pip install), ARGS (more options of the command run).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_FLAGS ?=
ARGS ?=
ARCHS ?= sm_80 sm_90a sm_100a sm_103a sm_120a
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install fuzz test compile corpus lint format bench score conformance b200 nightly docs doctor report demo-report clean

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*##  *\(.*\)/  make \1@\2/p' $(MAKEFILE_LIST) | column -t -s@ 2>/dev/null || grep '##' $(MAKEFILE_LIST)

install: $(STAMP)  ## .venv with the pinned dependencies and this package; nothing when it is there already

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python found; install it (Debian: sudo apt-get install python3 python3-venv)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is too old; Python 3.11 or newer is needed (make PYTHON=/path/to/python3.11)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments; run: sudo apt-get install python3-venv"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e '.[dev,docs]'
	@touch $@

fuzz: $(STAMP)  ## a session: about 300 cases over every target that runs here (ARGS="--fuzz-cases 2000 --fuzz-seed 7")
	$(BIN)/python -m pytest -n auto fuzz $(ARGS)

test: $(STAMP)  ## the project's own tests, without the nightly ones
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not nightly" tests $(ARGS)

compile: $(STAMP)  ## the bundled kernels of eight cases for every architecture, those by tcgen05 for sm_100a, without a GPU
	$(BIN)/attnfuzz compile --target blocksparse --device host --cases 8 $(foreach arch,$(ARCHS),--arch $(arch)) $(ARGS)
	$(BIN)/attnfuzz compile --target blocksparse.tcgen05 --target blocksparse.tcgen05_pairs \
		--target blocksparse.tcgen05_cta_pairs --target-file ci/blocksparse_tcgen05.py --device host --size small --cases 8 --arch sm_100a
	$(BIN)/python ci/compile_triton.py --arch sm_90a --arch sm_100a

corpus: $(STAMP)  ## replays every saved case
	$(BIN)/python -m pytest -n auto corpus $(ARGS)

lint: $(STAMP)  ## ruff (lint and format), the order of imports between folders, and mypy over the whole tree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

format: $(STAMP)  ## lets ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## the figures of README.md; results go to ci/results/
	$(BIN)/python ci/benchmarks/harness.py $(ARGS)
	$(BIN)/python ci/benchmarks/emulator_speed.py

score: $(STAMP)  ## finds again the mutants that the committed scoreboard found; some minutes
	$(BIN)/attnfuzz mutation-score --check $(ARGS)

conformance: $(STAMP)  ## the matrix of published configurations for one target (TARGET=torch.sdpa.math)
	$(BIN)/attnfuzz conformance $(or $(TARGET),torch.sdpa.math) $(ARGS)

b200: $(STAMP)  ## on a B200: published configurations, 5,000 cases, speed, and one file for the ledger (ARGS="--dry-run" prints the plan)
	$(BIN)/python ci/b200.py $(ARGS)

nightly: $(STAMP)  ## every test, nightly ones too, a long session with a seed of the day, replays, bisection, report (CASES=20000)
	PYTHON=$(BIN)/python ci/nightly.sh --cases $(or $(CASES),20000) $(if $(SEED),--seed $(SEED)) $(ARGS)

docs: $(STAMP)  ## the manual in site/, built by MkDocs; site/index.html opens without a server
	$(BIN)/python -m docs.generate --check README.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

doctor: $(STAMP)  ## what this machine lacks, and the command that mends it
	$(BIN)/attnfuzz doctor

# The site of the demonstration's ledger: ci/demo/history.py says where its rows come from.
demo-report: $(STAMP)  ## the dashboard of twelve nights in build/demo-report/index.html
	rm -f build/demo-ledger.sqlite*
	@mkdir -p build
	$(BIN)/python -c "import lzma, shutil, sys; shutil.copyfileobj(lzma.open('ci/demo/history.jsonl.xz'), sys.stdout.buffer)" \
		| $(BIN)/attnfuzz import - --ledger build/demo-ledger.sqlite
	$(BIN)/attnfuzz report --ledger build/demo-ledger.sqlite --out build/demo-report --target-file ci/demo/own.py --timelines 1 $(ARGS)

report: $(STAMP)  ## the dashboard of this folder's ledger in report/index.html
	$(BIN)/attnfuzz report --out report $(ARGS)

clean:  ## removes .venv and caches; sessions and the corpus stay
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
