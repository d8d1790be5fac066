# One word for each intent. Every target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo check test test-hub soak fuzz bench docs clean sanitize

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

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n 2 -m 'not slow'

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n 2 --every-raise

# The bridge to Hugging Face on the lowest and the newest transformers of the range, with lm-eval: two environments of
# about 2 GB under build/. `make test` runs the pinned transformers.
HUB_LOWEST := $(shell sed -n 's/^hub = \["transformers>=\([0-9.]*\).*/\1/p' pyproject.toml)
test-hub:
	@for asked in "transformers==$(HUB_LOWEST)" "transformers<6"; do \
		venv=build/hub-$$(echo "$$asked" | tr -dc '0-9.=' | tr '=' v); \
		echo "$$asked in $$venv"; \
		$(PYTHON) -m venv $$venv || exit 1; \
		grep -ivE '^(transformers|huggingface_hub|tokenizers)==' constraints.txt > $$venv/constraints.txt; \
		$$venv/bin/python -m pip install --quiet --constraint $$venv/constraints.txt torch || exit 1; \
		$$venv/bin/python -m pip install --quiet --upgrade --constraint $$venv/constraints.txt --editable '.[dev,lm]' "$$asked" || exit 1; \
		$$venv/bin/python -m pytest -q tests/hub || exit 1; \
	done

# Every fault at full length: 30 random kills; one before every change that training, saving a model, building a corpus
# or a sweep makes to its folder, and readers in a loop beside them; faults seeded in several processes.
# `make test` runs a short version of each.
SOAKED := tests/train/test_faults.py tests/train/test_distributed.py tests/sweep/test_sweep.py tests/house/test_training_faults.py \
	tests/models/test_replacing.py tests/data/test_shards.py tests/house/test_trust_faults.py
soak: $(READY)
	SOAK=1 $(BIN)/python -m pytest -q -n 2 $(SOAKED)

# Mutated input for every verb and every file format, for a bounded time; the counts stand in docs/security.md.
FUZZ_SECONDS ?= 300
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --out docs/results/fuzz.json
	$(BIN)/python docs/generate.py

# The kernel's own driver under AddressSanitizer and UndefinedBehaviorSanitizer, every variant this machine runs.
sanitize:
	cmake -S csrc -B build/sanitize -DKEYSIFT_SANITIZE=ON
	cmake --build build/sanitize --parallel 2
	for isa in plain avx2 avx512; do echo "$$isa"; KEYSIFT_ISA=$$isa build/sanitize/keysift_driver || exit 1; done

# Measures anew what docs/ shows; about two hours on a quiet machine.
BENCHMARKS := screening mechanisms models documents decode
bench: $(READY)
	for name in $(BENCHMARKS); do $(BIN)/keysift bench $$name --out docs/results/$$name.json || exit 1; done
	$(BIN)/python docs/generate.py

docs: $(READY)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist out
