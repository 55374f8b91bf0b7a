#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Compiles the replay corpus of this tree with the compiler of another commit and with this one. Prints the differences
# in nodes, kernels, steps, buffers, bytes moved, peak and groups. After a refactor there must be none.
#
#   scripts/replay.sh [COMMIT]     default: the commit of scripts/base.sh
set -eu
cd "$(dirname "$0")/.."
base=${1:-$(scripts/base.sh)}
folder=$(mktemp -d)
trap 'git worktree remove --force "$folder/base" 2>/dev/null; rm -rf "$folder"' EXIT
git worktree add -q --detach "$folder/base" "$base"
corpus=$PWD/tests/replay/corpus
if [ ! -d "$folder/base/tests/replay/summary" ]; then
  echo "replay: $(git rev-parse --short "$base") has no tests/replay/summary to compare with" >&2
  exit 2
fi
(cd "$folder/base" && go run ./tests/replay/summary "$corpus") >"$folder/before"
go run ./tests/replay/summary "$corpus" >"$folder/after"
if diff -U 1 --label "$(git rev-parse --short "$base")" --label here "$folder/before" "$folder/after"; then
  echo "replay: no difference to $(git rev-parse --short "$base")"
fi
