// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Operators called by programs return the same as direct calls of ATen.
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/split.h>
#include <ATen/ops/sum.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

at::Tensor F32(std::vector<int64_t> sizes, float scale = 1) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return at::arange(n, c10::ScalarType::Float).mul_(scale).view(sizes);
}

TEST(Call, AddAndMmWithSizesAsParameters) {
  Session s;
  Builder b;
  const uint64_t n = b.Param(), k = b.Param(), alpha = b.Param();
  const uint64_t x = b.Fresh(MYC_F32, {P(n), P(k)}), y = b.Fresh(MYC_F32, {P(k), P(n)});
  const uint64_t p = b.Fresh(MYC_F32, {P(n), P(n)}), r = b.Fresh(MYC_F32, {P(n), P(n)});
  b.Call("aten::mm", {T(x), T(y)}, {p});
  b.Call("aten::add.Tensor", {T(p), T(p), Number(MYC_N_F64, alpha)}, {r});
  myc_prog* program = s.Prepare(b);
  uint64_t id = 1;
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{2, 3}, {5, 1}, {4, 7}, {0, 3}}) {
    const at::Tensor a = F32({rows, cols}), c = F32({cols, rows}, 0.5);
    s.Upload(id, a);
    s.Upload(id + 1, c);
    EXPECT_RUNS(s.Run(program, {static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), Bits(0.25)},
                      {{0, id}, {1, id + 1}}, {{3, id + 2}}));
    const at::Tensor m = at::mm(a, c);
    EXPECT_SAME(s.ReadF32(id + 2, {rows, rows}), at::add(m, m, 0.25));
    id += 3;
  }
}

TEST(Call, ViewsWithOffsetsAndStrides) {
  Session s;
  const at::Tensor base = F32({6, 4});
  s.Upload(1, base);
  Builder b;
  const uint64_t in = b.Buffer(), off = b.Param();
  const uint64_t transposed = b.Tensor(in, MYC_F32, {4, 6}, {1, 4}, 0);
  const uint64_t row = b.Tensor(in, MYC_F32, {6}, {0}, P(off));  // one element, expanded
  const uint64_t r = b.Fresh(MYC_F32, {4, 6});
  b.Call("aten::mul.Tensor", {T(transposed), T(row)}, {r});
  EXPECT_RUNS(s.Run(b, {5}, {{in, 1}}, {{1, 2}}));
  // TensorIterator keeps the operands' dim order. The result is declared row-major, so it is copied.
  EXPECT_SAME(s.ReadF32(2, {4, 6}), at::mul(base.t(), 5.0).contiguous());
}

TEST(Call, WritesInPlaceThroughAView) {
  Session s;
  const at::Tensor base = F32({4, 4});
  s.Upload(1, base);
  Builder b;
  const uint64_t in = b.Buffer(), p = b.Param();
  const uint64_t column = b.Tensor(in, MYC_F32, {4}, {4}, 2);
  const uint64_t row = b.Tensor(in, MYC_F32, {4}, {1}, 4);
  b.Call("aten::mul_.Tensor", {T(column), Number(MYC_N_F64, p)});
  b.Call("aten::add_.Tensor", {T(row), T(column), Int(1)});
  EXPECT_RUNS(s.Run(b, {Bits(10)}, {{in, 1}}, {}));
  const at::Tensor want = base.clone();
  want.select(1, 2).mul_(10);
  want.select(0, 1).add_(want.select(1, 2).clone());
  EXPECT_SAME(s.ReadF32(1, {4, 4}), want);
}

