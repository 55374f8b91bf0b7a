#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Runs the e2e tests and two benchmarks on a CUDA worker. The host needs a GPU, a C++ compiler, cmake, and a Python with a
# CUDA build of torch, numpy and pytest. It needs neither Go nor the internet if the Go artefacts are copied into
# mycelya_torch/.
set -eu
cd "$(dirname "$0")/.."
plan="build csrc against this host's torch, then run pytest tests/e2e tests/gpu, bench/capture.py and bench/gpu.py on a CUDA worker"
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
  echo "make gpu: no CUDA GPU on this host. On one it would $plan."
  exit 0
fi
python=${PYTHON:-python3}
[ -x .venv/bin/python ] && python=.venv/bin/python
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "make gpu: the host has a GPU, but the torch of $python cannot use it; install a CUDA build of torch 2.11 to 2.15."
  exit 1
fi
echo "make gpu: $plan"
"$python" scripts/build.py --jobs "$(nproc)"
test -e mycelya_torch/lib/libmycelya_exec_cuda.so || {
  echo "make gpu: libmycelya_exec_cuda.so was not built: no CUDA headers were found"
  exit 1
}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" MYCELYA_MACHINE=local:cuda:0
"$python" -m pytest tests/e2e tests/gpu --ignore tests/e2e/test_package.py -p no:cacheprovider ${PYTEST:-}
"$python" bench/capture.py
"$python" bench/gpu.py
