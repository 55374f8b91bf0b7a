// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include <Python.h>
//
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/TensorImpl.h>

#include <mutex>
#include <span>

#include "device/client/Client.h"
#include "device/client/Lives.h"
#include "device/record/Generator.h"
#include "device/record/Known.h"
#include "device/record/Op.h"
#include "device/record/Record.h"
#include "device/record/RecordInternal.h"
#include "device/record/Recorder.h"
#include "device/record/Shape.h"
#include "device/record/Transfer.h"
#include "device/tensor/TensorImpl.h"
#include "device/tensor/Thread.h"

namespace mycelya {
namespace {

const std::string& ArgumentName(const Op& op, size_t i) { return op.handle.schema().arguments()[i].name(); }

// The device argument of a factory.
int NamedDevice(const Op& op, at::ArrayRef<c10::IValue> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind != Kind::kDevice || args[i].isNone()) continue;
    const c10::Device device = args[i].toDevice();
    if (device.type() == kDevice && device.has_index()) return device.index();
  }
  return CurrentDevice();
}

// Refuses arguments that a record cannot hold, before the first word of the record is written.
void CheckWritable(const Op& op, at::ArrayRef<c10::IValue> args, c10::DeviceIndex device) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].isNone()) continue;
    if (op.args[i].kind == Kind::kGenerator) ReviveGenerator(args[i].toGenerator(), device);
    if (op.args[i].kind == Kind::kDType) DtypeCode(args[i].toScalarType());
  }
}

// A generator of this device dispatches the call to us even if all tensors are on the CPU.
void RefuseGenerator(const Op& op, at::ArrayRef<c10::IValue> args) {
  bool cpu = false, generator = false;
  EachTensor(op, args,
             [&](size_t i, size_t, const at::Tensor& t) { cpu |= t.is_cpu() && (t.dim() != 0 || op.args[i].write); });
  for (size_t i = 0; i < args.size(); ++i) generator |= op.args[i].kind == Kind::kGenerator && !args[i].isNone();
  TORCH_CHECK(!(cpu && generator), "Expected a 'cpu' device type for generator but found 'mycelya'");
}

// Properties of the operands of a call.
struct Operands {
  bool cpu_indices = false, lazy_views = false;
  bool undefined = false;  // storages that no op has written yet
};

// The device of a call. Two devices, or a CPU tensor where CUDA would refuse it, are errors.
c10::DeviceIndex DeviceOf(const Op& op, at::ArrayRef<c10::IValue> args, Operands& operands) {
  int device = -1;
  bool others = false;
  for (size_t i = 0; op.takes_other && i < args.size(); ++i) {
    if (op.args[i].kind == Kind::kOther && !args[i].isNone()) {
      TORCH_CHECK_NOT_IMPLEMENTED(false, op.full_name, " cannot run on mycelya with its argument '",
                                  ArgumentName(op, i),
                                  "' given: leave it out, or run this op on the CPU: move its inputs with .cpu() and "
                                  "the result back with .to(\"mycelya\").");
    }
  }
  EachTensor(op, args, [&](size_t i, size_t, const at::Tensor& t) {
    if (Ours(t)) {
      const int index = t.device().index();
      TORCH_CHECK(device < 0 || device == index,
                  "Expected all tensors to be on the same device, but found at least two devices, mycelya:", device,
                  " and mycelya:", index, "! (when checking argument for argument ", ArgumentName(op, i), " in method ",
                  op.full_name, "). ", TwoMachinesText(static_cast<c10::DeviceIndex>(device), t.device().index()));
      device = index;
      CheckAlive(*StorageOf(*t.unsafeGetTensorImpl()));
      operands.lazy_views |= t.is_conj() || t.is_neg();
      operands.undefined |= !StorageOf(*t.unsafeGetTensorImpl())->defined;
    } else {
      others = true;
    }
  });
  if (device < 0) {
    RefuseGenerator(op, args);
    device = NamedDevice(op, args);
  }
  if (C10_LIKELY(!others)) return static_cast<c10::DeviceIndex>(device);
  EachTensor(op, args, [&](size_t i, size_t, const at::Tensor& t) {
    if (Ours(t)) return;
    if (t.is_cpu() && t.dim() == 0 && !op.args[i].write) {
      DtypeCode(t.scalar_type());  // refuses a dtype that a record cannot hold
      return;
    }
    if (t.is_cpu() && op.columns.Has(kTakesCPUIndices) && op.args[i].kind == Kind::kOptTensors) {
      operands.cpu_indices = true;
      return;
    }
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two devices, mycelya:", device,
                " and ", t.device(), "! (when checking argument for argument ", ArgumentName(op, i), " in method ",
                op.full_name, "). Move it with .to(\"mycelya:", device, "\").");
  });
  return static_cast<c10::DeviceIndex>(device);
}

