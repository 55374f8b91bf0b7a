# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# A runner of scripts; nothing is made by timestamps but the environment. cmake, ninja and go build only what changed.
#
#   make demo     train a small CNN on the device
#   make test     everything CI runs
#   make check    formats, linters, types, generated code
#   make sweep    PyTorch's op database against the CPU, every dtype
#   make ecosystem  libraries in their newest releases, in an environment of their own; writes a table
#   make bench    the figures of bench/RESULTS.md
#   make replay   what a change makes of the corpus of graphs;  make benchstat  of the compiler's time and allocations
#   make flaky    looks for tests that fail by chance;  make soak  explores with new seeds, fuzzers and attacks, for hours
#   make kit      packs .kit for such a host;  make kit-dry  and runs it here, on a CPU worker
#   make gpu      tests and figures of a CUDA worker, on a host that has a GPU;  make sanitize  the executor under sanitizers
#   make docs     the documentation site, in build/docs
#   make gen      generated code again;  make golden   golden files again
#   make build    the native artefacts;  make venv     the Python environment
#   make wheels   the wheel for this Python and each torch, in dist

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
TORCH := 2.15.0
# Headers that torch's own CUDA packages lack; the version is that of torch's CUDA.
CUDA_CRT := 13.2.86
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: ecosystem docs demo test flaky soak sweep bench replay benchstat kit kit-dry gpu sanitize gen golden check build wheels venv test-go test-cpp test-python test-attacks

demo: build
	$(PY) examples/digits.py --device mycelya

test: build
	$(PY) scripts/tests.py

test-go test-cpp test-python test-attacks: test-%: build
	$(PY) scripts/tests.py $*$(if $(ARGS), -- $(ARGS))

# Looks for tests that fail by chance.
flaky: build
	$(PY) scripts/tests.py --rounds 3 --busy 2 go python

# Explores with new seeds, for hours; what it finds becomes a case.
soak: build
	scripts/soak.sh

# The whole op database, every dtype, and the tables of tests/e2e/COVERAGE.md.
sweep: build
	$(PY) -m pytest tests/e2e/test_opinfo.py --summary -n 2

ecosystem: build
	$(PY) scripts/ecosystem.py --write $(ARGS)

bench: build
	$(PY) bench/capture.py --markdown
	$(PY) bench/transport.py --markdown
	$(PY) bench/replay.py --markdown
	$(PY) bench/small.py --markdown
	$(PY) bench/startup.py --markdown
	$(PY) bench/compile.py --markdown

replay:
	scripts/replay.sh

benchstat:
	scripts/benchstat.sh

check: build
	scripts/check.sh

# The executor's tests with AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer; some 15 minutes.
sanitize: venv
	scripts/sanitize.sh

# Packs what scripts/gpu.py needs on a host with a GPU; kit-dry runs it here.
kit kit-dry: build
	$(PY) scripts/kit.py $(if $(filter kit-dry,$@),--dry)

gpu:
	$(if $(wildcard $(PY)),$(PY),$(PYTHON)) scripts/gpu.py

# tests/e2e/test_site.py builds it too, and checks its links and programs.
docs: venv
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict -f docs/mkdocs.yml

gen:
	scripts/gen.sh

golden: build
	go test $$(git grep -lE 'tests/golden"|flag.Bool..update' -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's,^,./,') -update

build: venv
	$(PY) scripts/build.py

wheels: venv
	$(PY) scripts/wheels.py

venv: $(VENV)/installed

# The package itself is installed last and editable, so that Python changes need nothing and a build needs no pip.
$(VENV)/installed: pyproject.toml setup.py
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) scripts/install.py --torch $(TORCH) --cuda-crt $(CUDA_CRT)
	touch $@
