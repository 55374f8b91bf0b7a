// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include <Python.h>
//
#include <ATen/core/Generator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_conj_physical.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/neg.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>

#include <mutex>
#include <span>

#include "Generator.h"
#include "Op.h"
#include "Record.h"
#include "Recorder.h"
#include "Shape.h"
#include "Transfer.h"

namespace mycelya {
namespace {

bool ours(const at::Tensor& t) { return t.defined() && t.device().type() == kDevice; }

// Backward then runs in the thread that calls it: with that thread's Python frames, in its order, and without 30 us of
// hand-over. Only for Python's threads, once each: a user may turn it on again.
void keep_backward_in_this_thread() {
  static thread_local bool done = false;
  if (C10_LIKELY(done)) return;
  done = true;
  if (PyGILState_GetThisThreadState() != nullptr) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
}

// Calls f with each defined tensor of the arguments, as a reference into its IValue's list where it is in one.
template <class F>
void each_tensor(const Op& op, at::ArrayRef<c10::IValue> args, F&& f) {
  for (size_t i = 0; i < args.size(); ++i) {
    switch (op.args[i].kind) {
      case Kind::kTensor:
        if (args[i].isTensor() && args[i].toTensor().defined()) f(i, args[i].toTensor());
        break;
      case Kind::kTensors:
      case Kind::kOptTensors:
        if (args[i].isNone()) break;
        for (const auto& e : args[i].toListRef()) {
          if (e.isTensor() && e.toTensor().defined()) f(i, e.toTensor());
        }
        break;
      default:
        break;
    }
  }
}

const std::string& argument_name(const Op& op, size_t i) { return op.handle.schema().arguments()[i].name(); }

// Some operators reach us with a conjugate or negative view as it is (clone, matrix products): the worker has no such
// bits, only elements.
bool is_lazy_view(const at::Tensor& t) { return ours(t) && (t.is_conj() || t.is_neg()); }

void resolve_views(const Op& op, std::span<c10::IValue> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind == Kind::kTensor && args[i].isTensor() && is_lazy_view(args[i].toTensor())) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          !op.args[i].write, op.full_name,
          " cannot write to a conjugate or negative view on mycelya: write to a clone() of it.");
      args[i] = resolve(args[i].toTensor());
    } else if (op.args[i].kind == Kind::kTensors && !op.args[i].write && args[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& e : args[i].toListRef())
        list.push_back(is_lazy_view(e.toTensor()) ? resolve(e.toTensor()) : e.toTensor());
      args[i] = std::move(list);
    }
  }
}

// The device of a call. Two devices, or a CPU tensor where CUDA would refuse it, are errors.
c10::DeviceIndex device_of(const Op& op, at::ArrayRef<c10::IValue> args, bool& cpu_indices, bool& lazy_views) {
  int device = -1;
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind == Kind::kOther && !args[i].isNone()) {
      TORCH_CHECK_NOT_IMPLEMENTED(false, op.full_name, " cannot run on mycelya with its argument '",
                                  argument_name(op, i),
                                  "' given: leave it out, or run this op on the CPU: move its inputs with .cpu() and "
                                  "the result back with .to(\"mycelya\").");
    }
  }
  each_tensor(op, args, [&](size_t i, const at::Tensor& t) {
    if (ours(t)) {
      const int index = t.device().index();
      TORCH_CHECK(device < 0 || device == index,
                  "Expected all tensors to be on the same device, but found at least two devices, mycelya:", device,
                  " and mycelya:", index, "! (when checking argument for argument ", argument_name(op, i),
                  " in method ", op.full_name,
                  "). They are on different machines: copy one with .to(\"mycelya:", device, "\").");
      device = index;
      lazy_views |= is_lazy_view(t);
    }
  });
  if (device < 0) device = current_device();
  each_tensor(op, args, [&](size_t i, const at::Tensor& t) {
    if (ours(t)) return;
    if (t.is_cpu() && t.dim() == 0 && !op.args[i].write) return;
    if (t.is_cpu() && op.takes_cpu_indices && op.args[i].kind == Kind::kOptTensors) {
      cpu_indices = true;
      return;
    }
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two devices, mycelya:", device,
                " and ", t.device(), "! (when checking argument for argument ", argument_name(op, i), " in method ",
                op.full_name, "). Move it with .to(\"mycelya:", device, "\").");
  });
  return static_cast<c10::DeviceIndex>(device);
}

// CPU index tensors are legal on CUDA: they become uploads.
void upload_indices(const Op& op, std::span<c10::IValue> args, c10::DeviceIndex device) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind != Kind::kOptTensors) continue;
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& e : args[i].toListRef()) {
      if (e.isNone()) {
        list.push_back(std::nullopt);
        continue;
      }
      const auto& t = e.toTensor();
      list.push_back(t.defined() && t.is_cpu() ? to_device(t, device) : t);
    }
    args[i] = std::move(list);
  }
}

