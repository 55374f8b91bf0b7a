// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Known.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "device/client/Client.h"
#include "device/record/Reads.h"
#include "device/record/RecordInternal.h"
#include "device/record/Recorder.h"

namespace mycelya {
namespace {

// All bytes that are kept at a time. Beyond, uploads are not known.
constexpr int64_t kMostHeld = 64 << 20;
std::atomic<int64_t> held{0};

// Longer ways to the bytes are computed while they are recorded, so that no chain grows with a loop.
constexpr uint32_t kDeepest = 32;

// The number of failures per device.
std::array<std::atomic<uint64_t>, kMaxDevices> failures{};

// What was known before the last failure of a device, or before any worker was lost, is not true any more.
uint64_t GenerationOf(c10::DeviceIndex device) {
  return failures[device].load(std::memory_order_relaxed) + LossesRaised();
}

// The client library refuses values that the variables do not have.
std::atomic<LocalReads>& Mode() {
  static std::atomic<LocalReads> mode = [] {
    const char *local = std::getenv("MYCELYA_LOCAL"), *check = std::getenv("MYCELYA_CHECK");
    if (local != nullptr && std::string_view(local) == "off") return LocalReads::kOff;
    const bool checked = check != nullptr && (std::string_view(check) == "2" || std::string_view(check) == "3");
    return checked ? LocalReads::kChecked : LocalReads::kOn;
  }();
  return mode;
}

LocalReads GetMode() { return Mode().load(std::memory_order_relaxed); }

// PyTorch's CPU kernels, without autograd, autocast, modes or transforms of this thread.
class OnlyCpu {
 public:
  OnlyCpu()
      : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
               c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset) {}

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

Known* KnownOf(const Storage& s) {
  auto* known = static_cast<Known*>(s.known.get());
  if (C10_LIKELY(known == nullptr)) return nullptr;
  return known->generation() == GenerationOf(s.device_index()) ? known : nullptr;
}

c10::intrusive_ptr<Known> Hold(Known* known) {
  return known == nullptr ? nullptr : c10::intrusive_ptr<Known>::reclaim_copy(known);
}

// The content of a storage, taken under the recorder's lock: a write of another thread may replace it.
c10::intrusive_ptr<Known> HoldOf(const Storage& s) {
  const std::lock_guard<SpinLock> guard(RecorderOf(s.device_index()).lock);
  return Hold(KnownOf(s));
}

bool IsInteger(at::ScalarType t) { return at::isIntegralType(t, true); }

// Whether operators on such elements are exact where the operator is. Conversions to 8-bit floats saturate in several
// ways.
bool IsOrdinary(at::ScalarType t) {
  return IsInteger(t) || t == at::kFloat || t == at::kDouble || t == at::kHalf || t == at::kBFloat16;
}

// Whether a call of an exact op has the same bits on every device. floats: an operand has floats. result: the dtype of
// the result. Devices convert a float that does not fit an integer to different integers.
bool IsExactWith(const Op& op, bool floats, at::ScalarType result) {
  if (!IsOrdinary(result)) return false;
  if (!op.columns.Has(kExact)) return !floats && IsInteger(result);
  return !floats || !IsInteger(result) || result == at::kBool;
}

at::Tensor ViewOf(const at::Tensor& bytes, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                  int64_t offset) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(bytes.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return t;
}

at::Tensor NewBytes(int64_t n) { return at::empty({n}, at::TensorOptions().dtype(at::kByte).device(at::kCPU)); }

// A CPU tensor without dims, as it is now.
at::Tensor CopyOfNumber(const at::Tensor& t) {
  const OnlyCpu only;
  at::Tensor copy = t.clone();
  copy.unsafeGetTensorImpl()->set_wrapped_number(t.unsafeGetTensorImpl()->is_wrapped_number());
  return copy;
}

// Whether a view has each byte of its storage.
bool IsAll(const at::Tensor& t, const Storage& s) {
  return t.storage_offset() == 0 && t.is_non_overlapping_and_dense() &&
         static_cast<size_t>(t.numel()) * t.itemsize() == s.nbytes();
}

// Whether the value of an operand does not matter for the result.
bool IsOnlyShape(const Op& op, size_t argument, const at::Tensor& t) {
  if (argument != 0 || !op.columns.Has(kIgnoresSelf)) return false;
  return !op.args[argument].write || IsAll(t, *StorageOf(*t.unsafeGetTensorImpl()));
}

void Put(c10::IValue& argument, size_t element, at::Tensor value) {
  if (!argument.isList()) {
    argument = std::move(value);
    return;
  }
  auto list = argument.toList();
  list.set(element, c10::IValue(std::move(value)));
}

// A copy of an argument whose tensors can be replaced one by one.
c10::IValue CopyOf(const Argument& a, const c10::IValue& value) {
  if (a.kind == Kind::kDevice && !value.isNone()) return c10::Device(at::kCPU);
  if (a.kind == Kind::kTensor) return value.isTensor() && !value.toTensor().defined() ? value : c10::IValue();
  if (a.kind == Kind::kTensors && !value.isNone()) {
    c10::List<at::Tensor> list;
    for (size_t i = 0; i < value.toListRef().size(); ++i) list.push_back(at::Tensor());
    return list;
  }
  if (a.kind == Kind::kOptTensors && !value.isNone()) {
    c10::List<std::optional<at::Tensor>> list;
    for (size_t i = 0; i < value.toListRef().size(); ++i) list.push_back(std::nullopt);
    return list;
  }
  return value;
}

// The arguments for a call on the CPU. nullopt: an operand is not known.
std::optional<Known::Computation> ComputationOf(const Op& op, at::ArrayRef<c10::IValue> args) {
  Known::Computation c;
  c.op = &op;
  bool all = true;
  EachTensor(op, args, [&](size_t i, size_t k, const at::Tensor& t) {
    Known::Operand operand;
    operand.argument = i;
    operand.element = k;
    operand.dtype = t.scalar_type();
    if (Ours(t)) {
      const Storage& s = *StorageOf(*t.unsafeGetTensorImpl());
      operand.content = Hold(KnownOf(s));
      operand.bytes = static_cast<int64_t>(s.nbytes());
      operand.sizes.assign(t.sizes().begin(), t.sizes().end());
      operand.strides.assign(t.strides().begin(), t.strides().end());
      operand.offset = t.storage_offset();
      all = all && (operand.content != nullptr || IsOnlyShape(op, i, t));
    } else if (all) {
      operand.number = CopyOfNumber(t);
    }
    c.operands.push_back(std::move(operand));
  });
  if (!all) return std::nullopt;
  c.args.reserve(args.size());
  for (size_t i = 0; i < args.size(); ++i) c.args.push_back(CopyOf(op.args[i], args[i]));
  if (!op.writes.empty()) c.written = op.writes[0];
  return c;
}

// Whether an operator reads the storage that it writes through another argument. What it computes then depends on its
// order.
bool ReadsWritten(const Op& op, at::ArrayRef<c10::IValue> args, const Storage& written) {
  bool reads = false;
  EachTensor(op, args, [&](size_t i, size_t, const at::Tensor& t) {
    reads |= !op.args[i].write && Ours(t) && StorageOf(*t.unsafeGetTensorImpl()) == &written;
  });
  return reads;
}

// Whether any of the tensors among the arguments has floats.
bool HasFloats(const Op& op, at::ArrayRef<c10::IValue> args) {
  bool floats = false;
  EachTensor(op, args, [&](size_t, size_t, const at::Tensor& t) { floats |= !IsInteger(t.scalar_type()); });
  return floats;
}

// Runs the operator on the CPU. The stack then has its results. False: it has failed.
bool Call(const Known::Computation& c, at::Tensor& written, torch::jit::Stack& stack) {
  const OnlyCpu only;
  stack = c.args;
  for (const Known::Operand& o : c.operands) {
    at::Tensor value = o.number;
    if (static_cast<int>(o.argument) == c.written) {
      written = NewBytes(o.bytes);
      if (o.content != nullptr) {
        const at::Tensor old = o.content->View(at::kByte, {o.bytes}, {1}, 0);
        std::memcpy(written.mutable_data_ptr(), old.const_data_ptr(), static_cast<size_t>(o.bytes));
      }
      value = ViewOf(written, o.dtype, o.sizes, o.strides, o.offset);
    } else if (o.content != nullptr) {
      value = o.content->View(o.dtype, o.sizes, o.strides, o.offset);
    } else if (!value.defined()) {
      value = at::empty_strided(o.sizes, o.strides, at::TensorOptions().dtype(o.dtype).device(at::kCPU));
    }
    Put(stack[o.argument], o.element, std::move(value));
  }
  try {
    c.op->handle.callBoxed(stack);
  } catch (const std::exception&) {
    return false;  // the worker's error names the user's line
  }
  return true;
}

}  // namespace

Known::Known(at::Tensor bytes, uint64_t generation) : generation_(generation), bytes_(std::move(bytes)) {
  held.fetch_add(static_cast<int64_t>(bytes_.storage().nbytes()), std::memory_order_relaxed);
}

Known::Known(Computation computation, uint64_t generation)
    : generation_(generation), computation_(std::move(computation)) {
  uint32_t deepest = 0;
  for (const Operand& o : computation_->operands) {
    if (o.content != nullptr) deepest = std::max(deepest, o.content->depth());
  }
  depth_.store(deepest + 1, std::memory_order_relaxed);
}

Known::~Known() {
  if (bytes_.defined()) held.fetch_sub(static_cast<int64_t>(bytes_.storage().nbytes()), std::memory_order_relaxed);
}

at::Tensor Known::View(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) const {
  return ViewOf(bytes_, dtype, sizes, strides, offset);
}

bool Known::Run() {
  for (const Operand& o : computation_->operands) {
    if (o.content != nullptr && !o.content->Compute()) return false;
  }
  torch::jit::Stack stack;
  at::Tensor written;
  if (!Call(*computation_, written, stack)) return false;
  if (computation_->written >= 0) {
    bytes_ = std::move(written);
    return true;
  }
  const OutMeta& m = computation_->result;
  at::Tensor out = std::move(stack.back()).toTensor();
  // The default dtype may have changed since.
  if (out.scalar_type() != m.dtype || out.sizes() != at::IntArrayRef(m.sizes)) return false;
  const bool owns = out.storage_offset() == 0 && out.storage().use_count() == 1;
  if (!owns || out.strides() != at::IntArrayRef(m.strides)) {
    const OnlyCpu only;
    const at::Tensor other = out;
    out = at::empty_strided(m.sizes, m.strides, out.options());
    out.copy_(other);
  }
  bytes_ = std::move(out);
  return true;
}

bool Known::Compute() {
  static auto& mutex = *new std::recursive_mutex();  // its owner computes operands
  const std::lock_guard<std::recursive_mutex> guard(mutex);
  if (!computation_.has_value()) return bytes_.defined();
  if (Run()) held.fetch_add(static_cast<int64_t>(bytes_.storage().nbytes()), std::memory_order_relaxed);
  computation_.reset();
  depth_.store(0, std::memory_order_relaxed);
  return bytes_.defined();
}

LocalReads SetLocalReads(LocalReads reads) { return Mode().exchange(reads); }

int64_t KnownBytes() { return held.load(std::memory_order_relaxed); }

void KnowUpload(Storage& s, const at::Tensor& dense) {
  const size_t bytes = s.nbytes();
  if (GetMode() == LocalReads::kOff || bytes > kMostKnownBytes || !IsOrdinary(dense.scalar_type()) ||
      held.load(std::memory_order_relaxed) + static_cast<int64_t>(bytes) > kMostHeld) {
    return;
  }
  at::Tensor copy;
  {
    const OnlyCpu only;
    copy = NewBytes(static_cast<int64_t>(bytes));
  }
  std::memcpy(copy.mutable_data_ptr(), dense.const_data_ptr(), bytes);
  auto known = c10::make_intrusive<Known>(std::move(copy), GenerationOf(s.device_index()));
  const std::lock_guard<SpinLock> guard(RecorderOf(s.device_index()).lock);
  s.known = std::move(known);
}

bool KnownCall::MayBe(const Op& op, at::ArrayRef<c10::IValue> args) {
  if (C10_LIKELY(!op.IsExact()) || GetMode() == LocalReads::kOff) return false;
  if (op.recorded != &op || op.writes_out || op.writes.size() > 1) return false;
  if (op.writes.empty() && (op.returns.size() != 1 || op.returns[0].list)) return false;
  bool all = true;
  EachTensor(op, args, [&](size_t i, size_t, const at::Tensor& t) {
    if (!all || !Ours(t)) return;
    const Storage& s = *StorageOf(*t.unsafeGetTensorImpl());
    all = s.nbytes() <= kMostKnownBytes && s.nbytes() != 0 && IsOrdinary(t.scalar_type()) &&
          op.IsExactOn(t.scalar_type()) && (s.known != nullptr || IsOnlyShape(op, i, t));
  });
  if (!all) return false;
  EachTensor(op, args, [&](size_t, size_t, const at::Tensor& t) {
    if (!all || !Ours(t)) return;
    const auto known = HoldOf(*StorageOf(*t.unsafeGetTensorImpl()));
    all = known == nullptr || known->depth() < kDeepest || known->Compute();
  });
  return all;
}

void KnownCall::Take(const Op& op, at::ArrayRef<c10::IValue> args, c10::DeviceIndex device) {
  generation_ = GenerationOf(device);
  computation_ = ComputationOf(op, args);
  if (!computation_.has_value() || computation_->written < 0) return;
  const at::Tensor& t = args[computation_->written].toTensor();
  written_ = StorageOf(*t.unsafeGetTensorImpl());
  if (!IsExactWith(op, HasFloats(op, args), t.scalar_type()) || ReadsWritten(op, args, *written_)) computation_.reset();
}

void KnownCall::Give(at::ArrayRef<at::Tensor> fresh) {
  if (!computation_.has_value()) return;
  Storage* s = written_;
  if (s == nullptr) {
    const at::Tensor& t = fresh[0];
    if (!t.defined()) return;
    s = StorageOf(*t.unsafeGetTensorImpl());
    bool floats = false;
    for (const Known::Operand& o : computation_->operands) floats |= !IsInteger(o.dtype);
    if (s->nbytes() == 0 || s->nbytes() > kMostKnownBytes || !IsExactWith(*computation_->op, floats, t.scalar_type())) {
      return;
    }
    OutMeta& m = computation_->result;
    m.defined = true;
    m.dtype = t.scalar_type();
    m.sizes.assign(t.sizes().begin(), t.sizes().end());
    m.strides.assign(t.strides().begin(), t.strides().end());
  }
  s->known = c10::make_intrusive<Known>(std::move(*computation_), generation_);
}

std::optional<std::vector<at::Tensor>> KnownResults(const Op& op, at::ArrayRef<c10::IValue> args) {
  if (!op.IsExact() || GetMode() != LocalReads::kOn) return std::nullopt;
  bool all = true;
  c10::DeviceIndex device = 0;
  EachTensor(op, args, [&](size_t, size_t, const at::Tensor& t) {
    all = all && (!Ours(t) || HoldOf(*StorageOf(*t.unsafeGetTensorImpl())) != nullptr);
    if (Ours(t)) device = t.device().index();
  });
  if (!all || (HasFloats(op, args) && !op.columns.Has(kExact))) return std::nullopt;
  std::optional<Known::Computation> c;
  {
    const std::lock_guard<SpinLock> guard(RecorderOf(device).lock);
    c = ComputationOf(op, args);
  }
  if (!c.has_value()) return std::nullopt;
  for (const Known::Operand& o : c->operands) {
    if (o.content != nullptr && !o.content->Compute()) return std::nullopt;
  }
  torch::jit::Stack stack;
  at::Tensor written;
  if (!Call(*c, written, stack)) return std::nullopt;
  CountSaved(Saved::kKnown, WithCaller(RecordOrigin()));
  std::vector<at::Tensor> results;
  for (c10::IValue& value : stack) results.push_back(std::move(value).toTensor());
  return results;
}

namespace {

// The elements that the client knows, row-major; undefined: it does not know them.
at::Tensor KnownElements(const at::Tensor& t) {
  const Storage& s = *StorageOf(*t.unsafeGetTensorImpl());
  if (C10_LIKELY(s.known == nullptr)) return {};
  CheckAlive(s);
  c10::intrusive_ptr<Known> known;
  {
    Recorder& r = RecorderOf(s.device_index());
    const std::lock_guard<SpinLock> guard(r.lock);
    // The first read starts the worker in any case, so that it tells whether the device works.
    if (IsOpen(s.device_index()) && r.Usable()) known = Hold(KnownOf(s));
  }
  if (known == nullptr || !known->Compute()) return {};
  const OnlyCpu only;
  return known->View(t.scalar_type(), t.sizes(), t.strides(), t.storage_offset()).contiguous();
}

}  // namespace

at::Tensor Expected(const at::Tensor& t) { return GetMode() == LocalReads::kChecked ? KnownElements(t) : at::Tensor(); }

bool Answer(const at::Tensor& t, void* out) {
  if (GetMode() != LocalReads::kOn) return false;
  const at::Tensor elements = KnownElements(t);
  if (!elements.defined()) return false;
  std::memcpy(out, elements.const_data_ptr(), elements.nbytes());
  CountSaved(Saved::kKnown, WithCaller(RecordOrigin()));
  return true;
}

void CheckAnswer(const at::Tensor& expected, const void* out) {
  if (!expected.defined() || std::memcmp(out, expected.const_data_ptr(), expected.nbytes()) == 0) return;
  const OnlyCpu only;
  const at::Tensor sent = at::from_blob(const_cast<void*>(out), expected.sizes(), expected.options());
  const at::Tensor nan = sent.ne(sent).logical_and(expected.ne(expected));
  TORCH_CHECK(sent.eq(expected).logical_or(nan).all().item().toBool(), "BUG: the worker has sent ", sent,
              ", and the client computed ", expected,
              ". Please report it; MYCELYA_LOCAL=off reads all values from the worker.");
}

void ForgetKnown(c10::DeviceIndex device) { failures[device].fetch_add(1, std::memory_order_relaxed); }

}  // namespace mycelya
