# Every target sets itself up: a fresh machine needs Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
READY_FOR_RAY := .venv/.ready-for-ray
EXTRAS := report,frames,curv,bench,optim,adv,sdp,hf,lightning,ignite,loggers,slurm,test,dev,docs
WORKERS ?= auto

.PHONY: setup demo test test-all lint format bench docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Spherometer needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(READY_FOR_RAY): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[ray]'
	@touch $@

demo: setup        ## train to the edge of stability, measure, write a page
	$(BIN)/spherometer demo

test: setup        ## what continuous integration runs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

test-all: $(READY_FOR_RAY) ## everything, slow checks included
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m 'slow or not slow'

lint: setup        ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup       ## side by side with the peers
	$(BIN)/python -m benchmarks

docs: setup        ## build the pages into docs/build
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/build

clean:
	rm -rf .venv docs/build docs/gallery
