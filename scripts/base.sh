#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Prints the commit that a change is compared with: the merge base with main; where HEAD is main, and nothing has changed since, the
# commit before. Fails, and says so, in a clone that doesn't have it.
set -eu
cd "$(dirname "$0")/.."
base=
for main in main origin/main; do
  base=$(git merge-base HEAD "$main" 2>/dev/null) && break
done
if [ -z "$base" ] || { [ "$base" = "$(git rev-parse HEAD)" ] && git diff --quiet HEAD; }; then
  base=$(git rev-parse -q --verify HEAD~1) || {
    echo "base: this clone has no commit before HEAD to compare with" >&2
    exit 1
  }
fi
echo "$base"
