// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// LSTM and GRU cells. PyTorch calls fused cells on every device except the CPU, and a CPU worker has none. So they are
// recorded as elementwise operators. Gates are [batch, 4 hidden] (in, forget, cell, out) and
// [batch, 3 hidden] (reset, update, new).

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <tuple>

namespace mycelya {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

bool Given(const OptTensor& t) { return t.has_value() && t->defined(); }

Tensor WithBias(const Tensor& gates, const OptTensor& bias) { return Given(bias) ? gates + *bias : gates; }

// Derivatives as functions of the function's value.
Tensor DSigmoid(const Tensor& y) { return y * at::rsub(y, 1); }
Tensor DTanh(const Tensor& y) { return at::rsub(y * y, 1); }

// The workspace for backward is the activated gates.
std::tuple<Tensor, Tensor, Tensor> LstmCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                            const OptTensor& input_bias, const OptTensor& hidden_bias) {
  const auto gates = (WithBias(input_gates, input_bias) + WithBias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor in = at::sigmoid(gates[0]), forget = at::sigmoid(gates[1]), cell = at::tanh(gates[2]),
               out = at::sigmoid(gates[3]);
  const Tensor cy = forget * cx + in * cell;
  return {out * at::tanh(cy), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> LstmCellBackward(const OptTensor& grad_hy, const OptTensor& grad_cy,
                                                    const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                    bool has_bias) {
  if (!Given(grad_hy) && !Given(grad_cy)) return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor tanh_cy = at::tanh(cy);
  const Tensor hy = Given(grad_hy) ? *grad_hy : at::zeros_like(cy);
  Tensor grad_cell = hy * out * DTanh(tanh_cy);
  if (Given(grad_cy)) grad_cell = grad_cell + *grad_cy;
  const Tensor grad_gates = at::cat({grad_cell * cell * DSigmoid(in), grad_cell * cx * DSigmoid(forget),
                                     grad_cell * in * DTanh(cell), hy * tanh_cy * DSigmoid(out)},
                                    1);
  return {grad_gates, grad_cell * forget, has_bias ? grad_gates.sum(0, /*keepdim=*/false) : Tensor()};
}

// The workspace for backward is reset, update, new gate, hx, and the hidden part of the new gate.
std::tuple<Tensor, Tensor> GruCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                   const OptTensor& input_bias, const OptTensor& hidden_bias) {
  const auto i = WithBias(input_gates, input_bias).chunk(3, 1);
  const auto h = WithBias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = at::sigmoid(i[0] + h[0]), update = at::sigmoid(i[1] + h[1]);
  const Tensor fresh = at::tanh(i[2] + reset * h[2]);
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, h[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> GruCellBackward(const Tensor& grad_hy, const Tensor& workspace,
                                                                   bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &hidden = parts[4];
  const Tensor grad_update = grad_hy * (hx - fresh) * DSigmoid(update);
  const Tensor grad_new = grad_hy * at::rsub(update, 1) * DTanh(fresh);
  const Tensor grad_reset = grad_new * hidden * DSigmoid(reset);
  const Tensor grad_input = at::cat({grad_reset, grad_update, grad_new}, 1);
  const Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_new * reset}, 1);
  return {grad_input, grad_hidden, grad_hy * update, has_bias ? grad_input.sum(0, /*keepdim=*/false) : Tensor(),
          has_bias ? grad_hidden.sum(0, /*keepdim=*/false) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &LstmCell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &LstmCellBackward);
  m.impl("_thnn_fused_gru_cell", &GruCell);
  m.impl("_thnn_fused_gru_cell_backward", &GruCellBackward);
}

}  // namespace
}  // namespace mycelya
