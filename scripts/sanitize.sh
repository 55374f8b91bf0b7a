#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Builds the executor and its tests with sanitizers and runs them, twice: addresses with undefined behaviour, and threads.
# PyTorch's libraries are not instrumented: what they leak and how their threads wait is theirs. Tests may be chosen:
# scripts/sanitize.sh [--gtest_filter=...]
set -eu
cd "$(dirname "$0")/.."
python=$(pwd)/.venv/bin/python
test -x "$python" || { echo "sanitize: no .venv; run 'make venv' first"; exit 1; }

if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi

# name, flags: the executable needs the runtime first, since libraries are loaded by dlopen.
build() {
  cmake -S csrc/exec -B "build/$1" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
    -DCMAKE_CXX_FLAGS="$2 -fno-omit-frame-pointer -w" -DMYC_PYTHON="$python" -DMYC_TESTS=ON -DMYC_CUDA=OFF >/dev/null
  cmake --build "build/$1" -j 2 --target mycelya_exec_test
}

# What no machine has is refused, as it is without a sanitizer, and what damaged programs ask for.
memory=allocator_may_return_null=1:max_allocation_size_mb=256

# Kernels are linked into the tests and into the library: one definition, twice.
build address "-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"
ASAN_OPTIONS=detect_odr_violation=0:detect_leaks=0:$memory UBSAN_OPTIONS=print_stacktrace=1 \
  build/address/test/mycelya_exec_test --gtest_brief=1 "$@"

build thread "-fsanitize=thread"
TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1:$memory \
  build/thread/test/mycelya_exec_test --gtest_brief=1 "$@"
echo "sanitize: no findings"