void number(Recorder& r, const c10::Scalar& s) {
  if (s.isComplex()) {
    const auto v = s.toComplexDouble();
    r.tag(MYC_W_NUMBER, MYC_N_C128);
    r.param(v.real());
    r.param(v.imag());
  } else if (s.isFloatingPoint()) {
    r.tag(MYC_W_NUMBER, MYC_N_F64);
    r.param(s.toDouble());
  } else if (s.isBoolean()) {
    r.tag(MYC_W_NUMBER, MYC_N_BOOL);
    r.param(static_cast<uint64_t>(s.toBool()));
  } else {
    r.tag(MYC_W_NUMBER, MYC_N_I64);
    r.param(static_cast<uint64_t>(s.toLong()));
  }
}

void integer(Recorder& r, char cls, int64_t v) {
  if (cls == 's' && v >= 2) {
    r.tag(MYC_W_SIZE);
    r.param(static_cast<uint64_t>(v));
  } else if (cls == 'v' || (cls == 'b' && v != 0 && v != 1)) {
    number(r, c10::Scalar(v));
  } else {
    r.tag(MYC_W_INT);
    r.word(static_cast<uint64_t>(v));
  }
}

void floating(Recorder& r, char cls, double v) {
  if (cls == 'l' || (cls == 'b' && (v == 0 || v == 1))) {
    r.tag(MYC_W_FLOAT);
    uint64_t bits;
    std::memcpy(&bits, &v, 8);
    r.word(bits);
  } else {
    number(r, c10::Scalar(v));
  }
}

void scalar(Recorder& r, char cls, const c10::Scalar& s) {
  if (cls == 'v' || cls == 's' || s.isComplex()) {
    number(r, s);
  } else if (s.isBoolean()) {
    r.tag(MYC_W_BOOL, s.toBool());
  } else if (s.isFloatingPoint()) {
    floating(r, cls, s.toDouble());
  } else {
    integer(r, cls, s.toLong());
  }
}

// The element of a 0-dim CPU tensor.
void cpu_scalar(Recorder& r, const at::Tensor& t) {
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    uint64_t bits = 0;
    std::memcpy(&bits, t.const_data_ptr(), std::min<size_t>(8, t.itemsize()));
    switch (t.scalar_type()) {
      case at::kDouble:
        r.tag(MYC_W_NUMBER, MYC_N_F64);
        r.param(bits);
        return;
      case at::kLong:
        r.tag(MYC_W_NUMBER, MYC_N_I64);
        r.param(bits);
        return;
      case at::kBool:
        r.tag(MYC_W_NUMBER, MYC_N_BOOL);
        r.param(bits);
        return;
      case at::kComplexDouble:
        r.tag(MYC_W_NUMBER, MYC_N_C128);
        r.param(bits);
        std::memcpy(&bits, static_cast<const char*>(t.const_data_ptr()) + 8, 8);
        r.param(bits);
        return;
      default:
        break;  // a number made with another default dtype: an ordinary 0-dim tensor does as well
    }
  }
  r.tag(MYC_W_SCALAR, dtype_code(t.scalar_type()));
  uint64_t bits[2] = {0, 0};
  std::memcpy(bits, t.const_data_ptr(), t.itemsize());
  r.param(bits[0]);
  if (t.itemsize() > 8) r.param(bits[1]);
}

void tensor(Recorder& r, const at::Tensor& t, bool write) {
  if (!t.defined()) {
    r.tag(MYC_W_NONE);
  } else if (ours(t)) {
    r.operand(*t.unsafeGetTensorImpl(), write);
  } else {
    cpu_scalar(r, t);
  }
}

void list_head(Recorder& r, uint32_t kind, size_t n) {
  r.word(MYC_W_LIST | kind << 8 | static_cast<uint64_t>(n) << 16);
}