TEST(Call, ResultInAnotherLayoutIsCopiedIntoTheDeclaredOne) {
  Session s;
  const at::Tensor a = F32({3, 2});
  s.Upload(1, a);
  Builder b;
  const uint64_t in = b.Buffer();
  const uint64_t x = b.Tensor(in, MYC_F32, {3, 2});
  const uint64_t columns = b.Tensor(b.Buffer(), MYC_F32, {3, 2}, {1, 3}, 0);  // result of a row-major add
  const uint64_t alias = b.Fresh(MYC_F32, {2, 3});                            // result of a view
  b.Call("aten::add.Tensor", {T(x), T(x), Int(1)}, {columns});
  b.Call("mycelya::test_t", {T(x)}, {alias});
  EXPECT_RUNS(s.Run(b, {}, {{in, 1}}, {{1, 2}, {2, 3}}));
  EXPECT_SAME(s.Read(2, MYC_F32, c10::ScalarType::Float, {3, 2}, {1, 3}), a * 2);
  EXPECT_SAME(s.ReadF32(2, {2, 3}), (a * 2).t().contiguous());
  EXPECT_SAME(s.ReadF32(3, {2, 3}), a.t().contiguous());
  // The result of the view has its own memory.
  Builder write;
  const uint64_t y = write.Fresh(MYC_F32, {6});
  write.Call("aten::zero_", {T(y)});
  EXPECT_RUNS(s.Run(write, {}, {{0, 1}}, {}));
  EXPECT_SAME(s.ReadF32(3, {2, 3}), a.t().contiguous());
}

// The address of a storage's memory: a contiguous read returns the storage's own memory.
const void* Address(Session& s, uint64_t id) {
  const int64_t one = 1;
  const myc_view view{id, MYC_U8, 1, &one, &one, 0, 0};
  const void* data = nullptr;
  uint64_t bytes = 0, call = 0;
  uint32_t step = 0;
  void* handle = nullptr;
  myc_error e{};
  EXPECT_EQ(myc_exec_read(s.get(), &view, &data, &bytes, &handle, &call, &step, &e), MYC_OK) << e.text;
  myc_exec_read_done(s.get(), handle);
  return data;
}

// Records allocated blocks, to tell a result without a copy from a copied one.
class CountBlocks final : public c10::Allocator {
 public:
  CountBlocks() : base_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/100); }
  ~CountBlocks() override { c10::SetCPUAllocator(base_, /*priority=*/100); }
  c10::DataPtr allocate(size_t n) override {
    if (n == kBytes) ++blocks;
    return base_->allocate(n);
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t n) const override { base_->copy_data(to, from, n); }

  static constexpr size_t kBytes = 4000;
  int blocks = 0;

 private:
  c10::Allocator* base_;
};

TEST(Call, FreshResultIsAdoptedAndOthersAreCopied) {
  Session s;
  Builder adopt, copy;
  const std::vector<Words> args = {Ints({100, 10}), Float(2), Dtype(MYC_F32)};
  adopt.Call("mycelya::test_full", args, {adopt.Fresh(MYC_F32, {100, 10})});
  copy.Call("mycelya::test_full", args, {copy.Tensor(copy.Buffer(), MYC_F32, {100, 10}, {1, 100}, 0)});
  myc_prog *adopts = s.Prepare(adopt), *copies = s.Prepare(copy);
  CountBlocks watch;
  EXPECT_RUNS(s.Run(adopts, {}, {}, {{0, 1}}));
  EXPECT_EQ(watch.blocks, 1);
  EXPECT_RUNS(s.Run(copies, {}, {}, {{0, 2}}));
  EXPECT_EQ(watch.blocks, 3);
  EXPECT_EQ(s.Usage(), (std::pair<uint64_t, uint64_t>{2, 8000}));
  EXPECT_SAME(s.ReadF32(1, {100, 10}), at::full({100, 10}, 2.0f));
  EXPECT_SAME(s.ReadF32(2, {100, 10}), at::full({100, 10}, 2.0f));
}

TEST(Call, AnInputKeepsItsMemoryThroughInPlaceSteps) {
  Session s;
  s.Upload(1, F32({8}));
  const void* before = Address(s, 1);
  Builder b;
  b.Call("aten::neg_", {T(b.Fresh(MYC_F32, {8}))});
  EXPECT_RUNS(s.Run(b, {}, {{0, 1}}, {{0, 1}}));
  EXPECT_EQ(Address(s, 1), before);
  EXPECT_SAME(s.ReadF32(1, {8}), F32({8}, -1));
}

