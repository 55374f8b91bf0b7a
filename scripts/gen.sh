#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Writes the generated files that are committed: those of the catalogue, the device's op table, the
# worker's list of operators, the compiler's list of schemas, the protobuf code.
set -eu
cd "$(dirname "$0")/.."
if ! .venv/bin/python -c "import torch" 2>/dev/null; then
  echo "gen: .venv has no torch, whose schemas are read; run make venv first" >&2
  exit 1
fi
go run ./catalogue/gen
.venv/bin/python csrc/device/record/gen_optable.py >build/optable.inc
mv build/optable.inc csrc/device/record/optable.inc
.venv/bin/python csrc/device/record/gen_optable.py --allowed >build/Allowed.inc
mv build/Allowed.inc csrc/exec/program/Allowed.inc
.venv/bin/python csrc/device/record/gen_optable.py --schemas >build/schemas.txt
mv build/schemas.txt catalogue/schemas.txt
if command -v protoc >/dev/null && command -v protoc-gen-go >/dev/null; then
  protoc --go_out=. --go_opt=paths=source_relative proto/mycelya.proto
else
  echo "gen: no protoc or protoc-gen-go here; proto/mycelya.pb.go is not generated"
fi
