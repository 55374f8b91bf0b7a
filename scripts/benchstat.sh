#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Runs the compiler's benchmarks of another commit and of this tree in turns, and prints how time and allocations differ.
#
#   scripts/benchstat.sh [COMMIT]     default: the commit of scripts/base.sh;  COUNT=N rounds, default 6
set -eu
cd "$(dirname "$0")/.."
benchstat=golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
base=${1:-$(scripts/base.sh)}
folder=$(mktemp -d)
trap 'git worktree remove --force "$folder/base" 2>/dev/null; rm -rf "$folder"' EXIT
git worktree add -q --detach "$folder/base" "$base"
for round in $(seq "${COUNT:-6}"); do
  for side in before after; do
    tree=.
    [ $side = after ] || tree=$folder/base
    (cd "$tree" && go test ./ir ./passes ./tests/replay -run='^$' -bench=. -benchmem -benchtime=100ms) >>"$folder/$side"
  done
done
(cd "$folder" && go run $benchstat before after)
