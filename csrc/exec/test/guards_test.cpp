// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Hostile operands of operators whose kernels trust their callers: an error of the step, and the executor goes on. The
// guards of CUDA are called on CPU tensors here: they are the same code.
#include "exec/guards/Guards.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

constexpr uint64_t kF = MYC_F32, kI = MYC_I64;

// A call on storage 1 (64 zeros of f32) and storage 2 (64 times 2^40), with results that nobody reads.
struct Hostile {
  const char* op;
  uint64_t results;
  std::vector<Words> (*args)(Builder&);
  const char* want;  // in the error
};

Words F(Builder& b, const std::vector<D>& sizes) { return T(b.Tensor(0, kF, sizes)); }
Words Wild(Builder& b, const std::vector<D>& sizes) { return T(b.Tensor(1, kI, sizes)); }
Words Two(Builder& b, const std::vector<D>& sizes) { return T(b.Tensor(2, kI, sizes)); }

using B = Builder&;
using Args = std::vector<Words>;

const Hostile kHostile[] = {
    {"_embedding_bag_forward_only", 4,
     [](B b) -> Args {
       return {F(b, {4, 4}), Two(b, {2}), Two(b, {1}), Bool(false), Int(0), Bool(false), None(), Bool(true)};
     },
     "there is no bag for 2 indices"},
    {"_fft_c2r", 1,
     [](B b) -> Args {
       return {T(b.Tensor(0, MYC_C64, {2, 6})), Ints({1}), Int(1), Int(4)};
     },
     "a result of 4 needs 3"},
    {"_native_batch_norm_legit.no_stats", 3,
     [](B b) -> Args {
       return {F(b, {2, 3}), None(), None(), Bool(false), Float(0.1), Float(1e-5)};
     },
     "running statistics are missing"},
    {"fractional_max_pool2d_backward", 1,
     [](B b) -> Args {
       return {F(b, {1, 2, 4}), F(b, {1, 2, 4}), Ints({3, 4096, 1}), Ints({}), Two(b, {1, 2, 4})};
     },
     "kernel_size and output_size have 3 and 0 numbers"},
    {"native_group_norm", 3,
     [](B b) -> Args {
       return {F(b, {2, 4}), None(), None(), Int(0), Int(4), Int(1), Int(2), Float(1e-5)};
     },
     "input has 8 elements, not 0 x 4 x 1"},
    {"random_.from", 0,
     [](B b) -> Args {
       return {F(b, {4}), Int(std::numeric_limits<int64_t>::max()), None(), None()};
     },
     "no number is above"},
    {"rrelu_with_noise", 1,
     [](B b) -> Args {
       return {F(b, {4, 4}), T(b.Tensor(1, kF, {4, 4}, {0, 1}, 0)), Float(0.1), Float(0.3), Bool(true)};
     },
     "noise is not dense"},
    {"upsample_nearest1d", 1,
     [](B b) -> Args {
       return {F(b, {1, 2, 4}), Ints({4}), Float(1e-320)};
     },
     "is out of range"},
    {"_cholesky_solve_helper", 1,
     [](B b) -> Args {
       return {F(b, {3, 2}), F(b, {2, 2}), Bool(false)};
     },
     "do not fit"},
    {"_convert_indices_from_coo_to_csr", 1,
     [](B b) -> Args {
       return {Wild(b, {4}), Int(3)};
     },
     "out of range"},
    {"_convert_indices_from_csr_to_coo", 1,
     [](B b) -> Args {
       return {Wild(b, {4}), Two(b, {3})};
     },
     "out of range"},
    {"_ctc_loss", 2,
     [](B b) -> Args {
       return {F(b, {4, 1, 3}), Wild(b, {2}), Ints({4}), Ints({2}), Int(0), Bool(false)};
     },
     "target 1099511627776 is out of range"},
    {"_ctc_loss", 2,
     [](B b) -> Args {
       return {F(b, {4, 1, 3}), Two(b, {2}), Ints({4}), Ints({-1}), Int(0), Bool(false)};
     },
     "target_lengths has -1"},
    {"_ctc_loss_backward", 1,
     [](B b) -> Args {
       return {F(b, {1}), F(b, {4, 1, 3}), Two(b, {2}), Ints({4}), Ints({2}), F(b, {1}), F(b, {1, 4, 2}), Int(0)};
     },
     "log_alpha has sizes"},
    {"_embedding_bag_dense_backward", 1,
     [](B b) -> Args {
       return {F(b, {1, 2}), Two(b, {2}), Wild(b, {2}), Two(b, {1}), Two(b, {1, 2}),
               Int(4),       Bool(false), Int(0),       None()};
     },
     "offset2bag"},
    {"_fft_c2c", 1,
     [](B b) -> Args {
       return {F(b, {4}), Ints({0}), Int(0), Bool(true)};
     },
     "dtype"},
    {"_fft_r2c", 1,
     [](B b) -> Args {
       return {F(b, {4}), Ints({7}), Int(0), Bool(true)};
     },
     "dim 7 is out of range"},
    {"_fft_r2c", 1,
     [](B b) -> Args {
       return {F(b, {4}), Ints({}), Int(0), Bool(true)};
     },
     "at least one dim"},
    {"_fft_c2r", 1,
     [](B b) -> Args {
       return {T(b.Tensor(0, MYC_C64, {4})), Ints({0}), Int(0), Int(99)};
     },
     "needs 50"},
    {"_segment_reduce_backward", 1,
     [](B b) -> Args { return {F(b, {2}), F(b, {2}), F(b, {4}), Str("sum"), Wild(b, {2}), None(), Int(0), None()}; },
     "length 1099511627776 is out of range"},
    {"_transform_bias_rescale_qkv", 3,
     [](B b) -> Args {
       return {F(b, {1, 2, 6}), F(b, {3}), Int(2)};
     },
     "qkv_bias"},
    {"_transform_bias_rescale_qkv", 3,
     [](B b) -> Args {
       return {F(b, {1, 2, 6}), F(b, {6}), Int(0)};
     },
     "0 heads"},
    {"_weight_norm_interface", 2,
     [](B b) -> Args {
       return {F(b, {3, 4}), F(b, {2}), Int(0)};
     },
     "3 vectors"},
    {"_weight_norm_interface_backward", 2,
     [](B b) -> Args {
       return {F(b, {3, 4}), F(b, {3, 4}), F(b, {3}), F(b, {1}), Int(0)};
     },
     "3 vectors"},
    {"adaptive_max_pool2d_backward", 1,
     [](B b) -> Args {
       return {F(b, {1, 1, 1}), F(b, {1, 2, 2}), Wild(b, {1, 1, 1})};
     },
     "index 1099511627776"},
    {"embedding_dense_backward", 1,
     [](B b) -> Args {
       return {F(b, {2, 3}), Wild(b, {2}), Int(4), Int(-1), Bool(true)};
     },
     "index 1099511627776"},
    {"embedding_dense_backward", 1,
     [](B b) -> Args {
       return {F(b, {2, 3}), Two(b, {5}), Int(4), Int(-1), Bool(true)};
     },
     "grad_output has sizes"},
    {"fractional_max_pool2d_backward", 1,
     [](B b) -> Args {
       return {F(b, {1, 1, 1}), F(b, {1, 2, 2}), Ints({2, 2}), Ints({1, 1}), Wild(b, {1, 1, 1})};
     },
     "index 1099511627776"},
    {"fractional_max_pool3d_backward", 1,
     [](B b) -> Args {
       return {F(b, {1, 1, 1, 1}), F(b, {1, 2, 2, 2}), Ints({2, 2, 2}), Ints({1, 1, 1}), Wild(b, {1, 1, 1, 1})};
     },
     "index 1099511627776"},
    {"max_pool2d_with_indices_backward", 1,
     [](B b) -> Args {
       return {F(b, {1, 1, 1}), F(b, {1, 2, 2}), Ints({2, 2}), Ints({2, 2}),
               Ints({0, 0}),    Ints({1, 1}),    Bool(false),  Wild(b, {1, 1, 1})};
     },
     "index 1099511627776"},
    {"native_batch_norm_backward", 3,
     [](B b) -> Args {
       return {
           F(b, {2, 3}), F(b, {2, 3}), F(b, {1}),  None(),   None(),
           F(b, {3}),    F(b, {3}),    Bool(true), Float(1), List(MYC_L_BOOLS, {Bool(true), Bool(true), Bool(true)})};
     },
     "weight has sizes [1], not [3]"},
    {"range", 1,
     [](B) -> Args {
       return {Float(0), Float(1e300)};
     },
     "too large"},
    {"range", 1,
     [](B) -> Args {
       return {Float(0), Float(NAN)};
     },
     "not a range"},
    {"reflection_pad1d_backward", 1,
     [](B b) -> Args {
       return {F(b, {1, 3}), F(b, {1, 5}), Ints({40, 40})};
     },
     "not less than"},
    {"reflection_pad2d_backward", 1,
     [](B b) -> Args {
       return {F(b, {1, 3, 3}), F(b, {1, 5, 5}), Ints({1, 1, 1, 1})};
     },
     "grad_output has sizes"},
    {"segment_reduce", 1,
     [](B b) -> Args { return {F(b, {4}), Str("sum"), Wild(b, {2}), None(), None(), Int(0), Bool(true)}; },
     "length 1099511627776 is out of range"},
    {"smooth_l1_loss_backward", 1,
     [](B b) -> Args {
       return {F(b, {4}), Two(b, {4}), F(b, {4}), Int(0), Float(1)};
     },
     "they must be the same"},
};

