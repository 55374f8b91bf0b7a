// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Recorder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "device/client/Client.h"

namespace mycelya {
namespace {

// The most records of a trace that nothing else cuts. The fixed cost of a trace is then small per record; a trace still
// compiles in milliseconds, and the worker starts early.
constexpr uint64_t kMaxRecords = RepeatDetector::kLong;

// Of up to 32 values.
uint64_t classes(c10::IntArrayRef values) {
  uint64_t word = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t c = values[i] == 0 ? MYC_D_ZERO : values[i] == 1 ? MYC_D_ONE : MYC_D_OTHER;
    word |= c << (2 * i);
  }
  return word;
}

bool is_whole(const c10::TensorImpl& t, bool contiguous, int64_t storage_bytes) {
  return t.storage_offset() == 0 && t.numel() * static_cast<int64_t>(t.itemsize()) == storage_bytes &&
         (contiguous || t.is_non_overlapping_and_dense());
}

const uint64_t kEmptyHash = name_hash("mycelya::empty");
const uint64_t kResizeHash = name_hash("mycelya::resize_storage");
const uint64_t kDefaultDtypeHash = name_hash("mycelya::set_default_dtype");
const uint64_t kFlagHash = name_hash("mycelya::set_flag");

void define_special_ops() {
  static std::once_flag once;
  std::call_once(once, [] {
    define_op(kEmptyHash, "mycelya::empty");
    define_op(kResizeHash, "mycelya::resize_storage");
    define_op(kDefaultDtypeHash, "mycelya::set_default_dtype");
    define_op(kFlagHash, "mycelya::set_flag");
  });
}

}  // namespace

Counters& counters() {
  static constinit Counters all;  // never destroyed: threads may count while the process ends
  return all;
}

namespace {

// By number.
#define MYC_TYPE(number, name, type, register_class, rounds) c10::ScalarType::type,
constexpr c10::ScalarType kTypes[] = {c10::ScalarType::Undefined, MYC_DTYPE_TABLE(MYC_TYPE)};
#undef MYC_TYPE
static_assert(std::size(kTypes) == MYC_DTYPES);

}  // namespace

constinit const DtypeCodes dtype_codes = [] {
  DtypeCodes codes{};
  for (uint8_t code = 1; code < MYC_DTYPES; ++code) codes[static_cast<size_t>(kTypes[code])] = code;
  return codes;
}();

void refuse_dtype(c10::ScalarType t) { TORCH_CHECK_NOT_IMPLEMENTED(false, "mycelya has no tensors of dtype ", t, "."); }

c10::ScalarType dtype_of_code(uint32_t code) {
  TORCH_CHECK(code > 0 && code < MYC_DTYPES, "BUG: the worker named dtype ", code, ".");
  return kTypes[code];
}

bool has_dtype(c10::ScalarType t) {
  for (uint32_t code = 1; code < MYC_DTYPES; ++code) {
    if (dtype_of_code(code) == t) return true;
  }
  return false;
}