TEST(Call, WrappedNumbersPromoteLikePythonNumbers) {
  Session s;
  const at::Tensor i = at::arange(4, c10::ScalarType::Long);
  s.Upload(1, i);
  Builder b;
  const uint64_t real = b.Param(), integer = b.Param(), yes = b.Param(), complex = b.Param();
  b.Param();  // the imaginary half
  const uint64_t x = b.Fresh(MYC_I64, {4}), f = b.Fresh(MYC_F32, {4}), k = b.Fresh(MYC_I64, {4});
  const uint64_t d = b.Fresh(MYC_F64, {4}), g = b.Fresh(MYC_F32, {4}), z = b.Fresh(MYC_C64, {4});
  b.Call("aten::mul.Tensor", {T(x), Number(MYC_N_F64, real)}, {f});
  b.Call("aten::mul.Tensor", {T(x), Number(MYC_N_I64, integer)}, {k});
  b.Call("aten::bitwise_xor.Tensor", {T(x), Number(MYC_N_BOOL, yes)}, {k});
  // A 0-dim tensor that is not a wrapped number: f64 with i64 ignores the default dtype. Within a category, a tensor
  // with dims decides the dtype.
  b.Call("aten::mul.Tensor", {T(x), Scalar(MYC_F64, real)}, {d});
  b.Call("aten::mul.Tensor", {T(f), Scalar(MYC_F64, real)}, {g});
  b.Call("aten::mul.Tensor", {T(f), Number(MYC_N_C128, complex)}, {z});
  EXPECT_RUNS(s.Run(b, {Bits(1.5), 3, 1, Bits(0), Bits(2)}, {{0, 1}}, {{1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}}));
  EXPECT_SAME(s.ReadF32(2, {4}), i * 1.5);
  EXPECT_SAME(s.Read(3, MYC_I64, at::kLong, {4}, {1}), i.bitwise_xor(at::full({}, 1, at::kLong)));
  EXPECT_SAME(s.Read(4, MYC_F64, at::kDouble, {4}, {1}), i.to(at::kDouble) * 1.5);
  EXPECT_SAME(s.ReadF32(5, {4}), i * 2.25);
  EXPECT_SAME(s.Read(6, MYC_C64, at::kComplexFloat, {4}, {1}), i * 1.5 * c10::complex<double>(0, 2));
}

TEST(Call, NumbersAndScalarsAreReadAnewByEachCall) {
  Session s;
  s.Upload(1, at::full({2}, 2.0f));
  Builder b;
  const uint64_t p = b.Param(), h = b.Param();
  const uint64_t x = b.Fresh(MYC_F32, {2}), y = b.Fresh(MYC_F32, {2}), z = b.Fresh(MYC_F32, {2});
  b.Call("aten::mul.Tensor", {T(x), Number(MYC_N_F64, p)}, {y});
  b.Call("aten::mul.Tensor", {T(y), Scalar(MYC_F16, h)}, {z});
  myc_prog* program = s.Prepare(b);
  for (const auto& [number, half, want] : {std::tuple{3.0, 0x3c00, 6.0f}, {5.0, 0x4000, 20.0f}}) {
    EXPECT_RUNS(s.Run(program, {Bits(number), static_cast<uint64_t>(half)}, {{0, 1}}, {{2, 2}}));
    EXPECT_SAME(s.ReadF32(2, {2}), at::full({2}, want));
  }
}