void argument(Recorder& r, const Argument& a, const c10::IValue& v, bool write) {
  if (v.isNone()) {
    r.tag(MYC_W_NONE);
    return;
  }
  switch (a.kind) {
    case Kind::kTensor:
      tensor(r, v.toTensor(), write);
      break;
    case Kind::kTensors:
    case Kind::kOptTensors: {
      const auto list = v.toListRef();
      list_head(r, a.kind == Kind::kTensors ? MYC_L_TENSORS : MYC_L_OPT_TENSORS, list.size());
      for (const auto& e : list) tensor(r, e.isNone() ? at::Tensor() : e.toTensor(), write);
      break;
    }
    case Kind::kInt:
      integer(r, a.number_class, v.toInt());
      break;
    case Kind::kFloat:
      floating(r, a.number_class, v.toDouble());
      break;
    case Kind::kBool:
      r.tag(MYC_W_BOOL, v.toBool());
      break;
    case Kind::kScalar:
      scalar(r, a.number_class, v.toScalar());
      break;
    case Kind::kInts: {
      const auto list = v.toListRef();
      list_head(r, MYC_L_INTS, list.size());
      for (const auto& e : list) integer(r, a.number_class, e.toInt());
      break;
    }
    case Kind::kFloats: {
      const auto list = v.toListRef();
      list_head(r, MYC_L_FLOATS, list.size());
      for (const auto& e : list) floating(r, a.number_class, e.toDouble());
      break;
    }
    case Kind::kBools: {
      const auto list = v.toListRef();
      list_head(r, MYC_L_BOOLS, list.size());
      for (const auto& e : list) r.tag(MYC_W_BOOL, e.toBool());
      break;
    }
    case Kind::kScalars: {
      const auto list = v.toListRef();
      list_head(r, MYC_L_SCALARS, list.size());
      for (const auto& e : list) scalar(r, 'v', e.toScalar());
      break;
    }
    case Kind::kString: {
      const auto& s = v.toStringRef();
      r.tag(MYC_W_STR, s.size());
      for (size_t i = 0; i < s.size(); i += 8) {
        uint64_t w = 0;
        std::memcpy(&w, s.data() + i, std::min<size_t>(8, s.size() - i));
        r.word(w);
      }
      break;
    }
    case Kind::kDType:
      r.tag(MYC_W_DTYPE, dtype_code(v.toScalarType()));
      break;
    case Kind::kLayout:
      r.tag(MYC_W_LAYOUT, static_cast<uint64_t>(v.toInt()));
      break;
    case Kind::kDevice:
      r.tag(MYC_W_DEVICE);
      break;
    case Kind::kMemoryFormat:
      r.tag(MYC_W_MEMFMT, static_cast<uint64_t>(v.toInt()));
      break;
    case Kind::kGenerator:
      r.tag(MYC_W_GEN);
      r.param(generator_id(v.toGenerator(), r.device()));
      break;
    case Kind::kOther:
      r.tag(MYC_W_NONE);  // device_of has refused a given one
      break;
  }
}

// out= tensors take the inferred shape, as on every device; the warning is PyTorch's.
void resize_outputs(const Op& op, at::ArrayRef<c10::IValue> args, const OutMetas& metas) {
  size_t next = 0;
  for (const int w : op.writes) {
    if (!args[w].isTensor() || next >= metas.size()) continue;
    const auto& out = args[w].toTensor();
    const OutMeta& m = metas[next++];
    if (!m.defined || out.sizes() == at::IntArrayRef(m.sizes)) continue;
    at::native::resize_output(out, m.sizes);
    out.unsafeGetTensorImpl()->set_sizes_and_strides(m.sizes, m.strides);
  }
}

int64_t bytes_of(const OutMeta& m) {
  int64_t last = 0;
  for (size_t i = 0; i < m.sizes.size(); ++i) {
    if (m.sizes[i] == 0) return 0;
    last += (m.sizes[i] - 1) * m.strides[i];
  }
  return (last + 1) * static_cast<int64_t>(c10::elementSize(m.dtype));
}

// Writes one record. `fresh` are the results in order, undefined ones included; list_sizes the lengths of returned
// lists.
void emit(const Op& op, const Op& recorded, at::ArrayRef<c10::IValue> args, at::ArrayRef<int> unmarked,
          at::ArrayRef<at::Tensor> fresh, c10::DeviceIndex device, Origin origin) {
  Recorder& r = recorder(device);
  r.wait_for_room();
  const auto results = [&] {
    size_t n = 0;
    for (const auto& entry : op.returns) n += entry.alias < 0;
    return n;
  }();
  std::lock_guard<SpinLock> guard(r.lock);
  r.default_dtype(c10::typeMetaToScalarType(c10::get_default_dtype()), origin);
  each_tensor(recorded, args, [&](size_t, const at::Tensor& t) {
    if (ours(t) && !storage_of(*t.unsafeGetTensorImpl())->defined) {
      r.define_storage(*t.unsafeGetTensorImpl(), origin);
    }
  });
  r.begin(recorded.hash, op.flags, static_cast<uint32_t>(args.size()), static_cast<uint32_t>(results), origin);
  for (size_t i = 0; i < args.size(); ++i) {
    const bool write =
        recorded.args[i].write || std::find(unmarked.begin(), unmarked.end(), static_cast<int>(i)) != unmarked.end();
    argument(r, recorded.args[i], args[i], write);
  }
  size_t next = 0;
  for (const auto& entry : op.returns) {
    if (entry.alias >= 0) continue;
    const size_t n = entry.list ? fresh.size() - next : 1;  // a list is the only fresh return of its op
    if (entry.list) r.word(MYC_W_LIST | static_cast<uint64_t>(n) << 16);
    for (size_t i = 0; i < n; ++i, ++next) {
      if (next < fresh.size() && fresh[next].defined()) {
        r.result(*fresh[next].unsafeGetTensorImpl());
      } else {
        r.tag(MYC_W_NONE);
      }
    }
  }
  r.end();
}

}  // namespace

