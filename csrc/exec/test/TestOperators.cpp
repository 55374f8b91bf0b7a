// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Operators for tests of the executor, in the namespace whose operators are all allowed: they return views, lists and
// random numbers, which no operator of the worker's list returns.
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/unsafe_split.h>
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(mycelya, m) {
  m.def("test_t(Tensor(a) self) -> Tensor(a)", [](const at::Tensor& self) { return self.t(); });
  m.def("test_split(Tensor self, int size, int dim) -> Tensor[]",
        [](const at::Tensor& self, int64_t size, int64_t dim) { return at::unsafe_split(self, size, dim); });
  m.def(
      "test_full(int[] size, Scalar value, ScalarType dtype) -> Tensor",
      [](at::IntArrayRef size, const at::Scalar& value, at::ScalarType dtype) { return at::full(size, value, dtype); });
  m.def("test_rand(int[] size, Generator? generator) -> Tensor",
        [](at::IntArrayRef size, std::optional<at::Generator> generator) {
          return at::rand(size, std::move(generator));
        });
  m.def("test_randn(int[] size) -> Tensor", [](at::IntArrayRef size) { return at::randn(size); });
  m.def("test_bernoulli(Tensor p, Generator? generator) -> Tensor",
        [](const at::Tensor& p, std::optional<at::Generator> generator) {
          return at::bernoulli(p, std::move(generator));
        });
}
