#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Attacks the built worker: hostile programs beside an honest session (tests/hostile), changed frames over TCP
# (tests/hostile/frames), and many clients behind a network that fails (tests/faults/clients). Without an argument it is
# short, for CI, two minutes in all. "full" takes some 50 minutes: 400,000 programs, a million changed frames on the
# reference backend and 100,000 on PyTorch, 20,000 sessions with a worker that lies, and ten minutes of 16 clients.
#
#     scripts/hostile.sh [full]
set -eu
cd "$(dirname "$0")/.."
build() { .venv/bin/python scripts/build.py "$@"; }
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
go build -o "$programs" ./tests/hostile ./tests/hostile/frames ./tests/faults/clients
worker="-worker $PWD/mycelya_torch/bin/mycelya-worker"
torch="-exec $(build --print-libraries)/libmycelya_exec.so -torch-lib $(build --print-torch)/lib"
# The programs come from a C++ test, which needs googletest.
fuzz="-fuzz $(build --print-folder)/exec/test/mycelya_operator_fuzz"
[ -x "${fuzz#-fuzz }" ] || fuzz=
hostile() { # of programs
  [ -n "$fuzz" ] || { echo "hostile: no mycelya_operator_fuzz; run scripts/test_cpp.sh first"; return; }
  "$programs/hostile" $worker $torch $fuzz -count "$1"
}
frames() { "$programs/frames" $worker "$@"; }
clients() { "$programs/clients" $worker $torch "$@"; }
if [ "${1:-}" = full ]; then
  hostile 400000
  frames -count 1000000
  frames -backend torch $torch $fuzz -count 100000
  go test ./tests/hostile/answers -run TestHostileAnswers -v -timeout 2h -runs 20000
  clients -for 10m
  exit
fi
hostile 10000
frames -count 10000
frames -backend torch $torch $fuzz -count 2000 -parallel 2
# Missing bytes cost many seconds each: not in a short run. Nor does it show what is fair.
clients -clients 6 -for 30s -mean 300000 -kinds cut,corrupt,late,stall -fair 0.1