// out= tensors take the inferred shape, as on every device; the warning is PyTorch's.
void ResizeOutputs(const Op& op, at::ArrayRef<c10::IValue> args, const OutMetas& metas) {
  size_t next = 0;
  for (const int w : op.writes) {
    if (!args[w].isTensor() || next >= metas.size()) continue;
    const auto& out = args[w].toTensor();
    const OutMeta& m = metas[next++];
    if (!m.defined || out.sizes() == at::IntArrayRef(m.sizes)) continue;
    // Ranges fill an out= tensor of any shape with as many elements.
    if (op.columns.Has(kKeepsShape) && out.numel() == c10::multiply_integers(m.sizes)) continue;
    at::native::resize_output(out, m.sizes);
    out.unsafeGetTensorImpl()->set_sizes_and_strides(m.sizes, m.strides);
  }
}

// A list of so many tensors is worth a program of its own: fewer tensors compile in a few milliseconds together with
// the ops before them.
constexpr size_t kLongList = 256;

int64_t BytesOf(const OutMeta& m) {
  int64_t last = 0;
  for (size_t i = 0; i < m.sizes.size(); ++i) {
    if (m.sizes[i] == 0) return 0;
    last += (m.sizes[i] - 1) * m.strides[i];
  }
  return (last + 1) * static_cast<int64_t>(c10::elementSize(m.dtype));
}

// Writes one record. `fresh` are the results in order, including undefined ones. undefined: an operand may be a storage
// that no op has written yet. shapes: if it is defined, the op is dynamic, and the worker writes the shapes of its
// results there; the trace ends with this record. known: gives the result a content that the client knows.
void Emit(const Op& op, const Op& recorded, at::ArrayRef<c10::IValue> args, at::ArrayRef<int> unmarked,
          at::ArrayRef<at::Tensor> fresh, c10::DeviceIndex device, Origin origin, bool undefined = true,
          bool inferred = false, const at::Tensor& shapes = {}, KnownCall* known = nullptr) {
  Recorder& r = RecorderOf(device);
  r.WaitForRoom(origin);
  std::lock_guard<SpinLock> guard(r.lock);
  if (C10_UNLIKELY(recorded.columns.Has(kBumpsVersions)) && args[0].toListRef().size() >= kLongList) {
    r.BeginList(origin);
  }
  r.Prepare(origin);
  r.Count(inferred);
  if (undefined) {
    EachTensor(recorded, args, [&](size_t, size_t, const at::Tensor& t) {
      if (Ours(t) && !StorageOf(*t.unsafeGetTensorImpl())->defined) {
        r.DefineStorage(*t.unsafeGetTensorImpl(), origin);
      }
    });
  }
  const bool dynamic = shapes.defined();
  if (C10_UNLIKELY(known != nullptr)) known->Take(op, args, device);
  r.Begin(recorded.hash, op.flags | (dynamic ? MYC_R_DYNAMIC : 0), static_cast<uint32_t>(args.size()),
          op.fresh_returns + dynamic, origin);
  for (size_t i = 0; i < args.size(); ++i) {
    const bool write =
        recorded.args[i].write || std::find(unmarked.begin(), unmarked.end(), static_cast<int>(i)) != unmarked.end();
    RecordArgument(r, recorded.args[i], args[i], write);
  }
  if (dynamic) r.Result(*shapes.unsafeGetTensorImpl());
  size_t next = 0;
  for (const auto& entry : op.returns) {
    if (entry.alias >= 0) continue;
    const size_t n = entry.list ? fresh.size() - next : 1;  // a list is the only fresh return of its op
    if (entry.list) r.Word(MYC_W_LIST | static_cast<uint64_t>(n) << 16);
    for (size_t i = 0; i < n; ++i, ++next) {
      if (next < fresh.size() && fresh[next].defined()) {
        r.Result(*fresh[next].unsafeGetTensorImpl());
      } else {
        r.Tag(MYC_W_NONE);
      }
    }
  }
  if (C10_UNLIKELY(known != nullptr)) known->Give(fresh);
  dynamic ? r.Cut(MYC_CUT_SHAPE, origin) : r.End();
}

