// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Guards of operators on lists of tensors, of those that write operands of given sizes, and of random numbers.
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/result_type.h>

#include <limits>

#include "exec/guards/GuardOperands.h"

namespace mycelya::exec {

// random_.from(self, from, to, generator): the kernel looks for ever for a number above the largest.
void CheckRandomFrom(const Operands& o) {
  const bool from = o.name().find(".from") != std::string::npos;
  o.Require(!from || o.Given(2) || o.Int(1) < std::numeric_limits<int64_t>::max(), "no number is above ",
            std::numeric_limits<int64_t>::max(), ".");
}

// _foreach_copy(self, src)
void CheckForeachCopy(const Operands& o) {
  const size_t to = o.Tensors(0).size(), from = o.Tensors(1).size();
  o.Require(to == from && to > 0, "the lists have ", to, " and ", from, " tensors.");
}

// _fused_adam_(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, ...), _fused_adamw_, _fused_sgd_(self,
// grads, momentum_buffer_list, ...), _fused_adagrad_(self, grads, state_sums, state_steps, ...). The kernels read and
// write as many elements of each list's tensor as the parameter has, and one element of each step. Lists may be empty
// where an option needs none.
void CheckFusedOptimizer(const Operands& o) {
  const std::vector<at::Tensor> params = o.Tensors(0);
  for (size_t i = 1; o.IsList(i); ++i) {
    const std::vector<at::Tensor> list = o.Tensors(i);
    const bool steps = o.IsList(i) && !o.IsList(i + 1) && o.name().find("_sgd") == std::string::npos;
    const bool optional = i > 1 && !steps;
    o.Require(list.size() == params.size() || (optional && list.empty()), "list ", i, " has ", list.size(),
              " tensors for ", params.size(), " parameters.");
    for (size_t j = 0; j < list.size(); ++j) {
      const at::Tensor& t = list[j];
      if (steps) {
        o.Require(t.numel() == 1 && t.scalar_type() == c10::ScalarType::Float, "a step has sizes ", t.sizes(),
                  " and dtype ", t.scalar_type(), "; it must be one float32.");
        continue;
      }
      o.Require(t.sizes() == params[j].sizes() && t.scalar_type() == params[j].scalar_type(), "list ", i,
                " has a tensor of sizes ", t.sizes(), " and dtype ", t.scalar_type(), " for a parameter of sizes ",
                params[j].sizes(), " and dtype ", params[j].scalar_type(), ".");
      o.Require(t.is_non_overlapping_and_dense(), "a tensor of list ", i, " has strides ", t.strides(),
                "; it must be dense.");
    }
  }
  for (const at::Tensor& p : params) {
    o.Require(p.is_non_overlapping_and_dense() && c10::isFloatingType(p.scalar_type()), "a parameter has dtype ",
              p.scalar_type(), " and strides ", p.strides(), "; it must be dense and of floats.");
  }
  for (size_t i = 1; i < o.size(); ++i) {  // lr, grad_scale and found_inf
    if (!o.Given(i) || !o.IsTensor(i)) continue;
    o.Require(o.Tensor(i).numel() == 1 && c10::isFloatingType(o.Tensor(i).scalar_type()), "argument ", i, " has sizes ",
              o.Tensor(i).sizes(), " and dtype ", o.Tensor(i).scalar_type(), "; it must be one float.");
  }
}

// _cummax_helper(self, values, indices, dim): values and indices are written.
void CheckCumulation(const Operands& o) {
  o.Require(o.Tensor(0).numel() > 0, "self has no elements.");
  o.RequireSizes(1, "values", o.Tensor(0).sizes());
  o.RequireSizes(2, "indices", o.Tensor(0).sizes());
  o.RequireSameDtype({0, 1});
  o.Require(o.Tensor(2).scalar_type() == c10::ScalarType::Long, "indices have dtype ", o.Tensor(2).scalar_type(),
            "; they must be int64.");
  const int64_t rank = std::max<int64_t>(o.Tensor(0).dim(), 1);
  o.Require(o.Int(3) >= -rank && o.Int(3) < rank, "dim ", o.Int(3), " is out of range for ", rank, " dims.");
  for (const size_t i : {1, 2}) {
    o.Require(o.Tensor(i).is_non_overlapping_and_dense(), "a result has strides ", o.Tensor(i).strides(),
              "; it must be dense.");
  }
}

// _logcumsumexp(self, dim) and its form with out
void CheckLogCumSum(const Operands& o) {
  if (o.size() < 3) return;
  o.RequireSizes(2, "out", o.Tensor(0).sizes());
  o.RequireSameDtype({0, 2});
}

// _fused_moving_avg_obs_fq_helper(self, observer_on, fake_quant_on, running_min, running_max, scale, zero_point,
// averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, ...)
void CheckMovingAverageObserver(const Operands& o) {
  o.Require(o.Tensor(1).numel() == 1 && o.Tensor(2).numel() == 1, "observer_on and fake_quant_on are not one number.");
  const int64_t axis = o.Int(10);
  o.Require(!o.Bool(11) || (axis >= 0 && axis < o.Tensor(0).dim()), "ch_axis ", axis, " is out of range for ",
            o.Tensor(0).dim(), " dims.");
  const int64_t channels = o.Bool(11) ? o.Size(0, axis) : 1;
  for (const size_t i : {3, 4, 5, 6}) {
    o.Require(o.Tensor(i).numel() == channels && o.Tensor(i).is_non_overlapping_and_dense(), "argument ", i,
              " has sizes ", o.Tensor(i).sizes(), "; it needs ", channels, " elements.");
  }
  o.Require(o.Tensor(0).numel() > 0, "self has no elements.");
}

// grid_sampler_2d, grid_sampler_3d(input, grid, interpolation_mode, padding_mode, align_corners), and their backward,
// which has grad_output first: with another mode the kernel writes nothing to its result.
void CheckGridSampler(const Operands& o) {
  const size_t mode = o.name().find("backward") == std::string::npos ? 2 : 3;
  o.Require(o.Int(mode) >= 0 && o.Int(mode) <= 2 && o.Int(mode + 1) >= 0 && o.Int(mode + 1) <= 2, "interpolation_mode ",
            o.Int(mode), " or padding_mode ", o.Int(mode + 1), " is none of 0, 1 and 2.");
}

// polygamma(n, self), special_zeta(self, other): between negative poles the kernels take a step for each unit.
void CheckPoles(const Operands& o) {
  constexpr double kLeast = -1e6;
  const at::Tensor& t = o.Tensor(1);
  if (!c10::isFloatingType(t.scalar_type())) return;
  o.Require(!at::logical_and(t.lt(kLeast), t.ne(t.floor())).any().item<bool>(), "an operand has an element below ",
            kLeast, ".");
}

// binomial(count, prob): the sampling ends only for a finite count.
void CheckBinomial(const Operands& o) {
  const at::Tensor& count = o.Tensor(0);
  o.Require(c10::isFloatingType(count.scalar_type()), "count has dtype ", count.scalar_type(), "; it must be floats.");
  o.Require(at::isfinite(count).all().item<bool>(), "count has an element that is not finite.");
}

// special_*_polynomial_*(x, n): the kernels take n steps for each element, or stop when a value overflows. Where the
// values of a kind neither overflow soon nor have a closed form in ATen, a high degree would take hours.
void CheckPolynomial(const Operands& o) {
  constexpr double kMaxDegree = 1 << 20;
  // Farther than this outside of [-1, 1], values grow by at least 0.1 % a step, and overflow within a million steps.
  constexpr double kNear = 1e-6;
  const std::string& name = o.name();
  const auto is = [&](const char* kind) { return name.find(kind) != std::string::npos; };
  if (o.Tensor(0).is_complex() || o.Tensor(1).is_complex()) return;  // ATen says so
  if (is("hermite")) return;                                         // ATen has a limit of its own
  const at::Tensor high = o.Tensor(1).to(c10::ScalarType::Double).gt(kMaxDegree);
  if (!high.any().item<bool>()) return;
  at::Tensor x = o.Tensor(0).to(c10::ScalarType::Double);
  at::Tensor slow;
  if (is("laguerre")) {
    const bool wide = at::result_type(o.Tensor(0), o.Tensor(1)) == c10::ScalarType::Double;
    slow = x.ge(0).logical_and(x.lt(wide ? 1430 : 185));  // they stay below exp(x / 2)
  } else {
    // ATen has closed forms within [-1, 1], but for Legendre's. Near the ends of the shifted kinds, x * 2 - 1 may round
    // to an end, which has none.
    const bool shifted = is("shifted");
    const at::Tensor ends = shifted ? x.eq(0).logical_or(x.eq(1)) : x.abs().eq(1);
    if (shifted) x = x * 2 - 1;
    slow = x.abs().le(1 + kNear);
    if (!is("legendre")) slow = slow.logical_and(x.abs().ge(shifted ? 1 - kNear : 1)).logical_and(ends.logical_not());
  }
  o.Require(!high.logical_and(slow).any().item<bool>(), "a polynomial has a degree above ",
            static_cast<int64_t>(kMaxDegree), " where its values do not overflow.");
}

}  // namespace mycelya::exec
