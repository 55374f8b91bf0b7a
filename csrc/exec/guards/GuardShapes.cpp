// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Guards of operators on sequences, transforms, norms, sparse indices and lists. Numbers are positions in the schema,
// which the comment above each function repeats.
#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>

#include "exec/guards/GuardOperands.h"

namespace mycelya::exec {
namespace {

bool Floating(const at::Tensor& t) { return c10::isFloatingType(t.scalar_type()); }

// Sizes of the leading dims, without the last `n`.
std::vector<int64_t> Leading(const at::Tensor& t, int64_t n) {
  return {t.sizes().begin(), t.sizes().end() - std::min(n, t.dim())};
}

// Requires one length for each item of the batch, and each length in [0, most].
void RequireLengths(const Operands& o, const std::vector<int64_t>& lengths, const char* what, int64_t n, int64_t most) {
  o.Require(static_cast<int64_t>(lengths.size()) == n, what, " has ", lengths.size(), " elements for a batch of ", n,
            ".");
  for (const int64_t length : lengths) {
    o.Require(length >= 0 && length <= most, what, " has ", length, "; the range is 0 to ", most, ".");
  }
}

struct Ctc {
  int64_t steps, batch, classes;
  int64_t longest = 0;  // target
};

// log_probs [T,N,C] or [T,C], targets [N,S] or [sum of lengths], lengths of both.
Ctc CheckCtc(const Operands& o, size_t first, size_t blank) {
  const size_t probs = first, targets = first + 1, inputs = first + 2, lengths = first + 3;
  o.RequireRank(probs, "log_probs", 2, 3);
  o.RequireRank(targets, "targets", 1, 2);
  o.Require(Floating(o.Tensor(probs)), "log_probs has dtype ", o.Tensor(probs).scalar_type(), ".");
  const at::Tensor& p = o.Tensor(probs);
  const at::Tensor& t = o.Tensor(targets);
  Ctc ctc{p.size(0), p.dim() == 3 ? p.size(1) : 1, p.size(-1)};
  o.Require(o.Int(blank) >= 0 && o.Int(blank) < ctc.classes, "blank ", o.Int(blank),
            " is out of range; the largest allowed is ", ctc.classes - 1, ".");
  const std::vector<int64_t> input_lengths = o.Numbers(inputs), target_lengths = o.Numbers(lengths);
  RequireLengths(o, input_lengths, "input_lengths", ctc.batch, ctc.steps);
  const bool padded = t.dim() == 2;
  RequireLengths(o, target_lengths, "target_lengths", ctc.batch, padded ? t.size(1) : t.numel());
  int64_t sum = 0;
  for (const int64_t n : target_lengths) {
    ctc.longest = std::max(ctc.longest, n);
    sum += n;
  }
  if (padded) {
    o.Require(t.size(0) == ctc.batch, "targets has ", t.size(0), " rows for a batch of ", ctc.batch, ".");
    // Elements after a row's length are padding of any value.
    for (int64_t row = 0; row < ctc.batch; ++row) {
      o.RequireRange(t[row].narrow(0, 0, target_lengths[row]), "target", 0, ctc.classes);
    }
  } else {
    o.Require(t.numel() == sum, "targets has ", t.numel(), " elements; target_lengths add up to ", sum, ".");
    o.RequireRange(t, "target", 0, ctc.classes);
  }
  return ctc;
}

}  // namespace

// _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
void CheckCtcLoss(const Operands& o) { CheckCtc(o, 0, 4); }

// _ctc_loss_backward(grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank,
// zero_infinity)
void CheckCtcLossBackward(const Operands& o) {
  const Ctc ctc = CheckCtc(o, 1, 7);
  o.RequireSameDtype({0, 1, 5, 6});
  const bool batched = o.Tensor(1).dim() == 3;
  const std::vector<int64_t> each = batched ? std::vector<int64_t>{ctc.batch} : std::vector<int64_t>{};
  o.Require(o.Tensor(0).numel() == ctc.batch && o.Tensor(0).dim() <= 1, "grad has sizes ", o.Tensor(0).sizes(),
            " for a batch of ", ctc.batch, ".");
  o.Require(o.Tensor(5).numel() == ctc.batch && o.Tensor(5).dim() <= 1, "neg_log_likelihood has sizes ",
            o.Tensor(5).sizes(), " for a batch of ", ctc.batch, ".");
  const at::Tensor& alpha = o.Tensor(6);
  const int64_t states = 2 * ctc.longest + 1;
  o.Require(alpha.dim() == (batched ? 3 : 2) && alpha.size(-1) >= states && alpha.size(-2) >= ctc.steps &&
                alpha.numel() >= ctc.batch * ctc.steps * states && (!batched || alpha.size(0) == ctc.batch),
            "log_alpha has sizes ", alpha.sizes(), "; it needs ", states, " states for each of ", ctc.steps,
            " steps of ", ctc.batch, " sequences.");
}

// _fft_c2c(self, dim, normalization, forward), _fft_r2c(self, dim, normalization, onesided)
void CheckFft(const Operands& o) {
  const at::Tensor& self = o.Tensor(0);
  const std::vector<int64_t> dims = o.Ints(1);
  std::vector<bool> seen(self.dim());
  for (const int64_t d : dims) {
    o.Require(d >= -self.dim() && d < self.dim(), "dim ", d, " is out of range for ", self.dim(), " dims.");
    const int64_t at = d < 0 ? d + self.dim() : d;
    o.Require(!seen[at], "dim ", d, " appears twice.");
    seen[at] = true;
    o.Require(self.size(at) > 0, "dim ", d, " has size 0.");
  }
  o.Require(o.Int(2) >= 0 && o.Int(2) <= 2, "normalization ", o.Int(2), " is none of 0, 1 and 2.");
  const bool complex = o.name().find("r2c") == std::string::npos;
  o.Require(complex == self.is_complex(), "an operand has dtype ", self.scalar_type(), ".");
  o.Require(complex || (!dims.empty() && Floating(self)), "it needs at least one dim, and floats.");
}

// _fft_c2r(self, dim, normalization, last_dim_size)
void CheckFftToReal(const Operands& o) {
  CheckFft(o);
  o.Require(!o.Ints(1).empty(), "it needs at least one dim.");
  const int64_t last = o.Int(3);
  o.Require(last >= 1 && last < kMaxElements, "last_dim_size ", last, " is out of range.");
  const int64_t have = o.Size(0, o.Ints(1).back());
  o.Require(have == last / 2 + 1, "a dim has ", have, " elements; a result of ", last, " needs ", last / 2 + 1, ".");
}

// range(start, end, step, dtype) and its form with out
void CheckRange(const Operands& o) {
  const double start = o.Number(0).to<double>(), end = o.Number(1).to<double>();
  const bool out = o.name().find("range.out") != std::string::npos && o.IsTensor(3);
  const bool stepped = out || o.name().find("range.step") != std::string::npos;
  const double step = stepped ? o.Number(2).to<double>() : 1;
  o.Require(std::isfinite(start) && std::isfinite(end) && std::isfinite(step) && step != 0, "from ", start, " to ", end,
            " in steps of ", step, " is not a range.");
  // Integers are counted in whole steps.
  const size_t dtype = stepped ? 3 : 2;
  const bool whole = out ? c10::isIntegralType(o.Tensor(3).scalar_type(), /*includeBool=*/true)
                         : o.Given(dtype) && c10::isIntegralType(static_cast<c10::ScalarType>(o.Int(dtype)), true);
  o.Require(!whole || std::abs(step) >= 1, "a step of ", step, " is 0 as an integer.");
  const double count = (end - start) / step;
  o.Require(count >= 0, "a step of ", step, " does not lead from ", start, " to ", end, ".");
  o.Require(count < static_cast<double>(kMaxElements), "a range of ", count, " elements is too large.");
}

// native_batch_norm, _native_batch_norm_legit and _batch_norm_with_update(input, weight, bias, running_mean,
// running_var,
// ...); the form no_stats lacks the last two.
void CheckBatchNorm(const Operands& o) {
  o.RequireRank(0, "input", 2, 64);
  const char* const names[] = {"weight", "bias", "running_mean", "running_var"};
  for (size_t i = 1; i <= 4; ++i) {
    if (o.IsTensor(i) && o.Given(i)) o.RequireSizes(i, names[i - 1], {o.Size(0, 1)});
  }
  if (o.name().find("_with_update") != std::string::npos) return;  // it always trains
  const bool no_statistics = o.name().find(".no_stats") != std::string::npos;
  const bool training = o.Bool(no_statistics ? 3 : 5);
  o.Require(training || (!no_statistics && o.Given(3) && o.Given(4)), "running statistics are missing.");
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps)
void CheckGroupNorm(const Operands& o) {
  const int64_t n = o.Int(3), c = o.Int(4), hw = o.Int(5), groups = o.Int(6), elements = o.Tensor(0).numel();
  int64_t rows, all;
  const bool fits = n >= 0 && c >= 0 && hw >= 0 && !__builtin_mul_overflow(n, c, &rows) &&
                    !__builtin_mul_overflow(rows, hw, &all) && all == elements;
  o.Require(fits, "input has ", elements, " elements, not ", n, " x ", c, " x ", hw, ".");
  o.Require(groups > 0 && c % groups == 0, c, " channels make no ", groups, " groups.");
}

// native_batch_norm_backward and batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean,
// save_invstd, train, ...)
void CheckBatchNormBackward(const Operands& o) {
  o.RequireRank(1, "input", 2, 64);
  o.RequireSizes(0, "grad_out", o.Tensor(1).sizes());
  const int64_t channels = o.Tensor(1).size(1);
  const char* const names[] = {"weight", "running_mean", "running_var", "save_mean", "save_invstd"};
  for (size_t i = 2; i <= 6; ++i) {
    const bool needed = o.Bool(7) ? i >= 5 : i == 3 || i == 4;
    const bool unused = i >= 5 && !o.Bool(7);  // then a forward pass in evaluation mode has made it, without elements
    if (o.Given(i) && !(unused && o.Tensor(i).numel() == 0)) o.RequireSizes(i, names[i - 2], {channels});
    o.Require(!needed || o.Given(i), names[i - 2], " is missing.");
  }
  o.RequireSameDtype({0, 1});
}

// _weight_norm_interface(v, g, dim). Kernels exist for the first and the last dim.
void CheckWeightNorm(const Operands& o) {
  o.RequireRank(0, "v", 1, 64);
  const at::Tensor& v = o.Tensor(0);
  const int64_t dim = o.Int(2);
  o.Require(dim == 0 || dim == v.dim() - 1, "dim ", dim, " is neither the first nor the last of ", v.dim(), " dims.");
  o.Require(o.Tensor(1).numel() == v.size(dim), "g has ", o.Tensor(1).numel(), " elements for ", v.size(dim),
            " vectors.");
  o.Require(o.Tensor(1).is_non_overlapping_and_dense(), "g has strides ", o.Tensor(1).strides(), "; it must be dense.");
  o.Require(Floating(v) && Floating(o.Tensor(1)), "operands have dtypes ", v.scalar_type(), " and ",
            o.Tensor(1).scalar_type(), ".");
}

// _weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, dim)
void CheckWeightNormBackward(const Operands& o) {
  o.RequireRank(1, "saved_v", 1, 64);
  const at::Tensor& v = o.Tensor(1);
  const int64_t dim = o.Int(4);
  o.Require(dim == 0 || dim == v.dim() - 1, "dim ", dim, " is neither the first nor the last of ", v.dim(), " dims.");
  o.RequireSizes(0, "grad_w", v.sizes());
  o.Require(o.Tensor(2).numel() == v.size(dim) && o.Tensor(3).numel() == v.size(dim), "saved_g and saved_norms have ",
            o.Tensor(2).numel(), " and ", o.Tensor(3).numel(), " elements for ", v.size(dim), " vectors.");
  o.RequireSameDtype({0, 1, 2});
  o.Require(Floating(v) && Floating(o.Tensor(3)), "operands have dtypes ", v.scalar_type(), " and ",
            o.Tensor(3).scalar_type(), ".");
}

// _transform_bias_rescale_qkv(qkv, qkv_bias, num_heads)
void CheckTransformBiasRescaleQkv(const Operands& o) {
  o.RequireRank(0, "qkv", 3, 3);
  const int64_t width = o.Size(0, 2), heads = o.Int(2);
  o.Require(heads > 0 && width > 0 && width % 3 == 0 && width / 3 % heads == 0, "qkv has ", width, " columns, which ",
            heads, " heads can't share.");
  o.RequireSizes(1, "qkv_bias", {width});
  o.RequireSameDtype({0, 1});
}

// _cholesky_solve_helper(self, A, upper)
void CheckBufferOfCholeskySolve(const Operands& o) {
  o.RequireRank(0, "self", 2, 64);
  o.RequireRank(1, "A", 2, 64);
  const at::Tensor& a = o.Tensor(1);
  o.Require(a.size(-1) == a.size(-2) && a.size(-1) == o.Size(0, -2) && Leading(a, 2) == Leading(o.Tensor(0), 2),
            "operands of sizes ", o.Tensor(0).sizes(), " and ", a.sizes(), " do not fit together.");
  o.RequireSameDtype({0, 1});
}

// _convert_indices_from_coo_to_csr(self, size). Each row gets its count only if the indices do not decrease.
void CheckCooToCsr(const Operands& o) {
  o.RequireRank(0, "self", 1, 1);
  o.Require(o.Int(1) >= 0 && o.Int(1) < kMaxElements, "size ", o.Int(1), " is out of range.");
  o.RequireRange(o.Tensor(0), "index", 0, o.Int(1));
  o.RequireOrdered(o.Tensor(0), "indices");
}

// _convert_indices_from_csr_to_coo(crow_indices, col_indices)
void CheckCsrToCoo(const Operands& o) {
  o.RequireRank(0, "crow_indices", 1, 64);
  o.RequireRank(1, "col_indices", 1, 64);
  const at::Tensor& crow = o.Tensor(0);
  const at::Tensor& col = o.Tensor(1);
  o.RequireSameDtype({0, 1});
  o.Require(crow.size(-1) >= 1 && Leading(crow, 1) == Leading(col, 1), "indices of sizes ", crow.sizes(), " and ",
            col.sizes(), " do not fit together.");
  const int64_t nnz = col.size(-1);
  o.RequireRange(crow, "crow_indices", 0, nnz + 1);
  o.RequireOrdered(crow, "crow_indices");
  if (crow.numel() == 0) return;
  o.RequireRange(crow.select(-1, 0), "the first of crow_indices", 0, 1);
  o.RequireRange(crow.select(-1, -1), "the last of crow_indices", nnz, nnz + 1);
}

// _linalg_eigvals(self): the solver reads outside of a matrix that has a NaN.
void CheckEigenvalues(const Operands& o) {
  o.Require(at::isfinite(o.Tensor(0)).all().item<bool>(), "the matrix has an element that is not finite.");
}

// _cdist_backward(grad, x1 [..,p,m], x2 [..,r,m], p, cdist [..,p,r])
void CheckDistanceBackward(const Operands& o) {
  o.RequireRank(1, "x1", 2, 64);
  o.RequireRank(2, "x2", 2, 64);
  o.Require(o.Size(1, -1) == o.Size(2, -1), "x1 and x2 have sizes ", o.Tensor(1).sizes(), " and ", o.Tensor(2).sizes(),
            ".");
  std::vector<int64_t> sizes = at::infer_size(Leading(o.Tensor(1), 2), Leading(o.Tensor(2), 2));
  sizes.push_back(o.Size(1, -2));
  sizes.push_back(o.Size(2, -2));
  o.RequireSizes(0, "grad", sizes);
  o.RequireSizes(4, "cdist", o.Tensor(0).sizes());
  o.RequireSameDtype({0, 1, 2, 4});
}

// _pdist_backward(grad [n(n-1)/2], self [n,m], p, pdist [n(n-1)/2])
void CheckPairDistanceBackward(const Operands& o) {
  o.RequireRank(1, "self", 2, 2);
  const int64_t n = o.Size(1, 0);
  o.Require(n < (int64_t{1} << 31), "self has ", n, " rows.");
  const int64_t pairs = n * (n - 1) / 2;
  o.RequireSizes(0, "grad", {pairs});
  o.RequireSizes(3, "pdist", {pairs});
  o.RequireSameDtype({0, 1, 3});
}

// _scaled_dot_product_flash_attention_for_cpu_backward(grad_out, query, key, value, out, logsumexp, dropout_p,
// is_causal, attn_mask, scale) with [n,heads,q,e], [n,heads,k,e] and logsumexp [n,heads,q] or [n,q,heads]
void CheckAttentionBackward(const Operands& o) {
  o.RequireRank(1, "query", 4, 4);
  const at::Tensor& query = o.Tensor(1);
  const int64_t n = query.size(0), heads = query.size(1), width = query.size(3);
  o.RequireRank(2, "key", 4, 4);
  for (const size_t i : {2, 3}) {
    o.RequireSizes(i, i == 2 ? "key" : "value", {o.Size(2, 0), o.Size(2, 1), o.Size(2, 2), width});
  }
  o.Require(o.Size(2, 0) >= n, "key has ", o.Size(2, 0), " batches, query ", n, ".");  // the kernel reads the first n
  const int64_t shared = o.Size(2, 1);
  o.Require((n == 0 || (query.size(2) > 0 && o.Size(2, 2) > 0)) && shared > 0 && heads > 0 && heads % shared == 0,
            "query and key have sizes ", query.sizes(), " and ", o.Tensor(2).sizes(), ".");
  o.RequireSizes(0, "grad_out", query.sizes());
  o.RequireSizes(4, "out", query.sizes());
  o.RequireSameDtype({0, 1, 2, 3, 4});
  o.RequireRank(5, "logsumexp", 3, 3);
  o.Require(o.Tensor(5).size(0) == n && o.Tensor(5).numel() == n * heads * query.size(2), "logsumexp has sizes ",
            o.Tensor(5).sizes(), " for query of sizes ", query.sizes(), ".");
}

// _softmax_backward_data(grad_output, output, dim, input_dtype), _masked_softmax_backward(grad_output, output, mask,
// dim)
void CheckSoftmaxBackward(const Operands& o) {
  o.RequireRank(1, "output", 0, 64);
  o.RequireSizes(0, "grad_output", o.Tensor(1).sizes());
}

// rrelu_with_noise(self, noise, lower, upper, training, generator): training writes noise as if it
// were dense.
void CheckRreluNoise(const Operands& o) {
  o.RequireSameDtype({0, 1});
  o.RequireSizes(1, "noise", o.Tensor(0).sizes());
  o.Require(o.Tensor(1).is_non_overlapping_and_dense(), "noise is not dense.");
}

// smooth_l1_loss_backward(grad_output, self, target, reduction, beta)
void CheckSmoothL1Backward(const Operands& o) {
  o.RequireSameDtype({0, 1, 2});
  o.Require(Floating(o.Tensor(0)), "operands have dtype ", o.Tensor(0).scalar_type(), ".");
}

namespace {

// data [.., axis, ..] in segments along `axis`, by lengths [.., n] or by offsets [.., n + 1]. The segments need not
// have all of it: with unsafe=True, ATen does not check the sum of the lengths.
void CheckSegments(const Operands& o, size_t data, size_t lengths, size_t offsets, int64_t axis) {
  const at::Tensor& d = o.Tensor(data);
  o.Require(Floating(d), "data has dtype ", d.scalar_type(), ".");
  o.Require(axis >= 0 && axis < d.dim(), "axis ", axis, " is out of range for ", d.dim(), " dims.");
  o.Require(o.Given(lengths) != o.Given(offsets), "it needs either lengths or offsets.");
  const size_t of = o.Given(lengths) ? lengths : offsets;
  const at::Tensor& t = o.Tensor(of);
  o.Require(t.dim() == axis + 1 && Leading(t, 1) == Leading(d, d.dim() - axis), "segments of sizes ", t.sizes(),
            " do not fit to data of sizes ", d.sizes(), " and axis ", axis, ".");
  const int64_t size = d.size(axis);
  o.RequireRange(t, of == lengths ? "length" : "offset", 0, size + 1);
  if (of == offsets) {
    o.Require(t.size(-1) >= 1, "offsets are empty.");
    o.RequireOrdered(t, "offsets");
  } else if (t.numel() > 0) {
    const int64_t most = t.sum(-1).max().item<int64_t>();
    o.Require(most <= size, "the lengths of a row have the sum ", most, ", the data has ", size, ".");
  }
}

}  // namespace

// segment_reduce(data, reduce, lengths, indices, offsets, axis, unsafe, initial)
void CheckSegmentReduce(const Operands& o) { CheckSegments(o, 0, 2, 4, o.Int(5)); }

// _segment_reduce_backward(grad, output, data, reduce, lengths, offsets, axis, initial)
void CheckSegmentReduceBackward(const Operands& o) {
  CheckSegments(o, 2, 4, 5, o.Int(6));
  o.RequireSizes(1, "output", o.Tensor(0).sizes());
  std::vector<int64_t> sizes = o.Tensor(2).sizes().vec();
  const bool lengths = o.Given(4);
  sizes[o.Int(6)] = o.Tensor(lengths ? 4 : 5).size(-1) - (lengths ? 0 : 1);
  o.RequireSizes(0, "grad", sizes);
  o.RequireSameDtype({0, 1, 2});
}

}  // namespace mycelya::exec