// The tensor with the dtype, rank, sizes and strides that the worker has sent. It uses the placeholder's storage, which
// was empty until now.
at::Tensor WithShape(const Op& op, const at::Tensor& placeholder, const int64_t* word) {
  if (word[0] == 0) return {};
  const OutMeta m = ShapeOfWords(op.full_name, word);
  StorageOf(*placeholder.unsafeGetTensorImpl())->SetBytes(BytesOf(m));
  return NewTensor(c10::Storage(placeholder.storage()), m.dtype, m.sizes, m.strides);
}

// Runs an op with data-dependent shapes, and waits for the shapes. Results that the client knows are uploaded instead.
c10::SmallVector<at::Tensor, 4> RunDynamic(const Op& op, at::ArrayRef<c10::IValue> args, c10::DeviceIndex device,
                                           Origin origin) {
  const size_t n =
      std::count_if(op.returns.begin(), op.returns.end(), [](const Return& entry) { return entry.alias < 0; });
  if (const auto known = KnownResults(op, args)) {
    c10::SmallVector<at::Tensor, 4> uploaded;
    for (const at::Tensor& t : *known) uploaded.push_back(ToDevice(t, device));
    return uploaded;
  }
  const at::Tensor shapes = MakeVector(at::kLong, static_cast<int64_t>(n) * MYC_SHAPE_WORDS, device);
  c10::SmallVector<at::Tensor, 4> fresh;
  for (size_t i = 0; i < n; ++i) fresh.push_back(MakeVector(at::kByte, 0, device));
  Emit(op, op, args, {}, fresh, device, origin, true, false, shapes);
  const at::Tensor words = ToCpu(shapes);
  const auto* word = words.const_data_ptr<int64_t>();
  for (size_t i = 0; i < n; ++i) fresh[i] = WithShape(op, fresh[i], word + i * MYC_SHAPE_WORDS);
  return fresh;
}

// The out= form of such an op: runs the functional form, and copies its results.
void RunDynamicOut(const Op& op, std::span<c10::IValue> args) {
  const size_t n_outs = op.returns.size();  // out= arguments come last
  const size_t first = args.size() - n_outs;
  for (size_t i = first; i < args.size(); ++i) {
    at::assert_no_internal_overlap(args[i].toTensor());
    for (size_t j = 0; j < first; ++j) {
      if (op.args[j].kind != Kind::kTensor || !args[j].isTensor() || op.args[j].write) continue;
      if (Ours(args[j].toTensor())) at::assert_no_overlap(args[i].toTensor(), args[j].toTensor());
    }
  }
  torch::jit::Stack stack(args.begin(), args.begin() + static_cast<std::ptrdiff_t>(first));
  op.functional_handle->callBoxed(stack);
  const bool solver = op.columns.Has(kCopiesIntoOut);
  for (size_t i = 0; i < n_outs; ++i) {
    const at::Tensor& out = args[first + i].toTensor();
    const at::Tensor result = std::move(stack[i]).toTensor();
    const bool exact = !solver;
    const bool empty = out.numel() == 0;
    TORCH_CHECK(
        exact ? out.scalar_type() == result.scalar_type() : c10::canCast(result.scalar_type(), out.scalar_type()),
        op.full_name, " expected an out tensor of dtype ", result.scalar_type(), " but got ", out.scalar_type());
    if (at::native::resize_output(out, result.sizes()) && (!solver || empty)) {
      out.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
      const int64_t bytes = static_cast<int64_t>(result.storage().nbytes());
      Storage& s = *StorageOf(*out.unsafeGetTensorImpl());
      if (bytes > static_cast<int64_t>(s.nbytes())) ResizeBytes(s, bytes);
    }
    at::Tensor(out).copy_(result);
  }
}

