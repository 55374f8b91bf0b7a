#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Builds and runs the C++ tests, with arguments of ctest. They need googletest, which pip does not provide.
set -eu
cd "$(dirname "$0")/.."
if ! echo '#include <gtest/gtest.h>' | "${CXX:-g++}" -std=c++20 -x c++ -E - >/dev/null 2>&1; then
  echo "test_cpp: no googletest on this machine (Debian: apt install libgtest-dev); the C++ tests do not run"
  exit 0
fi
.venv/bin/python scripts/build.py --tests
folder=$(.venv/bin/python scripts/build.py --print-folder)
ctest --test-dir "$folder" --output-on-failure "$@"
