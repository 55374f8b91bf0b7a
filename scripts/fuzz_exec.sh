#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Runs libFuzzer on the executor for some seconds, 60 without an argument, with the address and undefined behaviour
# sanitizers. Needs clang (CLANG names it) and its libomp. Inputs that find new code stay in build/libfuzzer/corpus.
#
#   scripts/fuzz_exec.sh 1800
set -eu
cd "$(dirname "$0")/.."
python=$(pwd)/.venv/bin/python
clang=${CLANG:-clang++}
test -x "$python" || { echo "fuzz_exec: no .venv; run 'make venv' first"; exit 1; }
command -v "$clang" >/dev/null || { echo "fuzz_exec: no $clang; install clang, or set CLANG"; exit 1; }
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi

build=build/libfuzzer
cmake -S csrc/exec -B $build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER="$clang" \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
  -DCMAKE_CXX_FLAGS="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=vptr,function \
-fno-sanitize-recover=all -fno-omit-frame-pointer -w" \
  -DCMAKE_SHARED_LINKER_FLAGS=-fopenmp -DMYC_PYTHON="$python" -DMYC_TESTS=ON -DMYC_LIBFUZZER=ON -DMYC_CUDA=OFF >/dev/null
cmake --build $build -j 2 --target mycelya_exec_libfuzzer

mkdir -p $build/corpus
# A request for too much memory fails, as on a worker; PyTorch's libraries are not instrumented.
ASAN_OPTIONS=detect_odr_violation=0:detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=32 \
UBSAN_OPTIONS=print_stacktrace=1 \
  $build/test/mycelya_exec_libfuzzer -max_total_time="${1:-60}" -timeout=60 -rss_limit_mb=16384 -malloc_limit_mb=100000 \
  -max_len=16384 -len_control=0 -artifact_prefix=$build/ -print_final_stats=1 $build/corpus
