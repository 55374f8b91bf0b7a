// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/run/Operator.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "abi/mycelya.h"
#include "exec/Dtype.h"
#include "exec/program/Lists.h"

namespace mycelya::exec {

void OperatorRunner::Run(const Step& s) {
  torch::jit::Stack& stack = work_.stack;
  stack.clear();
  for (uint32_t i = s.args.begin; i < s.args.end; ++i) stack.push_back(Value(program_.args[i]));
  for (uint32_t i = s.written.begin; s.writes_out && i < s.written.end; ++i) {
    CheckOut(s.name, buffers_.TensorOf(program_.written_tensors[i]));
  }
  if (C10_UNLIKELY(s.guard != nullptr)) Check(s);
  s.op->callBoxed(stack);
  for (uint32_t i = s.written.begin; i < s.written.end; ++i) {
    CheckKept(s, program_.written_tensors[i]);
    ResolveConjugate(program_.written_tensors[i]);
  }
  s.dynamic ? TakeDynamicResults(s) : TakeResults(s);
  stack.clear();
}

// The guard gets the indices that are known on the host as tensors there: reading them from the device would take a
// wait for all that it computes.
void OperatorRunner::Check(const Step& s) {
  if (!executor_.device().apart()) return CheckOperands(*s.guard, s.name, work_.stack);
  torch::jit::Stack stack = work_.stack;
  bool reads = false;  // an operand that may be an index is only on the device
  const auto from_host = [&](const Arg& a, const c10::IValue& value) -> c10::IValue {
    if (a.kind != ArgKind::kTensor) return value;
    const TensorRow& row = program_.tensors[a.index];
    if (row.dtype != c10::ScalarType::Long && row.dtype != c10::ScalarType::Int) return value;
    const c10::Storage& host = buffers_.At(row.buffer).on_host;
    reads = reads || !host;
    return host ? MakeTensor(host, buffers_.GeometryOf(row)) : value;
  };
  for (uint32_t i = s.args.begin; i < s.args.end; ++i) {
    const Arg& a = program_.args[i];
    c10::IValue& value = stack[i - s.args.begin];
    if (a.kind != ArgKind::kList) {
      value = from_host(a, value);
    } else if (a.list == ListOf::kTensor || a.list == ListOf::kOptionalTensor) {
      const c10::IValue list = value;
      value = MakeList(a.list, a.count,
                       [&](uint32_t j) { return from_host(program_.items[a.index + j], list.toListRef()[j]); });
    }
  }
  if (reads && ReadsIndices(*s.guard)) ++waits;
  CheckOperands(*s.guard, s.name, stack);
}

void OperatorRunner::RunKnown(const Step& s) {
  try {
    Run(s);
  } catch (...) {
    buffers_.ForgetHostCopies(s);
    throw;
  }
  if (!RunOnHost(s)) buffers_.ForgetHostCopies(s);
}

bool OperatorRunner::RunOnHost(const Step& s) {
  try {
    for (uint32_t i = s.written.begin; i < s.written.end; ++i) {
      c10::Storage& host = buffers_.At(program_.tensors[program_.written_tensors[i]].buffer).on_host;
      if (!host) return false;
      host = BytesOf(host).clone().storage();  // the table may have this copy
    }
    torch::jit::Stack stack;
    for (uint32_t i = s.args.begin; i < s.args.end; ++i) {
      std::optional<c10::IValue> value = HostValue(program_.args[i]);
      if (!value) return false;
      stack.push_back(*std::move(value));
    }
    if (s.results.begin == s.results.end) {
      s.op->callBoxed(stack);
      return true;
    }
    const TensorRow& row = program_.tensors[program_.results[s.results.begin] - 1];
    const Geometry geometry = buffers_.GeometryOf(row);
    if (geometry.Bytes() > kHostCopyBytes || geometry.offset != 0) return false;
    s.op->callBoxed(stack);
    const at::Tensor t = stack.at(0).toTensor();
    if (t.scalar_type() != geometry.dtype || t.sizes() != geometry.sizes) return false;
    at::Tensor host = at::empty_strided(geometry.sizes, geometry.strides, geometry.dtype);
    host.copy_(t);
    buffers_.At(row.buffer).on_host = host.storage();
    return true;
  } catch (...) {  // then a guard reads the indices from the device
    return false;
  }
}

// Nothing if a tensor is not known on the host.
std::optional<c10::IValue> OperatorRunner::HostValue(const Arg& a) {
  switch (a.kind) {
    case ArgKind::kTensor: {
      const TensorRow& row = program_.tensors[a.index];
      const c10::Storage& host = buffers_.At(row.buffer).on_host;
      if (!host) return std::nullopt;
      return MakeTensor(host, buffers_.GeometryOf(row));
    }
    case ArgKind::kDeviceNumber:
      return NumberValue(a.constant.toTensor(), buffers_.params() + a.index).clone();
    case ArgKind::kList: {
      bool all = true;
      c10::IValue list = MakeList(a.list, a.count, [&](uint32_t i) {
        std::optional<c10::IValue> item = HostValue(program_.items[a.index + i]);
        all = all && item;
        return item ? *std::move(item) : Value(program_.items[a.index + i]);
      });
      if (!all) return std::nullopt;
      return list;
    }
    default:
      return a.kind == ArgKind::kConstant && a.constant.isDevice() ? c10::IValue(c10::Device(c10::kCPU)) : Value(a);
  }
}

// ---- Arguments ----

c10::IValue OperatorRunner::Value(const Arg& a) {
  const uint64_t* param = buffers_.params() + a.index;
  switch (a.kind) {
    case ArgKind::kConstant:
      return a.constant;
    case ArgKind::kTensor:
      return TensorValue(a.index);
    case ArgKind::kInt:
      return static_cast<int64_t>(*param);
    case ArgKind::kIntAsReal:
      return static_cast<double>(static_cast<int64_t>(*param));
    case ArgKind::kReal:
      return std::bit_cast<double>(*param);
    case ArgKind::kBool:
      return *param != 0;
    case ArgKind::kComplex:
      return c10::complex<double>(std::bit_cast<double>(param[0]), std::bit_cast<double>(param[1]));
    case ArgKind::kNumber:
      return NumberValue(a.constant.toTensor(), param);
    case ArgKind::kDeviceNumber:
      return FilledLike(NumberValue(a.constant.toTensor(), param), executor_.device().device());
    case ArgKind::kGenerator:
      return executor_.GeneratorOf(*param);
    case ArgKind::kList:
      return MakeList(a.list, a.count, [&](uint32_t i) { return Value(program_.items[a.index + i]); });
  }
  TORCH_CHECK(false, "BUG: ", static_cast<int>(a.kind), " is not a kind of argument.");
}

c10::IValue OperatorRunner::TensorValue(uint32_t index) {
  // ATen says that two operands with one TensorImpl overlap, even if they have no elements. An alias avoids that.
  const at::Tensor& t = buffers_.TensorOf(index);
  return t.numel() == 0 ? t.alias() : t;
}

at::Tensor OperatorRunner::NumberValue(const at::Tensor& element, const uint64_t* param) {
  // A byte other than 0 and 1 in a bool is undefined behaviour in the kernels.
  const uint64_t boolean = *param != 0;
  const void* from = element.scalar_type() == c10::ScalarType::Bool ? &boolean : param;
  std::memcpy(element.mutable_data_ptr(), from, element.itemsize());
  return element;
}

// ---- Operands that the operator writes ----

// An operator may resize an operand that it writes. The client's views of that operand would then be wrong.
void OperatorRunner::CheckKept(const Step& s, uint32_t index) {
  const TensorRow& row = program_.tensors[index];
  const at::Tensor& t = buffers_.TensorOf(index);
  const Geometry& g = buffers_.GeometryOf(row);
  // Strides of size-1 dims and of empty tensors address nothing, and kernels may change them.
  const bool same = t.sizes() == g.sizes && (t.numel() == 0 || g.SameLayout(t.strides()));
  TORCH_CHECK(same && t.scalar_type() == g.dtype && (t.storage_offset() == g.offset || t.numel() == 0) &&
                  t.storage().is_alias_of(buffers_.At(row.buffer).storage),
              "BUG: ", s.name, " turned an operand that it writes from ", g.Text(), " into ",
              TypeText(t.scalar_type(), t.sizes()), " with strides ", ListText(t.strides()), " and offset ",
              t.storage_offset(), ".");
}

// A solver may set the conjugate bit of an operand that it writes. The client expects conjugated elements instead.
void OperatorRunner::ResolveConjugate(uint32_t index) {
  if (C10_LIKELY(!buffers_.TensorOf(index).is_conj())) return;
  at::Tensor t = buffers_.TensorOf(index);
  t._set_conj(false);
  t.conj_physical_();
}

// ---- Results ----

void OperatorRunner::CheckCount(const Step& s) const {
  TORCH_CHECK(work_.stack.size() == s.returns.size(), "BUG: ", s.name, " left ", work_.stack.size(), " of ",
              s.returns.size(), " returns on the stack.");
  uint32_t returned = 0;
  for (size_t i = 0; i < s.returns.size(); ++i) {
    if (s.returns[i] == ReturnKind::kTensor) ++returned;
    if (s.returns[i] == ReturnKind::kTensorList) returned += static_cast<uint32_t>(work_.stack[i].toListRef().size());
  }
  const uint32_t inferred = s.results.end - s.results.begin;
  TORCH_CHECK(returned == inferred, "BUG: ", s.name, " returned ", returned, " tensors, the client inferred ", inferred,
              ".");
}

void OperatorRunner::TakeResults(const Step& s) {
  CheckCount(s);
  uint32_t next = s.results.begin;
  for (size_t i = 0; i < s.returns.size(); ++i) {
    c10::IValue value = std::move(work_.stack[i]);
    if (s.returns[i] == ReturnKind::kTensor) {
      TakeResult(s, program_.results[next++], value.isNone() ? at::Tensor() : std::move(value).toTensor());
    } else if (s.returns[i] == ReturnKind::kTensorList) {
      c10::List<at::Tensor> list = std::move(value).toTensorList();
      for (size_t j = 0; j < list.size(); ++j) TakeResult(s, program_.results[next++], list.extract(j));
    }
  }
}

// entry: 0 if the result is not used, else tensor + 1. A result becomes a buffer without a copy if nothing else can see
// its memory and its layout is the inferred one.
void OperatorRunner::TakeResult(const Step& s, uint32_t entry, at::Tensor t) {
  if (entry == 0) return;
  const TensorRow& row = program_.tensors[entry - 1];
  const Geometry& g = buffers_.GeometryOf(row);
  const uint64_t bytes = g.Bytes();
  TORCH_CHECK(t.defined(), "BUG: ", s.name, " returned an undefined tensor, the client inferred ",
              TypeText(g.dtype, g.sizes), ".");
  TORCH_CHECK(t.layout() == c10::Layout::Strided && t.scalar_type() == g.dtype && t.sizes() == g.sizes, "BUG: ", s.name,
              " returned ", TypeText(t.scalar_type(), t.sizes()),
              t.layout() == c10::Layout::Strided ? "" : " in a layout that isn't strided", ", the client inferred ",
              TypeText(g.dtype, g.sizes), ".");
  if (!OwnsBytes(t, bytes) || g.offset != 0 || !g.SameLayout(t.strides())) {
    c10::Storage storage = executor_.Allocate(bytes);
    at::Tensor declared = MakeTensor(storage, g);
    declared.copy_(t);
    buffers_.SetStorage(row.buffer, std::move(storage));
    work_.tensors[entry - 1] = std::move(declared);
    return;
  }
  const bool exact = t.strides() == g.strides && !t.unsafeGetTensorImpl()->is_wrapped_number();
  buffers_.SetStorage(row.buffer, t.storage());
  if (exact) work_.tensors[entry - 1] = std::move(t);
}

// The first result of a dynamic step is i64[n * MYC_SHAPE_WORDS]: the shapes of its n other results.
void OperatorRunner::TakeDynamicResults(const Step& s) {
  const uint32_t n = s.results.end - s.results.begin - 1;
  at::Tensor shapes = at::zeros({static_cast<int64_t>(n) * MYC_SHAPE_WORDS}, at::kLong);
  auto* words = shapes.mutable_data_ptr<int64_t>();
  uint32_t next = s.results.begin + 1;
  for (size_t i = 0; i < s.returns.size(); ++i) {
    if (s.returns[i] != ReturnKind::kTensor) continue;
    at::Tensor t = work_.stack[i].isNone() ? at::Tensor() : std::move(work_.stack[i]).toTensor();
    const uint32_t entry = program_.results[next++];
    if (t.defined()) {
      TakeDynamicResult(s, entry, std::move(t), words);
    } else if (entry != 0) {
      buffers_.SetStorage(program_.tensors[entry - 1].buffer, executor_.Allocate(0));
    }
    words += MYC_SHAPE_WORDS;
  }
  TakeResult(s, program_.results[s.results.begin], shapes.to(executor_.device().device()));
}

void OperatorRunner::TakeDynamicResult(const Step& s, uint32_t entry, at::Tensor t, int64_t* words) {
  TORCH_CHECK(t.layout() == c10::Layout::Strided && t.dim() <= MYC_SHAPE_RANK, s.name,
              " returned a tensor that can't be sent: ", TypeText(t.scalar_type(), t.sizes()), ".");
  if (t.is_conj() || t.is_neg() || t._is_zerotensor()) t = t.clone();
  Geometry g;
  g.dtype = t.scalar_type();
  g.sizes.assign(t.sizes().begin(), t.sizes().end());
  bool expanded = false;  // some dim has stride 0
  for (int64_t i = 0; i < t.dim() && t.numel() > 0; ++i) expanded |= t.size(i) > 1 && t.stride(i) == 0;
  if (!expanded) {
    g.strides.assign(t.strides().begin(), t.strides().end());
  } else {
    g.SetContiguous();
  }
  words[0] = ToCode(g.dtype);
  words[1] = t.dim();
  std::copy(g.sizes.begin(), g.sizes.end(), words + 2);
  std::copy(g.strides.begin(), g.strides.end(), words + 2 + MYC_SHAPE_RANK);
  if (entry == 0) return;
  const uint32_t buffer = program_.tensors[entry - 1].buffer;
  if (OwnsBytes(t, g.Bytes()) && g.SameLayout(t.strides())) return buffers_.SetStorage(buffer, t.storage());
  c10::Storage storage = executor_.Allocate(g.Bytes());
  MakeTensor(storage, g).copy_(t);
  buffers_.SetStorage(buffer, std::move(storage));
}

// Whether the tensor is the only owner of its storage and covers it.
bool OperatorRunner::OwnsBytes(const at::Tensor& t, uint64_t bytes) const {
  return t.device() == executor_.device().device() && t.use_count() == 1 && t.storage().use_count() == 1 &&
         t.storage().nbytes() == bytes && t.storage_offset() == 0 && !t.is_conj() && !t.is_neg() && !t._is_zerotensor();
}

}  // namespace mycelya::exec