TEST(Guards, HostileOperandsAreErrors) {
  Session s;
  s.Upload(1, at::zeros({64}));
  s.Upload(2, at::full({64}, int64_t{1} << 40, at::kLong));
  s.Upload(3, at::full({64}, 2, at::kLong));
  for (const Hostile& h : kHostile) {
    Builder b;
    for (int i = 0; i < 3; ++i) b.Buffer();
    const Args args = h.args(b);
    const std::string name = std::string("aten::") + h.op;
    b.Call(name, args, std::vector<uint64_t>(h.results, Builder::kNoTensor));
    const auto errors = s.Run(b, {}, {{0, 1}, {1, 2}, {2, 3}}, {});
    ASSERT_EQ(errors.size(), 1u) << h.op;
    EXPECT_NE(errors[0].text.find(h.want), std::string::npos) << h.op << ": " << errors[0].text;
    EXPECT_EQ(errors[0].text.rfind(name + ": ", 0), 0u) << errors[0].text;
  }
  Builder lists;
  const uint64_t t = lists.Fresh(kF, {2});
  lists.Call("aten::_foreach_copy", {List(MYC_L_TENSORS, {T(t), T(t)}), List(MYC_L_TENSORS, {T(t)})}, {});
  EXPECT_EQ(s.Run(lists, {}, {{0, 1}}, {}).size(), 1u);
}

