// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Recorder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "device/client/Client.h"
#include "device/client/Lives.h"
#include "device/client/Profile.h"
#include "device/record/Failure.h"

namespace mycelya {
namespace {

// The most records of a trace that nothing else cuts. The fixed cost of a trace is then small per record; a trace still
// compiles in milliseconds, and the worker starts early.
constexpr uint64_t kMaxRecords = RepeatDetector::kLong;

uint64_t ClassOf(int64_t value) { return value == 0 ? MYC_D_ZERO : value == 1 ? MYC_D_ONE : MYC_D_OTHER; }

bool IsWhole(const c10::TensorImpl& t, bool contiguous, int64_t storage_bytes) {
  return t.storage_offset() == 0 && t.numel() * static_cast<int64_t>(t.itemsize()) == storage_bytes &&
         (contiguous || t.is_non_overlapping_and_dense());
}

const uint64_t kEmptyHash = NameHash("mycelya::empty");
const uint64_t kResizeHash = NameHash("mycelya::resize_storage");
const uint64_t kDefaultDtypeHash = NameHash("mycelya::set_default_dtype");
const uint64_t kFlagHash = NameHash("mycelya::set_flag");
const uint64_t kSeedHash = NameHash("mycelya::manual_seed");

void DefineSpecialOps() {
  static std::once_flag once;
  std::call_once(once, [] {
    DefineOp(kEmptyHash, "mycelya::empty");
    DefineOp(kResizeHash, "mycelya::resize_storage");
    DefineOp(kDefaultDtypeHash, "mycelya::set_default_dtype");
    DefineOp(kFlagHash, "mycelya::set_flag");
    DefineOp(kSeedHash, "mycelya::manual_seed");
  });
}

}  // namespace

Counters& GetCounters() {
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

void RefuseDtype(c10::ScalarType t) { TORCH_CHECK_NOT_IMPLEMENTED(false, "mycelya has no tensors of dtype ", t, "."); }

c10::ScalarType DtypeOfCode(uint32_t code) {
  TORCH_CHECK(code > 0 && code < MYC_DTYPES, "BUG: the worker named dtype ", code, ".");
  return kTypes[code];
}

bool HasDtype(c10::ScalarType t) {
  for (uint32_t code = 1; code < MYC_DTYPES; ++code) {
    if (DtypeOfCode(code) == t) return true;
  }
  return false;
}

uint64_t NameHash(const std::string& name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

void Recorder::Begin(uint64_t op_hash, uint32_t flags, uint32_t n_args, uint32_t n_results, Origin origin) {
  if (C10_UNLIKELY(mark_ != MYC_CUT_NONE)) Cut(mark_, mark_origin_);
  op_ = op_hash;
  storages_ = op_hash;
  Word(MYC_W_RECORD | static_cast<uint64_t>(flags) << 8 | static_cast<uint64_t>(n_args) << 16 |
       static_cast<uint64_t>(n_results) << 32);
  Word(op_hash);
  open_.origins.push_back(origin.code);
  open_.origins.push_back(origin.offset);
  if (C10_UNLIKELY(profiling.load(std::memory_order_relaxed))) NoteCaller();
  ++records_;
}

void Recorder::NoteCaller() {
  if (open_.began == 0) open_.began = UnixNow();
  while (open_.callers.size() < records_) open_.callers.push_back(0);  // the profile has begun since
  open_.callers.push_back(CurrentCaller());
}

void Recorder::End() {
  const bool round = repeat_.Record(op_, storages_), part = turns_.Record();
  if (C10_LIKELY(!round && !part && records_ < kMaxRecords)) return;
  const Origin origin{open_.origins[open_.origins.size() - 2], open_.origins[open_.origins.size() - 1]};
  if (records_ >= kMaxRecords) return Cut(MYC_CUT_SIZE, origin);
  // A storage that dies between two rounds must not be an output of this one, so the next record ends the trace.
  Mark(round ? MYC_CUT_REPEAT : MYC_CUT_EARLY, origin);
}

uint32_t Recorder::Bind(Storage& s) {
  s.epoch = epoch_;
  s.local = static_cast<uint32_t>(open_.bindings.size());
  open_.bindings.push_back(s.id);
  open_.alive.push_back(1);
  earlier_.push_back(0);
  return s.local;
}

void Recorder::Text(std::string_view s) {
  Tag(MYC_W_STR, s.size());
  for (size_t i = 0; i < s.size(); i += 8) {
    uint64_t w = 0;
    std::memcpy(&w, s.data() + i, std::min<size_t>(8, s.size() - i));
    Word(w);
  }
}

void Recorder::PutDims(c10::IntArrayRef values) {
  constexpr size_t kWord = 32;  // classes of a word
  size_t i = 0;
  do {
    uint64_t classes = 0;
    for (size_t bit = 0; i < values.size() && bit < 2 * kWord; ++i, bit += 2) {
      classes |= ClassOf(values[i]) << bit;
      Param(static_cast<uint64_t>(values[i]));
    }
    Word(classes);
  } while (C10_UNLIKELY(i < values.size()));
}

void Recorder::PutGeometry(const c10::TensorImpl& t, uint32_t flags, bool with_bytes) {
  PutDims(t.sizes());
  if ((flags & MYC_T_CONTIG) == 0) PutDims(t.strides());
  if ((flags & MYC_T_OFF0) == 0) Param(static_cast<uint64_t>(t.storage_offset()));
  if (with_bytes) Param(static_cast<uint64_t>(t.unsafe_storage().nbytes()));
}

void Recorder::Operand(const c10::TensorImpl& t, bool write) {
  Storage& s = *StorageOf(t);
  if (write) s.known.reset();
  const bool contiguous = t.is_contiguous();
  uint32_t flags =
      (write ? MYC_T_WRITE : 0) | (contiguous ? MYC_T_CONTIG : 0) | (t.storage_offset() == 0 ? MYC_T_OFF0 : 0);
  const bool first = s.epoch != epoch_;
  if (first) {
    earlier_[Bind(s)] = 1;
    flags |= MYC_T_FIRST;
    if (IsWhole(t, contiguous, static_cast<int64_t>(s.nbytes()))) {
      flags |= MYC_T_WHOLE;
      s.geometry.Set(t);
    } else {
      s.geometry.clear();
    }
  } else if (s.geometry.Matches(t)) {
    flags |= MYC_T_SAME;
  }
  Follow(s);
  const auto rank = static_cast<uint64_t>(t.dim());
  Word(MYC_W_TENSOR | static_cast<uint64_t>(DtypeCode(c10::typeMetaToScalarType(t.dtype()))) << 8 | rank << 16 |
       static_cast<uint64_t>(flags) << 24 | static_cast<uint64_t>(s.local) << 32);
  if ((flags & MYC_T_SAME) == 0) PutGeometry(t, flags, first && (flags & MYC_T_WHOLE) == 0);
}

void Recorder::Result(const c10::TensorImpl& t) {
  Storage& s = *StorageOf(t);
  const size_t origin = open_.origins.size() - 2;
  s.SetPlace({open_.origins[origin], open_.origins[origin + 1]});
  PutFresh(s, t);
}

void Recorder::PutFresh(Storage& s, const c10::TensorImpl& t) {
  Bind(s);
  s.defined = true;
  Geometry& g = s.geometry;
  g.Set(t);
  const uint32_t flags = MYC_T_FIRST | MYC_T_WHOLE | MYC_T_OFF0 | (g.contiguous ? MYC_T_CONTIG : 0);
  Word(MYC_W_TENSOR | static_cast<uint64_t>(DtypeCode(g.dtype)) << 8 | static_cast<uint64_t>(g.sizes.size()) << 16 |
       static_cast<uint64_t>(flags) << 24 | static_cast<uint64_t>(s.local) << 32);
  PutDims(g.sizes);
  if (!g.contiguous) PutDims(g.strides);
}

void Recorder::DefineStorage(const c10::TensorImpl& t, Origin origin) {
  DefineSpecialOps();
  Storage& s = *StorageOf(t);
  Begin(kEmptyHash, 0, 0, 1, origin);
  s.SetPlace(origin);
  if (IsWhole(t, t.is_contiguous(), static_cast<int64_t>(s.nbytes()))) return PutFresh(s, t);
  Bind(s);
  s.defined = true;
  const int64_t bytes = static_cast<int64_t>(s.nbytes());
  s.geometry.SetFlatBytes(bytes);
  const uint32_t flags = MYC_T_FIRST | MYC_T_WHOLE | MYC_T_OFF0 | MYC_T_CONTIG;
  Word(MYC_W_TENSOR | static_cast<uint64_t>(MYC_U8) << 8 | uint64_t{1} << 16 | static_cast<uint64_t>(flags) << 24 |
       static_cast<uint64_t>(s.local) << 32);
  Word(ClassOf(bytes));
  Param(static_cast<uint64_t>(bytes));
}

void Recorder::NoteSeed(uint64_t seed, Origin origin) {
  std::lock_guard<SpinLock> guard(lock);
  seed_ = seed;
  seed_origin_ = origin;
  seeded_ = seed_noted_ = true;
  attention_.store(true, std::memory_order_relaxed);
  // On a device in use, the record comes now if no cut does: a cut may throw.
  if (!IsOpen(device_) || ended_ || mark_ != MYC_CUT_NONE || records_ + 1 >= kMaxRecords) return;
  Attend(origin);
  End();
}

void Recorder::Attend(Origin) {
  if (ended_) RaiseStopped(device_);
  if (paused_) RaisePaused(device_);
  DefineSpecialOps();
  attention_.store(false, std::memory_order_relaxed);
  if (!std::exchange(seed_noted_, false)) return;
  Begin(kSeedHash, MYC_R_EFFECT, 2, 0, seed_origin_);
  Tag(MYC_W_GEN);
  Param(uint64_t{0});
  Tag(MYC_W_NUMBER, MYC_N_I64);
  Param(seed_);
}

void Recorder::EndLife() {
  std::lock_guard<SpinLock> guard(lock);
  Drop();
  ended_ = true;
  attention_.store(true, std::memory_order_relaxed);
}

void Recorder::Pause(bool paused) {
  std::lock_guard<SpinLock> guard(lock);
  paused_ = paused;
  attention_.store(true, std::memory_order_relaxed);
}

void Recorder::BeginLife() {
  std::lock_guard<SpinLock> guard(lock);
  Drop();
  life_.store(epoch_, std::memory_order_relaxed);
  Reset();  // so that no trace has the number of the life
  restarted.store(true, std::memory_order_relaxed);
  NoteLife(device_, life());
  ended_ = paused_ = false;
  // The worker is a new process. It has PyTorch's defaults.
  seed_noted_ = seeded_;
  attention_.store(seeded_, std::memory_order_relaxed);
  default_dtype_ = c10::ScalarType::Float;
  flags_version_ = 0;
  behind_.store(false, std::memory_order_relaxed);
  ran_.store(epoch_, std::memory_order_relaxed);
}

// Drops the open trace and the deaths that no worker needs to know.
void Recorder::Drop() {
  {
    std::lock_guard<SpinLock> guard(death_lock_);
    deaths_.clear();
    dead_bytes_ = 0;
  }
  mark_ = MYC_CUT_NONE;
  Close().in_use = 0;
  Reset();
}

std::atomic<bool> restarted{false};

void RaiseNotAlive(const Storage& s) { RaiseLostTensor(s.device_index(), s.epoch); }

void Recorder::SetDefaultDtype(c10::ScalarType dtype, Origin origin) {
  DefineSpecialOps();
  Begin(kDefaultDtypeHash, MYC_R_EFFECT, 1, 0, origin);
  Tag(MYC_W_DTYPE, DtypeCode(dtype));
  default_dtype_ = dtype;
}

void Recorder::SetFlags(Origin origin) {
  DefineSpecialOps();
  for (const std::string& flag : FlagsSince(flags_version_)) {
    Begin(kFlagHash, MYC_R_EFFECT, 1, 0, origin);
    Text(flag);
  }
}

void Recorder::ResizeStorage(Storage& s, int64_t new_bytes, Origin origin) {
  DefineSpecialOps();
  Begin(kResizeHash, 0, 2, 0, origin);
  const int64_t old_bytes = static_cast<int64_t>(s.nbytes());
  uint32_t flags = MYC_T_WRITE | MYC_T_CONTIG | MYC_T_OFF0;
  bool same = false;
  if (s.epoch != epoch_) {
    Bind(s);
    flags |= MYC_T_FIRST | MYC_T_WHOLE;
  } else {
    Geometry flat;
    flat.SetFlatBytes(old_bytes);
    same = s.geometry.dtype == flat.dtype && s.geometry.contiguous && s.geometry.sizes == flat.sizes;
    if (same) flags |= MYC_T_SAME;
  }
  Word(MYC_W_TENSOR | static_cast<uint64_t>(MYC_U8) << 8 | uint64_t{1} << 16 | static_cast<uint64_t>(flags) << 24 |
       static_cast<uint64_t>(s.local) << 32);
  if (!same) {
    Word(ClassOf(old_bytes));
    Param(static_cast<uint64_t>(old_bytes));
  }
  if (new_bytes >= 2) {
    Tag(MYC_W_SIZE);
    Param(static_cast<uint64_t>(new_bytes));
  } else {
    Tag(MYC_W_INT);
    Word(static_cast<uint64_t>(new_bytes));
  }
  s.geometry.SetFlatBytes(new_bytes);
  End();
}

void Recorder::Died(const Storage& s) {
  std::lock_guard<SpinLock> guard(death_lock_);
  deaths_.push_back({s.id, s.epoch, s.local});
  dead_bytes_ += s.nbytes();
}

uint64_t Recorder::dead_bytes() {
  std::lock_guard<SpinLock> guard(death_lock_);
  return dead_bytes_;
}

void Recorder::Reset() {
  earlier_.clear();
  uploads_.clear();
  list_ = false;
  h0_ = 1;
  h1_ = 2;
  records_ = 0;
  ++epoch_;
}

void Recorder::MarkUpload(Origin origin) {
  if (mark_ != MYC_CUT_NONE) Cut(mark_, mark_origin_);
  const auto same = [&](const Upload& u) { return u.origin.code == origin.code && u.origin.offset == origin.offset; };
  const auto seen = std::find_if(uploads_.begin(), uploads_.end(), same);
  if (seen == uploads_.end()) {
    uploads_.push_back({origin, records_});
  } else if (seen->records != records_) {
    Cut(MYC_CUT_UPLOAD, origin);
    uploads_.push_back({origin, 0});
  }
}

void Recorder::BeginList(Origin origin) {
  if (mark_ != MYC_CUT_NONE) Cut(mark_, mark_origin_);
  if (!list_ && records_ != 0) Cut(MYC_CUT_LIST, origin);
  list_ = true;
}

void Recorder::Read(const Storage& s, Origin origin, bool waits) {
  if (s.epoch == epoch_) {
    Cut(MYC_CUT_READ, origin, waits);
  } else if (mark_ != MYC_CUT_NONE) {
    Cut(mark_, mark_origin_);  // the next record would cut the trace here; the worker need not wait for that record
  }
}

// Empties the streams; the arrays keep their memory.
myc_trace Recorder::TraceOf(const Streams& streams) const {
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
  if (C10_UNLIKELY(streams.began != 0)) {
    trace.began = streams.began;
    trace.closed = UnixNow();
    if (streams.callers.size() == records_) trace.callers = streams.callers.data();
  }
  return trace;
}

// Takes the open streams, and replaces them by empty ones.
Streams& Recorder::Close() {
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
  open_.callers.clear();
  open_.began = 0;
  free->in_use = 1;
  return *closed_.emplace_back(std::move(free));
}

std::string Recorder::Pending(const Storage& s) {
  std::lock_guard<SpinLock> guard(lock);
  if (s.epoch != epoch_ || records_ == 0) return "";
  const Client& c = ClientFor(device_);
  const myc_trace trace = TraceOf(open_);
  return TextOf(
      [&](char* out, uint64_t n, myc_error* error) { return c.pending(device_, &trace, s.id, out, n, error); });
}

void Recorder::Cut(uint32_t reason, Origin origin, bool waits) {
  if (Send(reason, origin, waits)) RaiseFailure();
}

// Returns false if there is nothing to send.
bool Recorder::Send(uint32_t reason, Origin origin, bool waits) {
  if (C10_UNLIKELY(paused_)) RaisePaused(device_);  // before anything is taken away
  {
    std::lock_guard<SpinLock> guard(death_lock_);
    dead_.swap(deaths_);
    deaths_.clear();
    dead_bytes_ = 0;
  }
  const bool step = std::exchange(mark_, MYC_CUT_NONE) == MYC_CUT_STEP;
  if (records_ != 0) {
    repeat_.Cut(reason != MYC_CUT_SIZE && reason != MYC_CUT_REPEAT && reason != MYC_CUT_EARLY &&
                reason != MYC_CUT_LIST);
    reason == MYC_CUT_EARLY ? turns_.Part() : turns_.Cut(waits && !step, origin);
  }
  if (records_ == 0 && dead_.empty()) return false;
  for (const Death& d : dead_) {
    if (d.epoch == epoch_) {
      open_.alive[d.local] = 0;
    } else if (d.epoch >= life()) {  // otherwise it has died with its worker
      open_.frees.push_back(d.id);
    }
  }
  if (records_ == 0 && open_.frees.size() == 0) return false;
  const Client& c = ClientFor(device_);
  Streams& closed = Close();
  myc_trace trace = TraceOf(closed);
  trace.in_use = &closed.in_use;
  trace.reason = reason;
  trace.reason_origin[0] = origin.code;
  trace.reason_origin[1] = origin.offset;
  auto error = std::make_unique_for_overwrite<myc_error>();  // 8 KiB
  const int32_t status = c.flush(device_, &trace, error.get());
  // The trace ends in any case. Otherwise its results would never exist, and each use would report that.
  Reset();
  if (status == MYC_PENDING) {
    behind_.store(true, std::memory_order_relaxed);
  } else if (status != MYC_OK) {
    error->kind = status;
    Raise(*error);
  }
  if (const auto point = here_.lock()) SendPoint(*point, origin);
  here_.reset();
  return true;
}

std::shared_ptr<Point> Recorder::Here() {
  std::shared_ptr<Point> point = here_.lock();
  if (!point) here_ = point = std::make_shared<Point>();
  return point;
}

void Recorder::SendPoint(Point& point, Origin origin) {
  point.sent = true;
  auto error = std::make_unique<myc_error>();
  point.ticket = ClientFor(device_).sync(device_, origin, error.get());
  if (point.ticket == 0) Raise(*error);
}

void Recorder::Reach(Point& point, uint32_t reason, Origin origin) {
  if (point.sent) return;
  Cut(reason, origin);
  if (!point.sent && ClientLoaded()) SendPoint(point, origin);  // its trace was empty, or is dropped
}

Point::~Point() {
  if (ticket != 0 && !InBadFork()) GetClient().cancel(ticket);
}

void Recorder::RaiseFailure() {
  const Client& c = ClientFor(device_);
  if (c.failure(device_, nullptr, nullptr) == MYC_OK) return;
  auto error = std::make_unique<myc_error>();
  uint64_t lost = 0;
  error->kind = c.failure(device_, &lost, error.get());
  if (error->kind == MYC_OK) return;  // another thread has taken it
  NoteRaised(device_, lost);
  RaiseWithTensors(device_, lost, *error);
}

uint64_t Recorder::TakeFailure() {
  if (!IsOpen(device_)) return 0;
  const Client& c = ClientFor(device_);
  if (c.failure(device_, nullptr, nullptr) == MYC_OK) return 0;
  {
    std::lock_guard<SpinLock> guard(lock);
    Send(MYC_CUT_FLUSH, {}, false);
  }
  uint64_t lost = 0;
  if (c.failure(device_, &lost, nullptr) != MYC_OK) NoteRaised(device_, lost);
  return lost;
}

void Recorder::WaitForRoomSlow(Origin origin) {
  const Client& c = ClientFor(device_);
  auto error = std::make_unique<myc_error>();
  const uint64_t ticket = c.room(device_, WithCaller(origin), error.get());
  if (ticket == 0) Raise(*error);
  Await(device_, ticket);
  behind_.store(false, std::memory_order_relaxed);
}

constinit std::array<std::atomic<Recorder*>, kMaxDevices> recorders{};

Recorder& MakeRecorder(c10::DeviceIndex device) {
  Recorder* r = nullptr;
  auto* fresh = new Recorder(device);
  if (recorders[device].compare_exchange_strong(r, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *r;
}

void NoteDeath(const Storage& s) {
  if (InBadFork()) return;  // the lock's owner may not exist in the child
  RecorderOf(s.device_index()).Died(s);
}

}  // namespace mycelya
