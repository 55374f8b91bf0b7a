#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Builds the executor and its tests with sanitizers and runs them twice: with the address and undefined behaviour
# sanitizers, and with the thread sanitizer. PyTorch's libraries are not instrumented, so their leaks and races are not
# reported.
#
#   scripts/sanitize.sh [--gtest_filter=...]
set -eu
cd "$(dirname "$0")/.."
python=$(pwd)/.venv/bin/python
test -x "$python" || { echo "sanitize: no .venv; run 'make venv' first"; exit 1; }

if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi

# build NAME FLAGS. The flags are for the executable too, which must load the sanitizer's runtime before any dlopen.
build() {
  cmake -S csrc/exec -B "build/$1" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
    -DCMAKE_CXX_FLAGS="$2 -fno-omit-frame-pointer -w" -DMYC_PYTHON="$python" -DMYC_TESTS=ON -DMYC_CUDA=OFF >/dev/null
  cmake --build "build/$1" -j 2 --target mycelya_exec_test
}

# An allocation that is too large returns null, as without a sanitizer. Tests of damaged programs request such sizes.
memory=allocator_may_return_null=1:max_allocation_size_mb=256

# No check of the one definition rule: kernels are linked into both the tests and the library.
build address "-fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"
ASAN_OPTIONS=detect_odr_violation=0:detect_leaks=0:$memory UBSAN_OPTIONS=print_stacktrace=1 \
  build/address/test/mycelya_exec_test --gtest_brief=1 "$@"

build thread "-fsanitize=thread"
TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1:$memory \
  build/thread/test/mycelya_exec_test --gtest_brief=1 "$@"
echo "sanitize: no findings"
