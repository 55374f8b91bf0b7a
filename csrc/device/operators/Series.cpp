// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/operators/Series.h"

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "device/client/Client.h"
#include "device/client/State.h"
#include "device/record/Reads.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
#include "device/record/Transfer.h"
#include "device/tensor/Storage.h"

namespace mycelya {
namespace {

// The bytes that are read ahead and not taken. A larger storage is not read ahead: its bytes take longer than a round
// trip.
constexpr size_t kWindow = 64 << 20;
constexpr size_t kMostTensors = 1 << 16;
// A read so many places after the last one goes on with a series: not all that has a state is saved.
constexpr size_t kNear = 8;
constexpr size_t kNone = std::numeric_limits<size_t>::max();

// What a recorder has recorded so far. Storages do not change while it is the same.
struct Moment {
  uint64_t epoch = 0, records = 0;
  bool operator==(const Moment&) const = default;
};

Moment MomentOf(const Recorder& r) { return {r.epoch(), r.records()}; }

Moment Now(c10::DeviceIndex device) {
  Recorder& r = RecorderOf(device);
  const std::lock_guard<SpinLock> guard(r.lock);
  return MomentOf(r);
}

struct Series {
  std::atomic<bool> any{false};  // a series was noted
  std::mutex mutex;              // locked without the GIL; guards what follows
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> tensors;
  std::unordered_map<uint64_t, size_t> places;        // in tensors, by storage
  size_t last = kNone;                                // the place of the last read
  size_t next = 0;                                    // the first place that was not read ahead
  std::optional<Moment> noted, began;                 // when the series was noted, and when reading ahead began
  std::map<size_t, std::unique_ptr<Download>> ahead;  // of whole storages, by place
  size_t bytes = 0;                                   // of ahead

  void Forget() {  // what was read ahead
    ahead.clear();
    bytes = next = 0;
    last = kNone;
    began.reset();
  }
  // Takes the bytes that were read ahead for a place; null: there are none.
  std::unique_ptr<Download> Take(size_t place);
  // Begins reads of what follows a place, as far as the window goes.
  void ReadOn(const Storage& last_read, size_t place, Origin origin);
  // Ends the open trace if it uses a storage, as a read does. False: something else was recorded since `began`.
  bool Reads(const Storage& s, Origin origin);
};

Series& SeriesOf(c10::DeviceIndex device) {
  static auto& leaked = *new std::array<Series, kMaxDevices>();
  return leaked[device];
}

std::unique_ptr<Download> Series::Take(size_t place) {
  // What was passed over is not wanted.
  for (auto old = ahead.begin(); old != ahead.end() && old->first + kNear < place; old = ahead.erase(old)) {
    bytes -= old->second->bytes();
  }
  const auto found = ahead.find(place);
  if (found == ahead.end()) return nullptr;
  std::unique_ptr<Download> read = std::move(found->second);
  ahead.erase(found);
  bytes -= read->bytes();
  return read;
}

bool Series::Reads(const Storage& s, Origin origin) {
  Recorder& r = RecorderOf(s.device_index());
  const std::lock_guard<SpinLock> guard(r.lock);
  if (began != MomentOf(r)) return false;
  r.Read(s, origin, false);
  began = MomentOf(r);
  return true;
}

void Series::ReadOn(const Storage& last_read, size_t place, Origin origin) {
  next = std::max(next, place + 1);
  if (!began) began = Now(last_read.device_index());
  if (!Reads(last_read, origin)) return;
  for (; next < tensors.size() && bytes < kWindow; ++next) {
    const auto impl = tensors[next].lock();
    if (!impl) continue;
    const Storage& s = *StorageOf(*impl);
    const size_t n = s.nbytes();
    if (!s.defined || !IsAlive(s) || n == 0 || n > kWindow) continue;
    if (!Reads(s, origin)) return;
    ahead.emplace(next, std::make_unique<Download>(s, origin));
    bytes += n;
  }
}

}  // namespace

void NoteSeries(const std::vector<at::Tensor>& tensors) {
  const NoGil no_gil;
  std::array<bool, kMaxDevices> seen{};
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || t.device().type() != kDevice || !t.has_storage()) continue;
    if (t.storage().unsafeGetStorageImpl()->allocator() != allocator) continue;  // a fake tensor
    const auto device = t.device().index();
    Series& series = SeriesOf(device);
    const Moment now = Now(device);
    series.any.store(true, std::memory_order_relaxed);
    const std::lock_guard<std::mutex> guard(series.mutex);
    const uint64_t id = StorageOf(*t.unsafeGetTensorImpl())->id;
    const bool first = !std::exchange(seen[device], true);
    if (series.noted != now || series.tensors.size() >= kMostTensors || (first && series.places.contains(id))) {
      series.Forget();
      series.tensors.clear();
      series.places.clear();
      series.noted = now;
    }
    if (series.places.emplace(id, series.tensors.size()).second) series.tensors.emplace_back(t.getIntrusivePtr());
  }
}

bool TakeAhead(const at::Tensor& t, void* out) {
  const auto device = t.device().index();
  Series& series = SeriesOf(device);
  if (C10_LIKELY(!series.any.load(std::memory_order_relaxed))) return false;
  const Origin origin = WithCaller(RecordOrigin());
  std::unique_ptr<Download> read;
  {
    const NoGil no_gil;
    const std::lock_guard<std::mutex> guard(series.mutex);
    const Storage& s = *StorageOf(*t.unsafeGetTensorImpl());
    const auto found = series.places.find(s.id);
    if (found == series.places.end()) return false;
    const size_t place = found->second;
    if (series.began && series.began != Now(device)) series.Forget();
    if (CoversStorage(t)) read = series.Take(place);
    if (series.last != kNone && place > series.last && place - series.last <= kNear) series.ReadOn(s, place, origin);
    series.last = place;
  }
  if (!read) return false;
  CountSaved(Saved::kAhead, origin);
  const at::Tensor bytes = read->Wait();  // the GIL is free
  std::memcpy(out, bytes.const_data_ptr(), bytes.numel());
  return true;
}

}  // namespace mycelya