// Infers the results, makes them, and writes the record: the end of every path.
void InferAndEmit(const Op& op, at::ArrayRef<c10::IValue> args, c10::DeviceIndex device, Origin origin, bool undefined,
                  c10::SmallVector<at::Tensor, 4>& fresh) {
  const OutMetas& metas = Infer(op, args);
  if (op.writes_out) {
    // A copy, because resizing may infer on this thread and move the cache.
    const OutMetas own = metas;
    ResizeOutputs(op, args, own);
  } else {
    for (const auto& m : metas) fresh.push_back(m.defined ? MakeTensor(m, device) : at::Tensor());
  }

  c10::SmallVector<int, 4> unmarked;
  UnmarkedWrites(op.columns, args, unmarked);
  if (op.recorded != &op) {
    std::vector<c10::IValue> rewritten(args.begin(), args.end());
    if (op.special.rewrites != nullptr) op.special.rewrites(rewritten);
    Emit(op, *op.recorded, rewritten, unmarked, fresh, device, origin, true, true);
  } else if (C10_UNLIKELY(KnownCall::MayBe(op, args))) {
    KnownCall known;
    Emit(op, op, args, unmarked, fresh, device, origin, undefined, true, {}, &known);
  } else {
    Emit(op, op, args, unmarked, fresh, device, origin, undefined, true);
  }

  if (op.columns.Has(kBumpsVersions)) {
    for (const int w : op.writes) {
      if (!args[w].isTensorList()) continue;
      // bump_version refuses inference tensors outside of inference mode.
      for (const auto& e : args[w].toListRef()) e.toTensor().unsafeGetTensorImpl()->bump_version();
    }
  }
}

