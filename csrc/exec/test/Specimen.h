// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Programs that tests damage.
#ifndef MYCELYA_EXEC_TEST_SPECIMEN_H_
#define MYCELYA_EXEC_TEST_SPECIMEN_H_

#include "exec/test/Session.h"

namespace mycelya::exec::test {

// A program with every kind of step, small enough that most mutations still reach the kernels.
inline Words Specimen() {
  Builder b;
  const uint64_t n = b.Param(), k = b.Param(), f = b.Param(), g = b.Param();
  const uint64_t in = b.Buffer(), index = b.Buffer();
  const uint64_t x = b.Tensor(in, MYC_F32, {P(n), P(k)});
  const uint64_t xt = b.Tensor(in, MYC_F32, {P(k), P(n)}, {1, P(k)}, 0);
  const uint64_t row = b.Tensor(in, MYC_F32, {P(k)}, {1}, P(k));
  const uint64_t i = b.Tensor(index, MYC_I64, {1});
  const uint64_t mm = b.Fresh(MYC_F32, {P(n), P(n)}), sum = b.Fresh(MYC_F64, {P(n)});
  const uint64_t cat = b.Fresh(MYC_F32, {6, P(k)}), picked = b.Fresh(MYC_F32, {1, P(k)});
  const uint64_t norm = b.Fresh(MYC_F32, {P(n), P(k)}), noise = b.Fresh(MYC_F32, {P(n), P(k)});
  const uint64_t part = b.Fresh(MYC_F32, {P(k)}), rest = b.Fresh(MYC_F32, {P(k)});
  const uint64_t twin = b.Buffer(), made = b.Buffer();
  const uint64_t t = b.Tensor(twin, MYC_F32, {P(n), P(k)});
  b.Call("mycelya::manual_seed", {Generator(g), Number(MYC_N_I64, n)});
  b.Clone(twin, in);
  b.Call("aten::mm", {T(x), T(xt)}, {mm});
  b.Call("aten::mul_.Tensor", {T(row), Number(MYC_N_F64, f)});
  b.Call("aten::mul.Tensor", {T(x), Scalar(MYC_F16, k)}, {norm});
  b.Call("aten::sum.dim_IntList", {T(mm), Ints({-1}), Bool(false), Dtype(MYC_F64)}, {sum});
  b.Call("aten::cat", {List(MYC_L_TENSORS, {T(x), T(x)}), Int(0)}, {cat});
  b.Call("aten::index.Tensor", {T(x), List(MYC_L_OPT_TENSORS, {T(i), None()})}, {picked});
  b.Call("aten::native_layer_norm", {T(t), List(MYC_L_INTS, {Size(k)}), T(row), None(), Float(1e-5)},
         {norm, Builder::kNoTensor, Builder::kNoTensor});
  b.Call("aten::_foreach_mul_.ScalarList",
         {List(MYC_L_TENSORS, {T(t), T(cat)}), List(MYC_L_SCALARS, {Float(2), Number(MYC_N_F64, f)})});
  b.Call("aten::uniform_", {T(t), Float(0), Float(1), Generator(g)});
  b.Call("aten::full_like", {T(t), Float(1), Dtype(MYC_F32), Layout(), Device(), Bool(false), None()}, {noise});
  b.Call("aten::gelu", {T(t), Str("tanh")}, {noise});
  b.Call("aten::_foreach_neg", {List(MYC_L_TENSORS, {T(row), T(row)})}, {part, rest});
  b.Alloc(made, P(n));
  b.Resize(made, 64);
  b.Copy(t, x);
  b.Resize(twin, 48);
  b.Free(made);
  b.Free(2);
  return b.Done();
}

// y[i] = 1 - x[i]
inline Words OneMinus() {
  const uint64_t f32 = uint64_t{MYC_K_F32} << 8;
  return {1,
          1,
          0,
          2,
          MYC_F32,
          MYC_K_READ,
          0,
          1,
          1,
          MYC_F32,
          MYC_K_WRITE,
          0,
          1,
          1,
          0,
          5,
          MYC_K_LOAD | f32,
          0,
          0,
          0,  //
          MYC_K_NEG | f32,
          0,
          0,
          0,  //
          MYC_K_CONST | f32,
          0x3ff0000000000000,
          0,
          0,  //
          MYC_K_ADD | f32,
          1,
          2,
          0,  //
          MYC_K_STORE | f32,
          1,
          3,
          0};
}

// A fused group with that kernel, and the operator that replaces it.
inline Words FusedSpecimen() {
  Builder b;
  const uint64_t n = b.Param(), in = b.Buffer(), out = b.Buffer();
  const uint64_t x = b.Tensor(in, MYC_F32, {P(n)}), y = b.Tensor(out, MYC_F32, {P(n)});
  const uint64_t kernel = b.Kernel(OneMinus());
  b.Fused(1, 1);
  b.Launch(kernel, {P(n).word, x, 0, y, 1});
  b.Call("aten::rsub.Scalar", {T(x), Float(2), Int(1)}, {y});
  b.Version(2, 1, out);
  return b.Done();
}

}  // namespace mycelya::exec::test

#endif  // MYCELYA_EXEC_TEST_SPECIMEN_H_