TEST(Guards, AnArgumentNamedUnsafeIsFalse) {
  Session s;
  s.Upload(1, at::zeros({64}));
  s.Upload(2, at::full({64}, 99, at::kLong));
  Builder b;
  const uint64_t x = b.Fresh(kF, {4}), i = b.Fresh(kI, {1});
  b.Call("aten::_index_put_impl_",
         {T(x), List(MYC_L_OPT_TENSORS, {T(i)}), T(b.Tensor(0, kF, {1})), Bool(false), Bool(true)}, {});
  EXPECT_EQ(s.Run(b, {}, {{0, 1}, {1, 2}}, {}).size(), 1u);
}

// The error of the guard for CUDA, "" if the operands are good.
std::string OnCuda(const std::string& name, const torch::jit::Stack& stack) {
  const Guard* guard = GuardOf(name, /*apart=*/true);
  if (guard == nullptr) return "no guard";
  try {
    CheckOperands(*guard, name, stack);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}

TEST(Guards, IndicesAreCheckedBeforeKernelsOfCuda) {
  const at::Tensor x = at::zeros({4, 3}), last = at::tensor({0, 3}), over = at::tensor({0, 4}), back = at::tensor({-4});
  const auto list = [](const at::Tensor& t) { return c10::List<std::optional<at::Tensor>>({t}); };
  EXPECT_EQ(OnCuda("aten::embedding", {x, last}), "");
  EXPECT_EQ(OnCuda("aten::embedding", {x, over}),
            "aten::embedding: index 4 is out of range; the smallest allowed is 0 and the largest is 3.");
  EXPECT_EQ(OnCuda("aten::index_select", {x, 1, last}),
            "aten::index_select: index 3 is out of range; the smallest allowed is 0 and the largest is 2.");
  EXPECT_EQ(OnCuda("aten::index_add_", {x, -2, last, x}), "");
  EXPECT_EQ(OnCuda("aten::scatter_.value", {x, 0, over, 1.0}),
            "aten::scatter_.value: index 4 is out of range; the smallest allowed is 0 and the largest is 3.");
  EXPECT_EQ(OnCuda("aten::take", {x, at::tensor({-12, 11})}), "");
  EXPECT_NE(OnCuda("aten::take", {x, at::tensor({-13})}), "");
  EXPECT_EQ(OnCuda("aten::index.Tensor", {x, list(back)}), "");
  EXPECT_NE(OnCuda("aten::index.Tensor", {x, list(over)}), "");
  EXPECT_EQ(OnCuda("aten::nll_loss_forward", {x, at::tensor({2, -100}), c10::IValue(), 1, -100}), "");
  EXPECT_NE(OnCuda("aten::nll_loss_forward", {x, at::tensor({3, -100}), c10::IValue(), 1, -100}), "");
  EXPECT_NE(OnCuda("aten::max_unpool2d", {x, at::tensor({4}), c10::List<int64_t>({2, 2})}), "");
  EXPECT_EQ(GuardOf("aten::embedding", /*apart=*/false), nullptr);  // ATen's kernel checks the indices there
  EXPECT_EQ(OnCuda("aten::add.Tensor", {x, x}), "no guard");
}

}  // namespace
}  // namespace mycelya::exec::test
