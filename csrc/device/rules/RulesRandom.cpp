// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Random numbers. The in-place fills are listed for their checks; their result is the tensor itself.

#include <ATen/ExpandUtils.h>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

bool floating(const Tensor& t) { return c10::isFloatingType(t.scalar_type()); }

void itself(OutMetas& out, const Tensor& self) { add(out, self.sizes(), self.strides(), self.scalar_type()); }

// self mean std
void normal(Args args, OutMetas& out) {
  const double std = args[2].toDouble();
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
  const Tensor self = tensor(args, 0);
  TORCH_CHECK_NOT_IMPLEMENTED(floating(self) || self.is_complex(), "\"normal_kernel\" not implemented for '",
                              self.scalar_type(), "'");
  itself(out, self);
}

// self from to
void uniform(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const double from = args[1].toDouble(), to = args[2].toDouble();
  TORCH_CHECK_NOT_IMPLEMENTED(floating(self) || self.is_complex(), "\"check_uniform_bounds\" not implemented for '",
                              self.scalar_type(), "'");
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  itself(out, self);
}

// self lambda
void exponential(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  TORCH_CHECK(args[1].toDouble() > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", args[1].toDouble());
  TORCH_CHECK(floating(self), "Exponential distribution is a continuous probability distribution. dtype must be a ",
              "floating point but you specified ", self.scalar_type());
  itself(out, self);
}

// self p
void geometric(Args args, OutMetas& out) {
  const double p = args[1].toDouble();
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  itself(out, tensor(args, 0));
}

// self median sigma
void cauchy(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  TORCH_CHECK(args[2].toDouble() > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", args[2].toDouble());
  TORCH_CHECK(floating(self), "Cauchy distribution is a continuous probability distribution. dtype must be a floating ",
              "point but you specified ", self.scalar_type());
  itself(out, self);
}

// self mean std
void log_normal(Args args, OutMetas& out) {
  TORCH_CHECK(args[2].toDouble() > 0.0, "log_normal_ expects std > 0.0, but found std=", args[2].toDouble());
  itself(out, tensor(args, 0));
}

void random(Args args, OutMetas& out) { itself(out, tensor(args, 0)); }

// self to
void random_to(Args args, OutMetas& out) {
  TORCH_CHECK(args[1].toInt() > 0,
              "random_ expects 'from' to be less than 'to', but got from=0 >= to=", args[1].toInt());
  itself(out, tensor(args, 0));
}

// self from to?
void random_from(Args args, OutMetas& out) {
  if (!args[2].isNone()) {
    TORCH_CHECK(args[1].toInt() < args[2].toInt(),
                "random_ expects 'from' to be less than 'to', but got from=", args[1].toInt(),
                " >= to=", args[2].toInt());
  }
  itself(out, tensor(args, 0));
}

// self p
void bernoulli_float(Args args, OutMetas& out) {
  const double p = args[1].toDouble();
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  itself(out, tensor(args, 0));
}

// self p
void bernoulli_tensor(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0), p = tensor(args, 1);
  TORCH_CHECK(floating(p), "expected probabilities tensor to have floating type, got ", p.scalar_type());
  at::infer_size(self.sizes(), p.sizes());
  itself(out, self);
}

void bernoulli(Args args, OutMetas& out) { add_like(out, tensor(args, 0)); }

void like_contiguous(Args args, OutMetas& out) { add_like_contiguous(out, tensor(args, 0)); }

void normal_mean(Args args, OutMetas& out) {
  TORCH_CHECK(args[1].toDouble() >= 0.0, "normal expects std >= 0.0, but found std ", args[1].toDouble());
  add_like_contiguous(out, tensor(args, 0));
}

void normal_std(Args args, OutMetas& out) {
  const Tensor std = tensor(args, 1);
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  add_like_contiguous(out, std);
}

void normal_mean_std(Args args, OutMetas& out) {
  const Tensor mean = tensor(args, 0), std = tensor(args, 1);
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  add_contiguous(out, at::infer_size_dimvector(mean.sizes(), std.sizes()), mean.scalar_type());
}

void binomial(Args args, OutMetas& out) {
  const Tensor count = tensor(args, 0), prob = tensor(args, 1);
  elementwise(out, {count, prob}, Promote::kNone);
}

// self [n] or [m, n]: num_samples replacement
void multinomial(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const int64_t samples = args[1].toInt();
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(floating(self), "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(args[2].toBool() || samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  DimVector sizes(self.sizes().begin(), self.sizes().end());
  sizes.back() = samples;
  add_contiguous(out, sizes, ScalarType::Long);
}

void add_permutation(OutMetas& out, int64_t n, ScalarType dtype) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  add_contiguous(out, {n}, dtype);
}

// n dtype? …
void permutation(Args args, OutMetas& out) {
  add_permutation(out, args[0].toInt(), maybe_dtype(args, 1).value_or(ScalarType::Long));
}

// n generator? dtype? …
void permutation_generator(Args args, OutMetas& out) {
  add_permutation(out, args[0].toInt(), maybe_dtype(args, 2).value_or(ScalarType::Long));
}

// n generator? out
void permutation_out(Args args, OutMetas& out) { add_permutation(out, args[0].toInt(), tensor(args, 2).scalar_type()); }

constexpr RuleRow kRows[] = {
    {"_sample_dirichlet", like_contiguous},
    {"_standard_gamma", like_contiguous},
    {"bernoulli", bernoulli},
    {"bernoulli_.Tensor", bernoulli_tensor},
    {"bernoulli_.float", bernoulli_float},
    {"binomial", binomial},
    {"cauchy_", cauchy},
    {"exponential_", exponential},
    {"geometric_", geometric},
    {"log_normal_", log_normal},
    {"multinomial", multinomial},
    {"normal.Tensor_Tensor", normal_mean_std},
    {"normal.Tensor_float", normal_mean},
    {"normal.float_Tensor", normal_std},
    {"normal_", normal},
    {"poisson", like_contiguous},
    {"random_", random},
    {"random_.from", random_from},
    {"random_.to", random_to},
    {"randperm", permutation},
    {"randperm.generator", permutation_generator},
    {"randperm.generator_out", permutation_out},
    {"uniform_", uniform},
};

}  // namespace

RuleRows random_rules() { return kRows; }

}  // namespace mycelya::rules