TEST(Call, ScalarDtypeListAndOptionalArguments) {
  Session s;
  const at::Tensor x = F32({2, 3}), w = at::full({3}, 2.0f);
  s.Upload(1, x);
  s.Upload(2, w);
  Builder b;
  const uint64_t n = b.Param(), eps = b.Param();
  const uint64_t tx = b.Fresh(MYC_F32, {2, 3}), tw = b.Fresh(MYC_F32, {3});
  const uint64_t sum = b.Fresh(MYC_F64, {2, 1}), norm = b.Fresh(MYC_F32, {2, 3}), full = b.Fresh(MYC_I32, {P(n), 2});
  b.Call("aten::sum.dim_IntList", {T(tx), Ints({-1}), Bool(true), Dtype(MYC_F64)}, {sum});
  b.Call("aten::native_layer_norm", {T(tx), List(MYC_L_INTS, {Size(n)}), T(tw), None(), Number(MYC_N_F64, eps)},
         {norm, Builder::kNoTensor, Builder::kNoTensor});
  b.Call("mycelya::test_full", {List(MYC_L_INTS, {Size(n), Int(2)}), Int(7), Dtype(MYC_I32)}, {full});
  EXPECT_RUNS(s.Run(b, {3, Bits(1e-5)}, {{0, 1}, {1, 2}}, {{2, 3}, {3, 4}, {4, 5}}));
  EXPECT_SAME(s.Read(3, MYC_F64, c10::ScalarType::Double, {2, 1}, {1, 1}), at::sum(x, {-1}, true, at::kDouble));
  EXPECT_SAME(s.ReadF32(4, {2, 3}), std::get<0>(at::native_layer_norm(x, {3}, w, {}, 1e-5)));
  EXPECT_SAME(s.Read(5, MYC_I32, c10::ScalarType::Int, {3, 2}, {2, 1}), at::full({3, 2}, 7, at::kInt));
}

TEST(Call, TensorListsOptionalTensorListsAndScalarLists) {
  Session s;
  const at::Tensor x = F32({3, 2}), index = at::full({1}, 2, at::kLong);
  s.Upload(1, x);
  s.Upload(2, index);
  Builder b;
  const uint64_t factor = b.Param();
  const uint64_t in = b.Buffer();
  const uint64_t tx = b.Tensor(in, MYC_F32, {3, 2}), ti = b.Fresh(MYC_I64, {1});
  const uint64_t row = b.Tensor(in, MYC_F32, {2}, {1}, 2);  // row 1
  const uint64_t cat = b.Fresh(MYC_F32, {6, 2}), picked = b.Fresh(MYC_F32, {3, 1});
  b.Call("aten::cat", {List(MYC_L_TENSORS, {T(tx), T(tx)}), Int(0)}, {cat});
  // x[:, 1:2] by an index tensor in dim 1: the column index is index - 1.
  const uint64_t col = b.Fresh(MYC_I64, {1});
  b.Call("aten::sub.Scalar", {T(ti), Int(1), Int(1)}, {col});
  b.Call("aten::index.Tensor", {T(tx), List(MYC_L_OPT_TENSORS, {None(), T(col)})}, {picked});
  b.Call("aten::_foreach_add_.Scalar", {List(MYC_L_TENSORS, {T(cat), T(row)}), Number(MYC_N_F64, factor)});
  b.Call("aten::_foreach_mul_.ScalarList",
         {List(MYC_L_TENSORS, {T(cat), T(row)}), List(MYC_L_SCALARS, {Float(2), Number(MYC_N_F64, factor)})});
  EXPECT_RUNS(s.Run(b, {Bits(10)}, {{in, 1}, {1, 2}}, {{2, 3}, {3, 4}}));
  EXPECT_SAME(s.ReadF32(3, {6, 2}), (at::cat({x, x}) + 10) * 2);
  EXPECT_SAME(s.ReadF32(4, {3, 1}), at::index_select(x, 1, at::full({1}, 1, at::kLong)));
  const at::Tensor want = x.clone();
  want.select(0, 1).add_(10).mul_(10);
  EXPECT_SAME(s.ReadF32(1, {3, 2}), want);
}

