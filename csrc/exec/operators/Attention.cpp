// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// scaled_dot_product_attention as two operators of namespace mycelya. PyTorch chooses the kernel on the worker. The
// state that the kernel needs for its gradient stays on the worker: the autograd graph lives as long as the storage of
// the forward operator's second result, the token.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <memory>

#include "exec/session/Executor.h"

namespace mycelya::exec {
namespace {

constexpr int64_t kFlash = 1, kEfficient = 2, kMath = 4, kCudnn = 8;

// Sets PyTorch's switches of the attention kernels for one call.
class Backends {
 public:
  explicit Backends(int64_t wanted) : old_(Enabled()) { Set(wanted); }
  ~Backends() { Set(old_); }
  Backends(const Backends&) = delete;
  Backends& operator=(const Backends&) = delete;

 private:
  static int64_t Enabled() {
    const auto& c = at::globalContext();
    return (c.userEnabledFlashSDP() ? kFlash : 0) | (c.userEnabledMemEfficientSDP() ? kEfficient : 0) |
           (c.userEnabledMathSDP() ? kMath : 0) | (c.userEnabledCuDNNSDP() ? kCudnn : 0);
  }
  static void Set(int64_t wanted) {
    auto& c = at::globalContext();
    c.setSDPUseFlash((wanted & kFlash) != 0);
    c.setSDPUseMemEfficient((wanted & kEfficient) != 0);
    c.setSDPUseMath((wanted & kMath) != 0);
    c.setSDPUseCuDNN((wanted & kCudnn) != 0);
  }

  const int64_t old_;
};

// The state of a backward call.
struct Graph {
  at::Tensor result;
  at::Tensor operands[4];  // query, key, value, bias; undefined if its gradient is not requested
};

// Autograd cannot save tensors made in inference mode. Returns a normal tensor on the same memory.
at::Tensor Leaf(const at::Tensor& t, bool grad) {
  at::Tensor leaf = at::empty({0}, t.options());
  leaf.set_(t.storage(), t.storage_offset(), t.sizes(), t.strides());
  return leaf.set_requires_grad(grad);
}

// The token: a word whose storage owns the graph. Its value has no meaning.
struct Kept {
  at::Tensor word;
  std::unique_ptr<Graph> graph;
};
void Drop(void* kept) { delete static_cast<Kept*>(kept); }

at::Tensor Token(std::unique_ptr<Graph> graph) {
  const auto device = Executor::Current().device().device();
  at::Tensor word = at::zeros({1}, at::TensorOptions(at::kLong).device(device));
  void* data = word.mutable_data_ptr();
  auto* kept = new Kept{word, std::move(graph)};
  c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof(int64_t), at::DataPtr(data, kept, &Drop, device));
  return at::empty({0}, word.options()).set_(std::move(storage), 0, {1}, {1});
}

const Graph& GraphOf(const at::Tensor& token) {
  const auto* kept = token.storage().data_ptr().cast_context<Kept>(&Drop);
  TORCH_CHECK_VALUE(kept != nullptr && kept->graph != nullptr,
                    "BUG: the forward call of attention kept nothing for its gradient.");
  return *kept->graph;
}

// grads: one bit each for query, key, value and bias, set if its gradient is requested.
std::tuple<at::Tensor, at::Tensor> Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                             const std::optional<at::Tensor>& bias, double dropout, int64_t causal,
                                             std::optional<double> scale, int64_t grads, int64_t backends) {
  const Backends chosen(backends);
  const bool grouped = query.dim() > 2 && query.size(-3) != key.size(-3);
  if (grads == 0) {
    return {at::scaled_dot_product_attention(query, key, value, bias, dropout, causal != 0, scale, grouped),
            Token(nullptr)};
  }
  const c10::InferenceMode normal(false);
  const c10::AutoGradMode on(true);
  auto graph = std::make_unique<Graph>();
  const at::Tensor given[] = {query, key, value, bias.value_or(at::Tensor())};
  at::Tensor leaves[4];
  for (int i = 0; i < 4; ++i) {
    const bool grad = (grads >> i & 1) != 0;
    if (given[i].defined()) leaves[i] = Leaf(given[i], grad);
    if (grad) graph->operands[i] = leaves[i];
  }
  graph->result = at::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2],
                                                   leaves[3].defined() ? std::make_optional(leaves[3]) : std::nullopt,
                                                   dropout, causal != 0, scale, grouped);
  at::Tensor result = graph->result.detach();
  return {std::move(result), Token(std::move(graph))};
}

// wanted: one bit for each requested gradient.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> AttentionBackward(const at::Tensor& grad,
                                                                             const at::Tensor& token, const at::Tensor&,
                                                                             const at::Tensor&, const at::Tensor&,
                                                                             const std::optional<at::Tensor>&,
                                                                             int64_t wanted) {
  const Graph& graph = GraphOf(token);
  const c10::InferenceMode normal(false);
  const c10::AutoGradMode on(true);
  std::vector<at::Tensor> operands;
  for (int i = 0; i < 4; ++i) {
    if ((wanted >> i & 1) == 0) continue;
    TORCH_CHECK_VALUE(graph.operands[i].defined(), "BUG: the forward call of attention did not request gradient ", i,
                      ".");
    operands.push_back(graph.operands[i]);
  }
  auto found = torch::autograd::grad({graph.result}, operands, {Leaf(grad, false)}, /*retain_graph=*/true);
  at::Tensor results[4];
  for (int i = 0, next = 0; i < 4; ++i) {
    if ((wanted >> i & 1) != 0) results[i] = found[next++].detach();
  }
  return {results[0], results[1], results[2], results[3]};
}

TORCH_LIBRARY_FRAGMENT(mycelya, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, float dropout, int causal, float? scale, "
      "int grads, int backends) -> (Tensor, Tensor)",
      &Attention);
  m.def(
      "attention_backward(Tensor grad, Tensor token, Tensor query, Tensor key, Tensor value, Tensor? bias, "
      "int wanted) -> (Tensor, Tensor, Tensor, Tensor)",
      &AttentionBackward);
}

}  // namespace
}  // namespace mycelya::exec
