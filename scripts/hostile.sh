#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Attacks the built worker: a client over TCP that sends changed frames (tests/hostile/frames), and many clients behind a
# network that fails (tests/faults/clients). Without an argument both are short, for CI. "full" takes some 35 minutes:
# a million changed frames on the reference backend, 100,000 on PyTorch, 20,000 sessions with a worker that lies, and ten
# minutes of 16 clients.
#
#     scripts/hostile.sh [full]
set -eu
cd "$(dirname "$0")/.."
worker=$PWD/mycelya_torch/bin/mycelya-worker
exec=$(.venv/bin/python scripts/build.py --print-libraries)/libmycelya_exec.so
torch=$(.venv/bin/python scripts/build.py --print-torch)/lib
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
go build -o "$programs" ./tests/hostile/frames ./tests/faults/clients
if [ "${1:-}" = full ]; then
  "$programs/frames" -worker "$worker" -count 1000000
  "$programs/frames" -worker "$worker" -backend torch -exec "$exec" -torch-lib "$torch" -count 100000
  go test ./tests/hostile/answers -run TestHostileAnswers -v -timeout 2h -runs 20000
  "$programs/clients" -worker "$worker" -exec "$exec" -torch-lib "$torch" -for 10m
  exit
fi
"$programs/frames" -worker "$worker" -count 20000
"$programs/frames" -worker "$worker" -backend torch -exec "$exec" -torch-lib "$torch" -count 2000 -parallel 2
# Missing bytes cost many seconds each: not in a short run. Nor does it show what is fair.
"$programs/clients" -worker "$worker" -exec "$exec" -torch-lib "$torch" -clients 6 -for 30s -mean 300000 \
  -kinds cut,corrupt,late,stall -fair 0.1
