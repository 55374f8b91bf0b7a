#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Explores what `make test` does with fixed seeds: new examples of the property tests, each of Go's fuzzers and libFuzzer
# (needs clang) for a time, and the long attacks. A part that fails does not end the others. What it finds becomes a case.
#
#     scripts/soak.sh [TIME]     of each fuzzer, default 30m; all of them take nine hours
set -u
cd "$(dirname "$0")/.."
time=${1:-30m}
failed=
part() { # part "name" command...
  name=$1
  shift
  echo "== $name"
  "$@" || failed="$failed
soak: FAILED: $name"
}
part "Python" env MYCELYA_SOAK=20 .venv/bin/python -m pytest -n 2 \
  $(git grep -lE '^from hypothesis|\bSOAK\b' -- tests/e2e/'test_*')
part "rapid" env RAPID_SEED=0 RAPID_CHECKS=5000 go test -count=1 -timeout 2h \
  $(git grep -l '"pgregory.net/rapid"' -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's,^,./,')
part "kernels for all architectures" env MYCELYA_SOAK=20 go test -count=1 ./tests/cuda
part "attacks" scripts/hostile.sh full
part "libFuzzer" scripts/fuzz_exec.sh 1800
part "Go's fuzzers" scripts/fuzz.sh "$time"
echo "$failed"
[ -z "$failed" ]