at::Tensor make_tensor(const OutMeta& m, c10::DeviceIndex device) {
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(make_storage(bytes_of(m), device),
                                                          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                          c10::scalarTypeToTypeMeta(m.dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(m.sizes, m.strides);
  return t;
}

void refuse(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  const Op& op = op_for(handle);
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.full_name,
      " cannot run on mycelya: ", op.refusal.empty() ? "it is not in this version's op table" : op.refusal.c_str(),
      ". Run it on the CPU: move its inputs with .cpu() and the result back with .to(\"mycelya\").");
}

void record(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const Op& op = op_for(handle);
  if (C10_UNLIKELY(!op.refusal.empty())) refuse(handle, stack);
  check_not_forked();
  keep_backward_in_this_thread();
  const Origin origin = record_origin();  // may take the GIL: before any lock
  const size_t n = op.args.size();
  const std::span<c10::IValue> slots(stack->data() + stack->size() - n, n);
  const at::ArrayRef<c10::IValue> args(slots.data(), n);

  bool cpu_indices = false, lazy_views = false;
  const c10::DeviceIndex device = device_of(op, args, cpu_indices, lazy_views);
  if (C10_UNLIKELY(lazy_views)) resolve_views(op, slots);
  if (C10_UNLIKELY(cpu_indices)) upload_indices(op, slots, device);
  counters().ops.fetch_add(1, std::memory_order_relaxed);

  const OutMetas& metas = infer(op, args);
  c10::SmallVector<at::Tensor, 4> fresh;
  if (op.writes_out) {
    // A copy: resizing may infer on this thread and move the cache.
    const OutMetas own = metas;
    resize_outputs(op, args, own);
  } else {
    for (const auto& m : metas) fresh.push_back(m.defined ? make_tensor(m, device) : at::Tensor());
  }

  c10::SmallVector<int, 4> unmarked;
  if (op.writes_unmarked) unmarked_writes(op.name, args, unmarked);
  if (op.rewrite != nullptr) {
    std::vector<c10::IValue> rewritten(args.begin(), args.end());
    if (op.rewrite->args != nullptr) op.rewrite->args(rewritten);
    emit(op, *op.recorded, rewritten, unmarked, fresh, device, origin);
  } else {
    emit(op, op, args, unmarked, fresh, device, origin);
  }

  if (op.bumps_versions) {
    for (const int w : op.writes) {
      if (!args[w].isTensorList()) continue;
      for (const auto& e : args[w].toListRef()) {
        const auto& t = e.toTensor();
        if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
      }
    }
  }

  if (op.returns.size() == 1 && !op.returns[0].list && n > 0) {
    const int alias = op.returns[0].alias;
    c10::IValue value =
        alias >= 0 ? std::move(slots[alias]) : c10::IValue(fresh.empty() ? at::Tensor() : std::move(fresh[0]));
    torch::jit::drop(*stack, n - 1);
    stack->back() = std::move(value);
    return;
  }
  c10::SmallVector<c10::IValue, 4> values;
  size_t next = 0;
  for (const auto& entry : op.returns) {
    if (entry.alias >= 0) {
      values.push_back(args[entry.alias]);
    } else if (entry.list) {
      c10::List<at::Tensor> list;
      for (; next < fresh.size(); ++next) list.push_back(std::move(fresh[next]));
      values.emplace_back(std::move(list));
    } else {
      values.emplace_back(next < fresh.size() ? std::move(fresh[next]) : at::Tensor());
      ++next;
    }
  }
  torch::jit::drop(*stack, n);
  for (auto& v : values) stack->push_back(std::move(v));
}

at::Tensor resolve(const at::Tensor& t) {
  if (t.is_conj()) return at::_conj_physical(resolve(t._conj()));
  if (t.is_neg()) return at::neg(t._neg_view());
  return t;
}

void record_copy(const at::Tensor& dst, const at::Tensor& src) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  static const Op& op = op_for(handle);
  check_not_forked();
  const c10::IValue args[] = {dst, src, false};
  emit(op, op, args, {}, {}, dst.device().index(), record_origin());
}

}  // namespace mycelya
