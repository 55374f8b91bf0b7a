#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Runs each of Go's fuzzers for a time or a number of inputs, 2,000 without an argument, one after the other. A crash
# leaves its input in the package's testdata/fuzz, and `go test` runs it from then on.
#
#     scripts/fuzz.sh 30m
set -eu
cd "$(dirname "$0")/.."
output=$(mktemp)
trap 'rm -f "$output"' EXIT
git grep -o '^func Fuzz[A-Za-z]*' -- '*_test.go' | while IFS=: read -r file fuzzer; do
	name=${fuzzer#func }
	echo "$file $name"
	go test "./$(dirname "$file")" -run '^$' -fuzz "^$name\$" -fuzztime "${1:-2000x}" -parallel 2 >"$output" || {
		cat "$output"
		exit 1
	}
done
