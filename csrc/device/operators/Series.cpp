// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/operators/Series.h"

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "device/client/State.h"
#include "device/operators/Reads.h"
#include "device/operators/Transfer.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
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
  uint64_t epoch = 0;
  bool empty = false;
  bool operator==(const Moment&) const = default;
};

Moment MomentOf(c10::DeviceIndex device) {
  Recorder& r = RecorderOf(device);
  const std::lock_guard<SpinLock> guard(r.lock);
  return {r.epoch(), r.empty()};
}

struct Series {
  std::mutex mutex;
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
  void ReadOn();
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

// Begins reads as far as the window goes.
void Series::ReadOn() {
  for (; next < tensors.size() && bytes < kWindow; ++next) {
    const auto impl = tensors[next].lock();
    if (!impl) continue;
    const Storage& s = *StorageOf(*impl);
    const size_t n = s.nbytes();
    if (!s.defined || !IsAlive(s) || n == 0 || n > kWindow) continue;
    ahead.emplace(next, std::make_unique<Download>(s));
    bytes += n;
  }
}

}  // namespace

void NoteSeries(const std::vector<at::Tensor>& tensors) {
  std::array<bool, kMaxDevices> seen{};
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || t.device().type() != kDevice || !t.has_storage()) continue;
    if (t.storage().unsafeGetStorageImpl()->allocator() != allocator) continue;  // a fake tensor
    const auto device = t.device().index();
    Series& series = SeriesOf(device);
    const Moment now = MomentOf(device);
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
  std::unique_ptr<Download> read;
  {
    const std::lock_guard<std::mutex> guard(series.mutex);
    const auto found = series.places.find(StorageOf(*t.unsafeGetTensorImpl())->id);
    if (found == series.places.end()) return false;
    const size_t place = found->second;
    const Moment now = MomentOf(device);
    if (!now.empty || (series.began && series.began != now)) series.Forget();
    if (now.empty) {
      if (CoversStorage(t)) read = series.Take(place);
      if (series.last != kNone && place > series.last && place - series.last <= kNear) {
        series.began = now;
        series.next = std::max(series.next, place + 1);
        series.ReadOn();
      }
    }
    series.last = place;
  }
  if (!read) return false;
  GetReadCounters().ahead.fetch_add(1, std::memory_order_relaxed);
  const at::Tensor bytes = read->Wait();  // the GIL is free
  std::memcpy(out, bytes.const_data_ptr(), bytes.numel());
  return true;
}

}  // namespace mycelya