TEST(Call, ListReturnsAreFlattened) {
  Session s;
  const at::Tensor x = F32({5});
  s.Upload(1, x);
  Builder b;
  const uint64_t tx = b.Fresh(MYC_F32, {5}), first = b.Fresh(MYC_F32, {2}), last = b.Fresh(MYC_F32, {1});
  b.Call("mycelya::test_split", {T(tx), Int(2), Int(0)}, {first, Builder::kNoTensor, last});
  EXPECT_RUNS(s.Run(b, {}, {{0, 1}}, {{1, 2}, {2, 3}}));
  EXPECT_SAME(s.ReadF32(2, {2}), x.narrow(0, 0, 2));
  EXPECT_SAME(s.ReadF32(3, {1}), x.narrow(0, 4, 1));

  Builder few;
  const uint64_t y = few.Fresh(MYC_F32, {5});
  few.Call("mycelya::test_split", {T(y), Int(2), Int(0)}, {few.Fresh(MYC_F32, {2}), Builder::kNoTensor});
  const auto errors = s.Run(few, {}, {{0, 1}}, {{1, 4}});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].text, "BUG: mycelya::test_split returned 3 tensors, the client inferred 2.");
}

TEST(Call, UndefinedReturnsMatchUnwantedResults) {
  Session s;
  s.Upload(1, F32({2, 3}));
  s.Upload(2, at::full({2, 1}, 1.0f));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {2, 3}), stat = b.Fresh(MYC_F32, {2, 1});
  const uint64_t dx = b.Fresh(MYC_F32, {2, 3}), dw = b.Fresh(MYC_F32, {3});
  const std::vector<Words> args = {
      T(x),    T(x),   Ints({3}), T(stat),
      T(stat), None(), None(),    List(MYC_L_BOOLS, {Bool(true), Bool(false), Bool(false)})};
  b.Call("aten::native_layer_norm_backward", args, {dx, Builder::kNoTensor, Builder::kNoTensor});
  EXPECT_RUNS(s.Run(b, {}, {{0, 1}, {1, 2}}, {{2, 3}}));
  b.Call("aten::native_layer_norm_backward", args, {dx, dw, Builder::kNoTensor});
  const auto errors = s.Run(b, {}, {{0, 1}, {1, 2}}, {{2, 4}});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].text,
            "BUG: aten::native_layer_norm_backward returned an undefined tensor, the client inferred f32[3].");
}

TEST(Call, AnotherTypeThanInferredIsABug) {
  Session s;
  s.Upload(1, F32({2, 3}));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {2, 3});
  b.Record(2);
  b.Call("aten::neg", {T(x)}, {b.Fresh(MYC_F32, {3, 2})});
  b.Record(1);  // of an earlier op, so it runs too
  b.Call("aten::neg", {T(x)}, {b.Fresh(MYC_F64, {2, 3})});
  const auto errors = s.Run(b, {}, {{0, 1}}, {});
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0].text, "BUG: aten::neg returned f32[2,3], the client inferred f64[2,3].");
  EXPECT_EQ(errors[1].text, "BUG: aten::neg returned f32[2,3], the client inferred f32[3,2].");
}

TEST(Call, OutOperandThatIsResizedIsABug) {
  Session s;
  s.Upload(1, F32({2, 3}));
  s.Upload(2, F32({4}));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {2, 3}), out = b.Fresh(MYC_F32, {4});
  b.Call("aten::neg.out", {T(x), T(out)});
  const auto errors = s.Run(b, {}, {{0, 1}, {1, 2}}, {});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].text,
            "BUG: aten::neg.out turned an operand that it writes from f32[4] with strides [1] and offset 0 into "
            "f32[2,3] with strides [3,1] and offset 0.");
}

TEST(Call, DefaultsFillWhatAProgramLeavesOut) {
  Session s;
  s.Upload(1, F32({2}));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {2}), y = b.Fresh(MYC_F32, {2});
  b.Call("aten::add.Tensor", {T(x), T(x)}, {y});
  EXPECT_RUNS(s.Run(b, {}, {{0, 1}}, {{1, 2}}));
  EXPECT_SAME(s.ReadF32(2, {2}), F32({2}, 2));
}

}  // namespace
}  // namespace mycelya::exec::test
