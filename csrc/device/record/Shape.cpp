// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Shape.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/strides.h>

#include <cstring>
#include <memory>
#include <vector>

#include "device/client/State.h"
#include "device/record/Recorder.h"
#include "device/tensor/Buffer.h"
#include "device/tensor/Thread.h"

namespace mycelya {
namespace {

thread_local bool checking_now = false;

struct Checking {
  Checking() { checking_now = true; }
  ~Checking() { checking_now = false; }
};

// The words that determine a shape: op, metadata of operands, attributes, default dtype.
class Key {
 public:
  C10_ALWAYS_INLINE void Put(uint64_t w) { words_.push_back(w); }
  void clear() { words_.clear(); }
  at::ArrayRef<uint64_t> Words() const { return {words_.data(), words_.size()}; }

  // Four lanes, so that a multiplication need not wait for the previous one.
  uint64_t hash() const {
    constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;
    const uint64_t* word = words_.data();
    const size_t size = words_.size();
    uint64_t h[4] = {size, 1, 2, 3};
    size_t i = 0;
    const auto mix = [&](uint64_t& lane, uint64_t w) {
      lane = (lane ^ w) * kPrime;
      lane ^= lane >> 29;
    };
    for (; i + 4 <= size; i += 4) {
      for (size_t k = 0; k < 4; ++k) mix(h[k], word[i + k]);
    }
    for (; i < size; ++i) mix(h[0], word[i]);
    for (size_t k = 1; k < 4; ++k) mix(h[0], h[k]);
    return h[0];
  }

