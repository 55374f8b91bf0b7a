// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/pytorch/Event.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "device/client/Client.h"
#include "device/record/Failure.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
#include "device/record/Transfer.h"

namespace mycelya {
namespace {

std::atomic<int64_t> next_event{1};

}  // namespace

void Event::Record(c10::DeviceIndex device, bool timed) {
  CheckUsable();
  Forget();
  device_ = device;
  if (timed) {
    id_ = next_event.fetch_add(1);
    RecordOwn(device, "mycelya::record_event", {id_});
  }
  Recorder& r = RecorderOf(device);
  const std::lock_guard<SpinLock> guard(r.lock);
  point_ = r.Here();
  if (timed) r.Reach(*point_, MYC_CUT_EVENT, WithCaller(RecordOrigin()));
}

void Event::Send() {
  const Origin origin = WithCaller(RecordOrigin());
  Recorder& r = RecorderOf(device_);
  const std::lock_guard<SpinLock> guard(r.lock);
  r.Reach(*point_, MYC_CUT_EVENT, origin);
}

bool Event::Done() {
  if (!point_) return true;
  Send();
  const NoGil no_gil;
  const std::lock_guard<std::mutex> guard(point_->mutex);
  if (point_->ticket == 0) return true;
  auto error = std::make_unique<myc_error>();
  if (!HasEnded(GetClient(), point_->ticket, *error)) return false;
  RaiseFor(device_, *error);
  return true;
}

void Event::Wait() {
  if (!point_) return;
  Send();
  const NoGil no_gil;
  const std::lock_guard<std::mutex> guard(point_->mutex);
  if (const uint64_t ticket = std::exchange(point_->ticket, 0); ticket != 0) Await(device_, ticket);
}

double Event::Elapsed(Event& to) {
  TORCH_CHECK(id_ != 0 && to.id_ != 0, "Both events must be created with enable_timing=True and recorded.");
  TORCH_CHECK(device_ == to.device_, "The events were recorded on two devices, mycelya:", static_cast<int>(device_),
              " and mycelya:", static_cast<int>(to.device_), ", whose clocks differ.");
  TORCH_CHECK(Done() && to.Done(),
              "Both events must be completed before calculating elapsed time: synchronize() them.");
  OutMeta m;
  m.defined = true;
  m.dtype = at::kDouble;
  const at::Tensor time = MakeTensor(m, device_);
  RecordOwn(device_, "mycelya::elapsed", {id_, to.id_}, time);
  return ToCpu(time).item<double>();
}

void Event::Forget() noexcept {
  if (device_ < 0 || InBadFork()) return;
  try {
    if (id_ != 0) RecordOwn(device_, "mycelya::forget_event", {id_});
  } catch (...) {  // the session has ended, and its events with it
  }
  point_.reset();
  id_ = 0;
}

Event::~Event() { Forget(); }

}  // namespace mycelya