// Whether the shapes of the results of this call of a dynamic op are known without the worker: an argument gives the
// size, or another library's function for meta tensors knows them. Such a function may fail where they depend on data.
// The worker then runs the operator, or says what is wrong with the operands.
bool HasStaticShape(const Op& op, at::ArrayRef<c10::IValue> args) {
  if (!op.of_others) {
    const int size = op.columns.size_argument;
    return size > 0 && !args[size].isNone();
  }
  if (op.fresh_returns == 0) return true;
  if (!op.handle.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
  try {
    Infer(op, args);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Takes the arguments off the stack and puts the returns there.
void PutResults(const Op& op, torch::jit::Stack* stack, c10::SmallVector<at::Tensor, 4>& fresh) {
  const size_t n = op.args.size();
  const std::span<c10::IValue> args(stack->data() + stack->size() - n, n);
  if (op.returns.size() == 1 && !op.returns[0].list && n > 0) {
    const int alias = op.returns[0].alias;
    c10::IValue value =
        alias >= 0 ? std::move(args[alias]) : c10::IValue(fresh.empty() ? at::Tensor() : std::move(fresh[0]));
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

}  // namespace

void KeepBackwardInThisThreadSlow() {
  this_thread.keeps_backward = true;
  if (PyGILState_GetThisThreadState() != nullptr) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
}

at::Tensor MakeTensor(const OutMeta& m, c10::DeviceIndex device) {
  return NewTensor(m.dtype, m.sizes, m.strides, BytesOf(m), device, this_thread);
}

at::Tensor MakeVector(at::ScalarType dtype, int64_t size, c10::DeviceIndex device) {
  OutMeta m;
  m.defined = true;
  m.dtype = dtype;
  m.sizes.assign(1, size);
  m.strides.assign(1, 1);
  return MakeTensor(m, device);
}

void Refuse(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  const Op& op = OpFor(handle);
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.full_name, " cannot run on mycelya: ",
      op.of_others         ? "it is not an operator of PyTorch's own, so the worker does not have it"
      : op.refusal.empty() ? "it is not in this version's op table"
                           : op.refusal.c_str(),
      ". Run it on the CPU: move its inputs with .cpu() and the result back with .to(\"mycelya\").");
}

void Record(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const Op& op = OpFor(handle);
  if (C10_UNLIKELY(!op.refusal.empty())) Refuse(handle, stack);
  if (op.columns.shortcut != Shortcut::kNone && RecordShort(op, stack)) return;
  CheckUsable();
  KeepBackwardInThisThread();
  const Origin origin = RecordOrigin();  // may take the GIL: before any lock
  const size_t n = op.args.size();
  const std::span<c10::IValue> slots(stack->data() + stack->size() - n, n);
  const at::ArrayRef<c10::IValue> args(slots.data(), n);

  Operands operands;
  const c10::DeviceIndex device = DeviceOf(op, args, operands);
  if (op.takes_codes) CheckWritable(op, args, device);
  if (C10_UNLIKELY(operands.lazy_views)) {
    if (op.special.on_lazy_views != nullptr && op.special.on_lazy_views(stack)) return;
    WrittenViews written;
    ResolveViews(op, slots, written);
    if (!written.empty()) return RecordThrough(op, stack, written);
  }
  if (op.columns.Has(kFillsWithNumber)) CheckFill(args);
  if (C10_UNLIKELY(op.special.instead != nullptr) && op.special.instead(args)) {
    torch::jit::drop(*stack, n - 1);
    return;
  }
  const bool indexed = op.columns.Has(kTakesCPUIndices);
  if (indexed) {
    ExpandMasks(op, slots);
    if (operands.cpu_indices) UploadIndices(op, slots, device);
  }

  c10::SmallVector<at::Tensor, 4> fresh;
  if (C10_UNLIKELY(op.dynamic && !HasStaticShape(op, args))) {
    if (op.writes_out) {
      RunDynamicOut(op, slots);
    } else {
      fresh = RunDynamic(op, args, device, origin);
    }
    PutResults(op, stack, fresh);
    return;
  }
  // Operands that this function has made may be undefined too.
  const bool undefined = operands.undefined || operands.lazy_views || indexed;
  InferAndEmit(op, args, device, origin, undefined, fresh);
  PutResults(op, stack, fresh);
}

bool RecordPlain(const Op& op, at::ArrayRef<c10::IValue> args, c10::SmallVector<at::Tensor, 4>& fresh) {
  if (C10_UNLIKELY(!op.refusal.empty() || op.dynamic || op.columns.Has(kTakesCPUIndices) ||
                   op.special.instead != nullptr)) {
    return false;
  }
  CheckUsable();
  KeepBackwardInThisThread();
  const Origin origin = RecordOrigin();  // may take the GIL: before any lock
  Operands operands;
  const c10::DeviceIndex device = DeviceOf(op, args, operands);
  if (C10_UNLIKELY(operands.lazy_views)) return false;
  if (op.takes_codes) CheckWritable(op, args, device);
  if (op.columns.Has(kFillsWithNumber)) CheckFill(args);
  InferAndEmit(op, args, device, origin, operands.undefined, fresh);
  return true;
}

void RecordCopy(const at::Tensor& dst, const at::Tensor& src) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  static const Op& op = OpFor(handle);
  CheckUsable();
  for (const at::Tensor* t : {&dst, &src}) CheckAlive(*StorageOf(*t->unsafeGetTensorImpl()));
  const c10::IValue args[] = {dst, src, false};
  KnownCall known;
  Emit(op, op, args, {}, {}, dst.device().index(), RecordOrigin(), true, false, {},
       KnownCall::MayBe(op, args) ? &known : nullptr);
}

namespace {

const at::Tensor* OperandOf(const OwnArgument& a) {
  if (const auto* w = std::get_if<Written>(&a)) return &w->tensor;
  return std::get_if<at::Tensor>(&a);
}

}  // namespace

void RecordOwn(c10::DeviceIndex device, const char* name, std::initializer_list<OwnArgument> args,
               at::ArrayRef<at::Tensor> results, uint32_t flags) {
  CheckUsable();
  for (const OwnArgument& a : args) {
    if (const at::Tensor* t = OperandOf(a)) CheckAlive(*StorageOf(*t->unsafeGetTensorImpl()));
  }
  const uint64_t hash = NameHash(name);
  DefineOp(hash, name);
  const Origin origin = RecordOrigin();
  Recorder& r = RecorderOf(device);
  r.WaitForRoom(origin);
  std::lock_guard<SpinLock> guard(r.lock);
  r.Prepare(origin);
  r.Count(false);
  for (const OwnArgument& a : args) {
    const at::Tensor* t = OperandOf(a);
    if (t != nullptr && !StorageOf(*t->unsafeGetTensorImpl())->defined) {
      r.DefineStorage(*t->unsafeGetTensorImpl(), origin);
    }
  }
  r.Begin(hash, flags, static_cast<uint32_t>(args.size()), static_cast<uint32_t>(results.size()), origin);
  for (const OwnArgument& a : args) {
    if (const auto* g = std::get_if<GeneratorId>(&a)) {
      r.Tag(MYC_W_GEN);
      r.Param(g->id);
    } else if (const auto* v = std::get_if<int64_t>(&a)) {
      r.Tag(MYC_W_NUMBER, MYC_N_I64);
      r.Param(static_cast<uint64_t>(*v));
    } else if (const auto* x = std::get_if<double>(&a)) {
      r.Tag(MYC_W_NUMBER, MYC_N_F64);
      r.Param(*x);
    } else if (const auto* s = std::get_if<std::string_view>(&a)) {
      r.Text(*s);
    } else if (const auto* list = std::get_if<at::IntArrayRef>(&a)) {
      r.Tag(MYC_W_LIST, MYC_L_INTS | list->size() << 8);
      for (const int64_t n : *list) {
        r.Tag(n < 2 ? MYC_W_INT : MYC_W_SIZE);
        n < 2 ? r.Word(static_cast<uint64_t>(n)) : r.Param(static_cast<uint64_t>(n));
      }
    } else if (const at::Tensor* t = OperandOf(a)) {
      r.Operand(*t->unsafeGetTensorImpl(), std::holds_alternative<Written>(a));
    } else {
      r.Tag(MYC_W_NONE);
    }
  }
  for (const at::Tensor& result : results) {
    if (result.defined()) {
      r.Result(*result.unsafeGetTensorImpl());
    } else {
      r.Tag(MYC_W_NONE);
    }
  }
  r.End();
}

void ResizeBytes(Storage& s, int64_t bytes) {
  CheckUsable();
  CheckAlive(s);
  if (static_cast<int64_t>(s.nbytes()) == bytes) return;
  TORCH_CHECK(s.resizable(), "Trying to resize storage that is not resizable");
  if (s.defined) {
    const Origin origin = RecordOrigin();
    Recorder& r = RecorderOf(s.device_index());
    std::lock_guard<SpinLock> guard(r.lock);
    r.ResizeStorage(s, bytes, origin);
  }
  s.SetBytes(bytes);
}

}  // namespace mycelya
