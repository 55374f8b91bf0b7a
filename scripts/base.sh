#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Prints the commit that a change is compared with. It is the merge base with main. If that is HEAD, and no tracked file
# has changed, it is the commit before HEAD. Fails with a message if the clone lacks that commit.
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