uint64_t name_hash(const std::string& name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

void Recorder::begin(uint64_t op_hash, uint32_t flags, uint32_t n_args, uint32_t n_results, Origin origin) {
  if (C10_UNLIKELY(mark_ != MYC_CUT_NONE)) cut(mark_, mark_origin_);
  op_ = op_hash;
  storages_ = op_hash;
  word(MYC_W_RECORD | static_cast<uint64_t>(flags) << 8 | static_cast<uint64_t>(n_args) << 16 |
       static_cast<uint64_t>(n_results) << 32);
  word(op_hash);
  open_.origins.push_back(origin.code);
  open_.origins.push_back(origin.offset);
  ++records_;
}

void Recorder::end() {
  const bool round = repeat_.record(op_, storages_), part = turns_.record();
  if (C10_LIKELY(!round && !part && records_ < kMaxRecords)) return;
  const Origin origin{open_.origins[open_.origins.size() - 2], open_.origins[open_.origins.size() - 1]};
  if (records_ >= kMaxRecords) return cut(MYC_CUT_SIZE, origin);
  // A storage that dies between two rounds must not be an output of this one, so the next record ends the trace.
  mark(round ? MYC_CUT_REPEAT : MYC_CUT_EARLY, origin);
}

uint32_t Recorder::bind(Storage& s) {
  s.epoch = epoch_;
  s.local = static_cast<uint32_t>(open_.bindings.size());
  open_.bindings.push_back(s.id);
  open_.alive.push_back(1);
  earlier_.push_back(0);
  return s.local;
}

void Recorder::text(std::string_view s) {
  tag(MYC_W_STR, s.size());
  for (size_t i = 0; i < s.size(); i += 8) {
    uint64_t w = 0;
    std::memcpy(&w, s.data() + i, std::min<size_t>(8, s.size() - i));
    word(w);
  }
}

void Recorder::dims(c10::IntArrayRef values) {
  constexpr size_t kWord = 32;
  if (C10_LIKELY(values.size() <= kWord)) {
    word(classes(values));
  } else {
    for (size_t i = 0; i < values.size(); i += kWord)
      word(classes(values.slice(i, std::min(kWord, values.size() - i))));
  }
  for (const int64_t v : values) param(static_cast<uint64_t>(v));
}

void Recorder::geometry(const c10::TensorImpl& t, uint32_t flags, bool with_bytes) {
  dims(t.sizes());
  if ((flags & MYC_T_CONTIG) == 0) dims(t.strides());
  if ((flags & MYC_T_OFF0) == 0) param(static_cast<uint64_t>(t.storage_offset()));
  if (with_bytes) param(static_cast<uint64_t>(t.unsafe_storage().nbytes()));
}

void Recorder::operand(const c10::TensorImpl& t, bool write) {
  Storage& s = *storage_of(t);
  const bool contiguous = t.is_contiguous();
  uint32_t flags =
      (write ? MYC_T_WRITE : 0) | (contiguous ? MYC_T_CONTIG : 0) | (t.storage_offset() == 0 ? MYC_T_OFF0 : 0);
  const bool first = s.epoch != epoch_;
  if (first) {
    earlier_[bind(s)] = 1;
    flags |= MYC_T_FIRST;
    if (is_whole(t, contiguous, static_cast<int64_t>(s.nbytes()))) {
      flags |= MYC_T_WHOLE;
      s.geometry.set(t);
    } else {
      s.geometry.clear();
    }
  } else if (s.geometry.matches(t)) {
    flags |= MYC_T_SAME;
  }
  follow(s);
  const auto rank = static_cast<uint64_t>(t.dim());
  word(MYC_W_TENSOR | static_cast<uint64_t>(dtype_code(c10::typeMetaToScalarType(t.dtype()))) << 8 | rank << 16 |
       static_cast<uint64_t>(flags) << 24 | static_cast<uint64_t>(s.local) << 32);
  if ((flags & MYC_T_SAME) == 0) geometry(t, flags, first && (flags & MYC_T_WHOLE) == 0);
}

void Recorder::result(const c10::TensorImpl& t) {
  Storage& s = *storage_of(t);
  const bool contiguous = t.is_contiguous();
  const uint32_t flags = MYC_T_FIRST | MYC_T_WHOLE | MYC_T_OFF0 | (contiguous ? MYC_T_CONTIG : 0);
  bind(s);
  s.defined = true;
  s.geometry.set(t);
  word(MYC_W_TENSOR | static_cast<uint64_t>(dtype_code(c10::typeMetaToScalarType(t.dtype()))) << 8 |
       static_cast<uint64_t>(t.dim()) << 16 | static_cast<uint64_t>(flags) << 24 |
       static_cast<uint64_t>(s.local) << 32);
  geometry(t, flags, false);
}

void Recorder::define_storage(const c10::TensorImpl& t, Origin origin) {
  define_special_ops();
  Storage& s = *storage_of(t);
  begin(kEmptyHash, 0, 0, 1, origin);
  bind(s);
  s.defined = true;
  const bool contiguous = t.is_contiguous();
  if (is_whole(t, contiguous, static_cast<int64_t>(s.nbytes()))) {
    s.geometry.set(t);
    const uint32_t flags = MYC_T_FIRST | MYC_T_WHOLE | MYC_T_OFF0 | (contiguous ? MYC_T_CONTIG : 0);
    word(MYC_W_TENSOR | static_cast<uint64_t>(dtype_code(c10::typeMetaToScalarType(t.dtype()))) << 8 |
         static_cast<uint64_t>(t.dim()) << 16 | static_cast<uint64_t>(flags) << 24 |
         static_cast<uint64_t>(s.local) << 32);
    geometry(t, flags, false);
    return;
  }
  const int64_t bytes = static_cast<int64_t>(s.nbytes());
  s.geometry.set_flat_bytes(bytes);
  const uint32_t flags = MYC_T_FIRST | MYC_T_WHOLE | MYC_T_OFF0 | MYC_T_CONTIG;
  word(MYC_W_TENSOR | static_cast<uint64_t>(MYC_U8) << 8 | uint64_t{1} << 16 | static_cast<uint64_t>(flags) << 24 |
       static_cast<uint64_t>(s.local) << 32);
  word(classes(bytes));
  param(static_cast<uint64_t>(bytes));
}

void Recorder::set_default_dtype(c10::ScalarType dtype, Origin origin) {
  define_special_ops();
  begin(kDefaultDtypeHash, MYC_R_EFFECT, 1, 0, origin);
  tag(MYC_W_DTYPE, dtype_code(dtype));
  default_dtype_ = dtype;
}

void Recorder::set_flags(Origin origin) {
  define_special_ops();
  for (const std::string& flag : flags_since(flags_version_)) {
    begin(kFlagHash, MYC_R_EFFECT, 1, 0, origin);
    text(flag);
  }
}

void Recorder::resize_storage(Storage& s, int64_t new_bytes, Origin origin) {
  define_special_ops();
  begin(kResizeHash, 0, 2, 0, origin);
  const int64_t old_bytes = static_cast<int64_t>(s.nbytes());
  uint32_t flags = MYC_T_WRITE | MYC_T_CONTIG | MYC_T_OFF0;
  bool same = false;
  if (s.epoch != epoch_) {
    bind(s);
    flags |= MYC_T_FIRST | MYC_T_WHOLE;
  } else {
    Geometry flat;
    flat.set_flat_bytes(old_bytes);
    same = s.geometry.dtype == flat.dtype && s.geometry.contiguous && s.geometry.sizes == flat.sizes;
    if (same) flags |= MYC_T_SAME;
  }
  word(MYC_W_TENSOR | static_cast<uint64_t>(MYC_U8) << 8 | uint64_t{1} << 16 | static_cast<uint64_t>(flags) << 24 |
       static_cast<uint64_t>(s.local) << 32);
  if (!same) {
    word(classes(old_bytes));
    param(static_cast<uint64_t>(old_bytes));
  }
  if (new_bytes >= 2) {
    tag(MYC_W_SIZE);
    param(static_cast<uint64_t>(new_bytes));
  } else {
    tag(MYC_W_INT);
    word(static_cast<uint64_t>(new_bytes));
  }
  s.geometry.set_flat_bytes(new_bytes);
  end();
}

void Recorder::died(const Storage& s) {
  std::lock_guard<SpinLock> guard(death_lock_);
  deaths_.push_back({s.id, s.epoch, s.local});
  dead_bytes_ += s.nbytes();
}

uint64_t Recorder::dead_bytes() {
  std::lock_guard<SpinLock> guard(death_lock_);
  return dead_bytes_;
}

void Recorder::reset() {
  earlier_.clear();
  uploads_.clear();
  h0_ = 1;
  h1_ = 2;
  records_ = 0;
  ++epoch_;
}

void Recorder::upload(Origin origin) {
  if (mark_ != MYC_CUT_NONE) cut(mark_, mark_origin_);
  const auto same = [&](const Upload& u) { return u.origin.code == origin.code && u.origin.offset == origin.offset; };
  const auto seen = std::find_if(uploads_.begin(), uploads_.end(), same);
  if (seen == uploads_.end()) {
    uploads_.push_back({origin, records_});
  } else if (seen->records != records_) {
    cut(MYC_CUT_UPLOAD, origin);
    uploads_.push_back({origin, 0});
  }
}

void Recorder::read(const Storage& s, Origin origin, bool waits) {
  if (s.epoch == epoch_) {
    cut(MYC_CUT_READ, origin, waits);
  } else if (mark_ != MYC_CUT_NONE) {
    cut(mark_, mark_origin_);  // the next record would cut the trace here; the worker need not wait for that record
  }
}

// Empties the streams; the arrays keep their memory.
myc_trace Recorder::trace_of(const Streams& streams) const {
  myc_trace trace{};
  trace.key[0] = h0_;
  trace.key[1] = h1_;
  trace.skeleton = streams.skeleton.data();
  trace.n_skeleton = streams.skeleton.size();
  trace.params = streams.params.data();
  trace.n_params = streams.params.size();
  trace.bindings = streams.bindings.data();
  trace.n_bindings = streams.bindings.size();
  trace.alive = streams.alive.data();
  trace.frees = streams.frees.data();
  trace.n_frees = streams.frees.size();
  trace.origins = streams.origins.data();
  trace.n_records = records_;
  return trace;
}

// Takes the open streams, and replaces them by empty ones.
Streams& Recorder::close() {
  constexpr size_t kSpare = 4;  // unused sets that are kept
  std::unique_ptr<Streams> free;
  for (size_t i = closed_.size(); i-- > 0;) {
    if (std::atomic_ref(closed_[i]->in_use).load(std::memory_order_acquire) != 0) continue;
    if (free != nullptr && closed_.size() < kSpare) break;
    free = std::move(closed_[i]);
    closed_.erase(closed_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (free == nullptr) free = std::make_unique<Streams>();
  std::swap(*free, open_);
  open_.skeleton.clear();
  open_.params.clear();
  open_.bindings.clear();
  open_.frees.clear();
  open_.origins.clear();
  open_.alive.clear();
  free->in_use = 1;
  return *closed_.emplace_back(std::move(free));
}

std::string Recorder::pending(const Storage& s) {
  std::lock_guard<SpinLock> guard(lock);
  if (s.epoch != epoch_ || records_ == 0) return "";
  const Client& c = client_for(device_);
  const myc_trace trace = trace_of(open_);
  return text_of(
      [&](char* out, uint64_t n, myc_error* error) { return c.pending(device_, &trace, s.id, out, n, error); });
}

void Recorder::cut(uint32_t reason, Origin origin, bool waits) {
  {
    std::lock_guard<SpinLock> guard(death_lock_);
    dead_.swap(deaths_);
    deaths_.clear();
    dead_bytes_ = 0;
  }
  const bool step = std::exchange(mark_, MYC_CUT_NONE) == MYC_CUT_STEP;
  if (records_ != 0) {
    repeat_.cut(reason != MYC_CUT_SIZE && reason != MYC_CUT_REPEAT && reason != MYC_CUT_EARLY);
    reason == MYC_CUT_EARLY ? turns_.part() : turns_.cut(waits && !step, origin);
  }
  if (records_ == 0 && dead_.empty()) return;
  for (const Death& d : dead_) {
    if (d.epoch == epoch_) {
      open_.alive[d.local] = 0;
    } else {
      open_.frees.push_back(d.id);
    }
  }
  if (records_ == 0 && open_.frees.size() == 0) return;
  const Client& c = client_for(device_);
  Streams& closed = close();
  myc_trace trace = trace_of(closed);
  trace.in_use = &closed.in_use;
  trace.reason = reason;
  trace.reason_origin[0] = origin.code;
  trace.reason_origin[1] = origin.offset;
  auto error = std::make_unique_for_overwrite<myc_error>();  // 8 KiB
  const int32_t status = c.flush(device_, &trace, error.get());
  // The trace ends in any case. Otherwise its results would never exist, and each use would report that.
  reset();
  if (status == MYC_PENDING) {
    behind_.store(true, std::memory_order_relaxed);
  } else if (status != MYC_OK) {
    error->kind = status;
    raise(*error);
  }
}

void Recorder::wait_for_room_slow(Origin origin) {
  const Client& c = client_for(device_);
  auto error = std::make_unique<myc_error>();
  const uint64_t ticket = c.room(device_, origin, error.get());
  if (ticket == 0) raise(*error);
  wait_for(c, ticket);
  behind_.store(false, std::memory_order_relaxed);
}

constinit std::array<std::atomic<Recorder*>, kMaxDevices> recorders{};

Recorder& make_recorder(c10::DeviceIndex device) {
  Recorder* r = nullptr;
  auto* fresh = new Recorder(device);
  if (recorders[device].compare_exchange_strong(r, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *r;
}

void note_death(const Storage& s) {
  if (in_bad_fork()) return;  // the lock's owner may not exist in the child
  recorder(s.device_index()).died(s);
}

}  // namespace mycelya
