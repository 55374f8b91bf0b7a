#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Builds the executor alone and runs its tests: test/run.sh <python with torch> <build folder> [cmake options].
set -eu
python=$1
build=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
cmake -S "$here/.." -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMYC_PYTHON="$python" -DMYC_TESTS=ON "$@"
cmake --build "$build" -j 2
"$build/test/mycelya_exec_test" --gtest_brief=1