 private:
  Buffer<uint64_t> words_;
};

struct Entry {
  uint64_t hash;
  std::vector<uint64_t> words;
  OutMetas metas;
};

// A table with open addressing, emptied when it is three quarters full. It is per thread and needs no lock.
constexpr size_t kSlots = 1 << 13;
struct Cache {
  std::vector<std::unique_ptr<Entry>> slots{kSlots};
  size_t used = 0;
  Key key;  // of the call
};

C10_NOINLINE Cache& MakeCache() {
  static thread_local Cache cache;
  this_thread.shapes = &cache;
  return cache;
}

Cache& CacheHere() {
  void* known = this_thread.shapes;
  return C10_LIKELY(known != nullptr) ? *static_cast<Cache*>(known) : MakeCache();
}

// value: a tensor or None.
void PutTensor(Key& key, const c10::IValue& value) {
  if (value.isNone() || !value.toTensor().defined()) {
    key.Put(0);
    return;
  }
  const auto& t = *value.toTensor().unsafeGetTensorImpl();
  const c10::IntArrayRef sizes = t.sizes(), strides = t.strides();
  // The device, because the workers of two devices may give other results.
  const c10::Device device = t.device();
  uint16_t place;
  static_assert(sizeof place == sizeof device);
  std::memcpy(&place, &device, sizeof place);
  key.Put(1 | static_cast<uint64_t>(c10::typeMetaToScalarType(t.dtype())) << 8 | uint64_t{sizes.size()} << 16 |
          static_cast<uint64_t>(t.is_wrapped_number()) << 24 | static_cast<uint64_t>(place) << 32);
  for (const int64_t v : sizes) key.Put(static_cast<uint64_t>(v));
  for (const int64_t v : strides) key.Put(static_cast<uint64_t>(v));
}

// Adds the offsets of operands that share a storage: the overlap check of a written operand depends on them.
void PutAliases(Key& key, const Op& op, at::ArrayRef<c10::IValue> args) {
  c10::SmallVector<std::pair<const void*, int64_t>, 16> seen;
  const auto visit = [&](const at::Tensor& t) {
    if (!t.defined() || t.device().type() != kDevice) return;
    const void* storage = t.storage().unsafeGetStorageImpl();
    const int64_t offset = t.storage_offset() * static_cast<int64_t>(t.itemsize());
    for (size_t i = 0; i < seen.size(); ++i) {
      if (seen[i].first == storage) {
        key.Put(0xA11A5ull << 32 | i);
        key.Put(static_cast<uint64_t>(offset - seen[i].second));
        return;
      }
    }
    seen.emplace_back(storage, offset);
    key.Put(0xF1257ull << 32);
  };
  for (size_t i = 0; i < args.size(); ++i) {
    // Lists hold hundreds of parameters, and each tensor of a list is checked alone. Only single tensors count here.
    if (op.args[i].kind == Kind::kTensor && args[i].isTensor()) visit(args[i].toTensor());
  }
}

void PutScalar(Key& key, const c10::Scalar& s, bool with_value) {
  key.Put(0x5ca1a << 8 | static_cast<uint64_t>(s.type()));
  if (!with_value) return;
  if (s.isFloatingPoint()) {
    const double v = s.toDouble();
    uint64_t bits;
    std::memcpy(&bits, &v, 8);
    key.Put(bits);
  } else if (s.isComplex()) {
    key.Put(0);
  } else {
    key.Put(static_cast<uint64_t>(s.toLong()));
  }
}

void Put(Key& key, const Argument& a, const c10::IValue& v) {
  if (v.isNone()) {
    key.Put(0x404e);
    return;
  }
  switch (a.kind) {
    case Kind::kTensor:
      PutTensor(key, v);
      break;
    case Kind::kTensors:
    case Kind::kOptTensors: {
      const auto list = v.toListRef();
      key.Put(list.size());
      for (const auto& e : list) PutTensor(key, e);
      break;
    }
    case Kind::kInt:
    case Kind::kDType:
    case Kind::kLayout:
    case Kind::kMemoryFormat:
      key.Put(static_cast<uint64_t>(v.toInt()));
      break;
    case Kind::kBool:
      key.Put(v.toBool());
      break;
    case Kind::kScalar:
      PutScalar(key, v.toScalar(), a.number_class == 's' || a.number_class == 'l');
      break;
    case Kind::kScalars: {
      const auto list = v.toListRef();
      key.Put(list.size());
      for (const auto& e : list) PutScalar(key, e.toScalar(), false);
      break;
    }
    case Kind::kInts: {
      const auto list = v.toListRef();
      key.Put(list.size());
      for (const auto& e : list) key.Put(static_cast<uint64_t>(e.toInt()));
      break;
    }
    case Kind::kBools: {
      const auto list = v.toListRef();
      key.Put(list.size());
      for (const auto& e : list) key.Put(e.toBool());
      break;
    }
    case Kind::kFloats: {
      const auto list = v.toListRef();
      key.Put(list.size());
      for (const auto& e : list) {
        const double d = e.toDouble();
        uint64_t bits;
        std::memcpy(&bits, &d, 8);
        key.Put(bits);
      }
      break;
    }
    case Kind::kString: {
      const auto& s = v.toStringRef();
      key.Put(NameHash(s));
      key.Put(s.size());
      break;
    }
    case Kind::kFloat:  // determines no shape, unless its class is 'l'
      if (a.number_class == 'l') {
        const double d = v.toDouble();
        uint64_t bits;
        std::memcpy(&bits, &d, 8);
        key.Put(bits);
      } else {
        key.Put(1);
      }
      break;
    case Kind::kDevice:
    case Kind::kGenerator:
    case Kind::kOther:
      key.Put(1);
      break;
  }
}

void CheckCopied(const at::Tensor& self, const at::Tensor& from) {
  TORCH_CHECK(at::is_expandable_to(from.sizes(), self.sizes()), "The size of tensor a ", self.sizes(),
              " must match the size of tensor b ", from.sizes(), " to be copied.");
  if (from.device() == self.device()) at::assert_no_partial_overlap(self, from);
}

void CheckWritten(const at::Tensor& self, const OutMeta& m) {
  TORCH_CHECK(at::IntArrayRef(m.sizes) == self.sizes(), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", at::IntArrayRef(m.sizes));
  TORCH_CHECK(c10::canCast(m.dtype, self.scalar_type()), "result type ", m.dtype,
              " can't be cast to the desired output type ", self.scalar_type());
}

// Checks each tensor argument against the written one, as TensorIterator does on every device.
void CheckOverlap(const Op& op, at::ArrayRef<c10::IValue> args, const at::Tensor& self, size_t self_index) {
  if (op.columns.Has(kCopiesValue)) {  // a value on the CPU is a number
    if (args[1].toTensor().device() == self.device()) at::assert_no_internal_overlap(self);
    return;
  }
  if (op.columns.Has(kSkipsReal) && !self.is_complex()) return;
  if (!op.columns.Has(kMayOverlap)) {
    at::assert_no_internal_overlap(self);
  } else if (op.args.size() > 2 && at::has_internal_overlap(self) == at::MemOverlap::Yes) {
    TORCH_WARN("Use of ", op.name, " on expanded tensors is deprecated. Please clone() the tensor before performing ",
               "this operation. This also applies to advanced indexing e.g. tensor[indices] = tensor");
  }
  const bool forbidden = op.columns.Has(kForbidsOverlap);
  for (size_t i = 0; i < args.size(); ++i) {
    if (i == self_index) continue;
    if (op.writes_out && op.args[i].kind == Kind::kTensors && args[i].isTensorList()) {
      for (const auto& e : args[i].toListRef()) at::assert_no_overlap(self, e.toTensor());
    }
    if (forbidden && op.args[i].kind == Kind::kOptTensors) {
      for (const auto& e : args[i].toListRef()) {
        if (e.isTensor() && e.toTensor().defined()) at::assert_no_overlap(self, e.toTensor());
      }
    }
    if (op.args[i].kind != Kind::kTensor || !args[i].isTensor()) continue;
    const auto& t = args[i].toTensor();
    if (!t.defined() || t.device() != self.device()) continue;
    forbidden ? at::assert_no_overlap(self, t) : at::assert_no_partial_overlap(self, t);
  }
}

void InferFresh(const Op& op, const std::string& name, const c10::OperatorHandle& handle,
                at::ArrayRef<c10::IValue> args, OutMetas& out) {
  if (InferByRule(name, args, out)) return;
  if (InferByMeta(name, handle, args, out)) return;
  GetCounters().meta_key_calls.fetch_add(1, std::memory_order_relaxed);
  InferByMetaKey(handle, args, out);
}

// Runs PyTorch's own checks of the written arguments of an in-place or out= form, and resizes an out= tensor. False:
// there is no function for that.
bool CheckByMeta(const Op& op, at::ArrayRef<c10::IValue> args) {
  if (HasRule(op.functional)) return false;
  {
    const Checking checking;
    if (!RunMeta(op.name, op.handle, args)) return false;
  }
  if (op.columns.Has(kMayOverlap)) return true;
  for (const int w : op.writes) {
    if (args[w].isTensor()) at::assert_no_internal_overlap(args[w].toTensor());
  }
  return true;
}

// For an in-place op, the functional form's results must fit the written arguments. Ops without a functional form
// (fills) need no inference.
void InferInPlace(const Op& op, at::ArrayRef<c10::IValue> args, OutMetas& out) {
  const bool fresh_returns =
      std::any_of(op.returns.begin(), op.returns.end(), [](const Return& r) { return r.alias < 0; });
  OutMetas metas;
  bool inferred = false;
  if (CheckByMeta(op, args)) return;
  if (op.functional_handle) {
    InferFresh(op, op.functional, *op.functional_handle, args, metas);
    inferred = true;
  } else if (fresh_returns) {
    InferFresh(op, op.name, op.handle, args, out);
  }
  size_t next = 0;
  for (const int w : op.writes) {
    const auto& v = args[w];
    if (v.isTensor()) {
      const auto& self = v.toTensor();
      if (inferred && next < metas.size()) CheckWritten(self, metas[next++]);
      CheckOverlap(op, args, self, w);
    } else if (v.isList()) {
      size_t at = 0;
      for (const auto& e : v.toListRef()) {
        if (op.columns.Has(kCopiesLists)) CheckCopied(e.toTensor(), args[1].toListRef()[at++].toTensor());
        if (e.isNone()) continue;
        if (inferred && next < metas.size()) CheckWritten(e.toTensor(), metas[next++]);
        if (!op.columns.Has(kMayOverlap)) at::assert_no_internal_overlap(e.toTensor());
      }
    }
  }
}

// Whether an out= tensor that is resized becomes contiguous, though the functional form's result is laid out for the
// Fourier transform or for LAPACK.
bool ResizesPlainly(const Op& op, at::ArrayRef<c10::IValue> args, const at::Tensor& result) {
  if (op.columns.Has(kRealOfComplex)) return args[0].toTensor().is_complex() && !result.is_complex();
  return op.columns.Has(kResizesPlainly) && (result.numel() != 0 || op.columns.Has(kResizesEmpty));
}

// An operator that draws into its out= tensor never resizes it: it draws, and then works with the tensor in place.
void CheckDrawn(const Op& op, at::ArrayRef<c10::IValue> args) {
  const auto& result = args[op.writes[0]].toTensor();
  const auto& given = args[op.args[0].kind == Kind::kTensor ? 0 : 1].toTensor();
  const auto sizes = at::infer_size(result.sizes(), given.sizes());
  TORCH_CHECK(result.sizes() == at::IntArrayRef(sizes), "output with shape ", result.sizes(),
              " doesn't match the broadcast shape ", sizes);
}

void InferOut(const Op& op, at::ArrayRef<c10::IValue> args, OutMetas& out) {
  if (CheckByMeta(op, args)) {
    for (const int w : op.writes) {
      OutMeta m;
      const auto& t = args[w].toTensor();
      m.defined = true;
      m.dtype = t.scalar_type();
      m.sizes.assign(t.sizes().begin(), t.sizes().end());
      m.strides.assign(t.strides().begin(), t.strides().end());
      out.push_back(std::move(m));
    }
    return;
  }
  for (const int w : op.writes) {
    if (!args[w].isTensor()) continue;
    const auto& result = args[w].toTensor();
    if (!op.columns.Has(kMayOverlap) && !op.columns.Has(kKeepsShape)) at::assert_no_internal_overlap(result);
    if (op.columns.Has(kFloatOut)) {
      TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(result.scalar_type()) || result.is_complex(), op.full_name,
                                  " is not implemented for ", result.scalar_type());
    }
  }
  std::vector<c10::IValue> own;
  if (op.columns.Has(kTakesDTypeOfOut)) {
    own = args.vec();
    for (size_t i = 0; i < own.size(); ++i) {
      if (op.args[i].kind == Kind::kDType && own[i].isNone()) own[i] = args[op.writes[0]].toTensor().scalar_type();
    }
    args = own;
  }
  if (op.functional_handle) {
    // out= arguments come last. A factory has no functional form without them; its rule skips them.
    const size_t n = op.functional == op.name ? args.size() : args.size() - op.writes.size();
    InferFresh(op, op.functional, *op.functional_handle, args.slice(0, n), out);
  } else {
    InferFresh(op, op.name, op.handle, args, out);
  }
  if (op.columns.Has(kDrawsInPlace)) {
    CheckDrawn(op, args);
    out.clear();
    return;
  }
  size_t next = 0;
  for (const int w : op.writes) {
    if (!args[w].isTensor() || next >= out.size()) continue;
    const auto& result = args[w].toTensor();
    OutMeta& m = out[next++];
    if (!m.defined || op.columns.Has(kAnyDTypeOut)) continue;
    if (ResizesPlainly(op, args, result)) {
      const auto contiguous = c10::contiguous_strides(m.sizes);
      m.strides.assign(contiguous.begin(), contiguous.end());
    }
    TORCH_CHECK(c10::canCast(m.dtype, result.scalar_type()), "result type ", m.dtype,
                " can't be cast to the desired output type ", result.scalar_type());
    const bool aside = op.columns.Has(kRealOfComplex) && args[0].toTensor().is_complex();
    const bool pointwise = op.columns.Has(kKeepsDType) && !aside;
    TORCH_CHECK(!pointwise || m.dtype == result.scalar_type(), "Found dtype ", result.scalar_type(), " but expected ",
                m.dtype);
    const bool kept = op.columns.Has(kKeepsShape) && result.numel() == c10::multiply_integers(m.sizes);
    if (pointwise || kept || result.sizes() == at::IntArrayRef(m.sizes)) CheckOverlap(op, args, result, w);
  }
}

// The device of a call: that of its tensors. Results of calls without tensors are the same on all devices.
c10::DeviceIndex DeviceOfCall(at::ArrayRef<c10::IValue> args) {
  const auto ours = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == kDevice;
  };
  for (const c10::IValue& arg : args) {
    if (ours(arg)) return arg.toTensor().device().index();
    if (!arg.isTensorList() && !arg.isOptionalTensorList()) continue;
    for (const c10::IValue& item : arg.toListRef()) {
      if (ours(item)) return item.toTensor().device().index();
    }
  }
  return CurrentDevice();
}

// Refuses tensors that a record cannot hold.
void CheckSizes(const Op& op, at::ArrayRef<c10::IValue> args, const OutMetas& results) {
  const auto check = [&](int64_t rank) {
    TORCH_CHECK(rank <= MYC_MAX_RANK, op.full_name, " on mycelya takes and makes tensors of at most ",
                static_cast<int>(MYC_MAX_RANK), " dimensions, got ", rank, ".");
  };
  for (const auto& value : args) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) check(value.toTensor().dim());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorList()) check(t.dim());
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorList()) {
        if (t && t->defined()) check(t->dim());
      }
    }
  }
  for (const OutMeta& m : results) {
    check(static_cast<int64_t>(m.sizes.size()));
    for (const int64_t size : m.sizes) {
      TORCH_CHECK(size >= 0, op.full_name, " cannot make a tensor of sizes ", c10::IntArrayRef(m.sizes),
                  " from operands like these.");
    }
  }
}

}  // namespace

