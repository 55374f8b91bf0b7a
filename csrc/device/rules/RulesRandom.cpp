// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Random numbers. The in-place fills are listed for their checks; their result is the tensor itself.

#include <ATen/ExpandUtils.h>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

bool Floating(const Tensor& t) { return c10::isFloatingType(t.scalar_type()); }

void Itself(OutMetas& out, const Tensor& self) { Add(out, self.sizes(), self.strides(), self.scalar_type()); }

// self mean std
void Normal(Args args, OutMetas& out) {
  const double std = args[2].toDouble();
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK_NOT_IMPLEMENTED(Floating(self) || self.is_complex(), "\"normal_kernel\" not implemented for '",
                              self.scalar_type(), "'");
  Itself(out, self);
}

// self from to
void Uniform(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const double from = args[1].toDouble(), to = args[2].toDouble();
  TORCH_CHECK_NOT_IMPLEMENTED(Floating(self) || self.is_complex(), "\"check_uniform_bounds\" not implemented for '",
                              self.scalar_type(), "'");
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  Itself(out, self);
}

// self lambda
void Exponential(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(args[1].toDouble() > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", args[1].toDouble());
  TORCH_CHECK(Floating(self), "Exponential distribution is a continuous probability distribution. dtype must be a ",
              "floating point but you specified ", self.scalar_type());
  Itself(out, self);
}

// self p
void Geometric(Args args, OutMetas& out) {
  const double p = args[1].toDouble();
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  Itself(out, TensorAt(args, 0));
}

// self median sigma
void Cauchy(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(args[2].toDouble() > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", args[2].toDouble());
  TORCH_CHECK(Floating(self), "Cauchy distribution is a continuous probability distribution. dtype must be a floating ",
              "point but you specified ", self.scalar_type());
  Itself(out, self);
}

// self mean std
void LogNormal(Args args, OutMetas& out) {
  TORCH_CHECK(args[2].toDouble() > 0.0, "log_normal_ expects std > 0.0, but found std=", args[2].toDouble());
  Itself(out, TensorAt(args, 0));
}

void Random(Args args, OutMetas& out) { Itself(out, TensorAt(args, 0)); }

// self to
void RandomTo(Args args, OutMetas& out) {
  TORCH_CHECK(args[1].toInt() > 0,
              "random_ expects 'from' to be less than 'to', but got from=0 >= to=", args[1].toInt());
  Itself(out, TensorAt(args, 0));
}

// self from to?
void RandomFrom(Args args, OutMetas& out) {
  if (!args[2].isNone()) {
    TORCH_CHECK(args[1].toInt() < args[2].toInt(),
                "random_ expects 'from' to be less than 'to', but got from=", args[1].toInt(),
                " >= to=", args[2].toInt());
  }
  Itself(out, TensorAt(args, 0));
}

// self p
void BernoulliFloat(Args args, OutMetas& out) {
  const double p = args[1].toDouble();
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  Itself(out, TensorAt(args, 0));
}

// self p
void BernoulliTensor(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), p = TensorAt(args, 1);
  TORCH_CHECK(Floating(p), "expected probabilities tensor to have floating type, got ", p.scalar_type());
  at::infer_size(self.sizes(), p.sizes());
  Itself(out, self);
}

void Bernoulli(Args args, OutMetas& out) { AddLike(out, TensorAt(args, 0)); }

void NormalMean(Args args, OutMetas& out) {
  TORCH_CHECK(args[1].toDouble() >= 0.0, "normal expects std >= 0.0, but found std ", args[1].toDouble());
  AddLikeContiguous(out, TensorAt(args, 0));
}

void NormalStd(Args args, OutMetas& out) {
  const Tensor std = TensorAt(args, 1);
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  AddLikeContiguous(out, std);
}

void NormalMeanStd(Args args, OutMetas& out) {
  const Tensor mean = TensorAt(args, 0), std = TensorAt(args, 1);
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  AddContiguous(out, at::infer_size_dimvector(mean.sizes(), std.sizes()), mean.scalar_type());
}

void Binomial(Args args, OutMetas& out) {
  const Tensor count = TensorAt(args, 0), prob = TensorAt(args, 1);
  Elementwise(out, {count, prob}, Promote::kNone);
}

// self [n] or [m, n]: num_samples replacement
void Multinomial(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const int64_t samples = args[1].toInt();
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(Floating(self), "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(args[2].toBool() || samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  DimVector sizes(self.sizes().begin(), self.sizes().end());
  sizes.back() = samples;
  AddContiguous(out, sizes, ScalarType::Long);
}

void AddPermutation(OutMetas& out, int64_t n, ScalarType dtype) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  AddContiguous(out, {n}, dtype);
}

// n dtype? …
void Permutation(Args args, OutMetas& out) {
  AddPermutation(out, args[0].toInt(), MaybeDtype(args, 1).value_or(ScalarType::Long));
}

// n generator? dtype? …
void PermutationGenerator(Args args, OutMetas& out) {
  AddPermutation(out, args[0].toInt(), MaybeDtype(args, 2).value_or(ScalarType::Long));
}

// n generator? out
void PermutationOut(Args args, OutMetas& out) { AddPermutation(out, args[0].toInt(), TensorAt(args, 2).scalar_type()); }

constexpr RuleRow kRandomRows[] = {
    {"_sample_dirichlet", LikeContiguous},
    {"_standard_gamma", LikeContiguous},
    {"bernoulli", Bernoulli},
    {"bernoulli_.Tensor", BernoulliTensor},
    {"bernoulli_.float", BernoulliFloat},
    {"binomial", Binomial},
    {"cauchy_", Cauchy},
    {"exponential_", Exponential},
    {"geometric_", Geometric},
    {"log_normal_", LogNormal},
    {"multinomial", Multinomial},
    {"normal.Tensor_Tensor", NormalMeanStd},
    {"normal.Tensor_float", NormalMean},
    {"normal.float_Tensor", NormalStd},
    {"normal_", Normal},
    {"poisson", LikeContiguous},
    {"random_", Random},
    {"random_.from", RandomFrom},
    {"random_.to", RandomTo},
    {"randperm", Permutation},
    {"randperm.generator", PermutationGenerator},
    {"randperm.generator_out", PermutationOut},
    {"uniform_", Uniform},
};

}  // namespace

RuleRows RandomRules() { return kRandomRows; }

}  // namespace mycelya::rules
