// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Loops that call one op each through the dispatcher, below autograd's keys. They measure the cost of an op in C++,
// without Python and autograd. capture.py builds this file, loads it with ctypes and passes Python's tensors.
#include <Python.h>
//
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/t.h>
#include <torch/csrc/autograd/python_variable.h>

#include <chrono>
#include <cstring>
#include <vector>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define HAS_CALLGRIND 1
#else
#define HAS_CALLGRIND 0
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_STOP_INSTRUMENTATION
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(name) (void)(name)
#endif

namespace {

using Tensors = std::vector<at::Tensor>;

struct Row {
  const char* name;
  void (*call)(Tensors&);  // calls the op once; the first two tensors are operands, the others a foreach op's list
};

const Row kRows[] = {
    {"a + b", [](Tensors& t) { at::add(t[0], t[1]); }},
    {"a * 1.001", [](Tensors& t) { at::mul(t[0], 1.001); }},
    {"a @ b", [](Tensors& t) { at::mm(t[0], t[1]); }},
    {"a.view(16)", [](Tensors& t) { t[0].view({16}); }},
    {"a.t()", [](Tensors& t) { at::t(t[0]); }},
    {"a.add_(b)", [](Tensors& t) { t[0].add_(t[1]); }},
    {"_foreach_add_", [](Tensors& t) { at::_foreach_add_(at::TensorList(t).slice(2), 0.001); }},
};

}  // namespace

// Whether capture_seconds was built with callgrind's client requests.
extern "C" __attribute__((visibility("default"))) int capture_has_callgrind() { return HAS_CALLGRIND; }

// The time of `calls` calls of a row, in seconds; negative if there is no such row or the call threw. tensors is a
// Python list of at least three. Under callgrind the instructions of the calls become a dump with the row's name.
extern "C" __attribute__((visibility("default"))) double capture_seconds(const char* name, PyObject* tensors,
                                                                         int64_t calls) {
  Tensors list;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    list.push_back(THPVariable_Unpack(PyList_GET_ITEM(tensors, i)));
  }
  for (const Row& row : kRows) {
    if (std::strcmp(row.name, name) != 0) continue;
    double seconds = -1;
    Py_BEGIN_ALLOW_THREADS  // as PyTorch's Python bindings do
        try {
      const at::AutoDispatchBelowADInplaceOrView below;
      CALLGRIND_START_INSTRUMENTATION;
      CALLGRIND_ZERO_STATS;
      const auto start = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < calls; ++i) row.call(list);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      CALLGRIND_DUMP_STATS_AT(name);
      CALLGRIND_STOP_INSTRUMENTATION;
    } catch (const std::exception&) {
      seconds = -1;
    }
    Py_END_ALLOW_THREADS return seconds;
  }
  return -1;
}