bool OnlyChecking() { return checking_now; }

const OutMetas& Infer(const Op& op, at::ArrayRef<c10::IValue> args) {
  Cache& cache = CacheHere();
  Key& key = cache.key;
  key.clear();
  key.Put(reinterpret_cast<uintptr_t>(&op));
  key.Put(static_cast<uint64_t>(c10::typeMetaToScalarType(c10::get_default_dtype())));
  for (size_t i = 0; i < args.size(); ++i) Put(key, op.args[i], args[i]);
  if (!op.writes.empty()) PutAliases(key, op, args);

  const uint64_t hash = key.hash();
  const at::ArrayRef<uint64_t> words = key.Words();
  size_t slot = hash >> 51;
  for (;; slot = (slot + 1) & (kSlots - 1)) {
    const Entry* e = cache.slots[slot].get();
    if (e == nullptr) break;
    if (e->hash == hash && at::ArrayRef<uint64_t>(e->words) == words) {
      return e->metas;
    }
  }
  // Inference may call this function again, because the Meta key runs Python. So the key is copied.
  auto entry = std::make_unique<Entry>(Entry{hash, words.vec(), {}});
  const CallOn call(DeviceOfCall(args));
  if (op.writes.empty()) {
    InferFresh(op, op.name, op.handle, args, entry->metas);
  } else if (op.writes_out) {
    InferOut(op, args, entry->metas);
  } else {
    InferInPlace(op, args, entry->metas);
  }
  if (op.special.check != nullptr) op.special.check(args, entry->metas);
  CheckSizes(op, args, entry->metas);
  GetCounters().shape_misses.fetch_add(1, std::memory_order_relaxed);
  if (cache.used >= kSlots * 3 / 4) {
    for (auto& s : cache.slots) s.reset();
    cache.used = 0;
  }
  slot = entry->hash >> 51;
  while (cache.slots[slot] != nullptr) slot = (slot + 1) & (kSlots - 1);
  cache.slots[slot] = std::move(entry);
  ++cache.used;
  return cache.slots[slot]->metas;
}

}  // namespace mycelya
