// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/pytorch/Event.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "device/client/Client.h"
#include "device/operators/Transfer.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"

namespace mycelya {
namespace {

std::atomic<int64_t> next_id{1};

}  // namespace

void Event::record(c10::DeviceIndex device, bool timed) {
  check_not_forked();
  forget();
  device_ = device;
  if (timed) {
    id_ = next_id.fetch_add(1);
    record_own(device, "mycelya::record_event", {id_});
  }
  Recorder& r = recorder(device);
  const Origin origin = record_origin();
  {
    std::lock_guard<SpinLock> guard(r.lock);
    r.cut(MYC_CUT_EVENT, origin);
  }
  if (!client_loaded()) return;  // nothing was ever sent
  auto error = std::make_unique<myc_error>();
  ticket_ = client_for(device).sync(device, origin, error.get());
  if (ticket_ == 0) raise(*error);
}

bool Event::done() {
  if (ticket_ == 0) return true;
  auto error = std::make_unique<myc_error>();
  if (!has_ended(client(), ticket_, *error)) return false;
  raise(*error);
  return true;
}

void Event::wait() {
  if (ticket_ == 0) return;
  const uint64_t ticket = ticket_;
  ticket_ = 0;
  wait_for(client(), ticket);
}

double Event::elapsed(Event& to) {
  TORCH_CHECK(id_ != 0 && to.id_ != 0, "Both events must be created with enable_timing=True and recorded.");
  TORCH_CHECK(device_ == to.device_, "The events were recorded on two devices, mycelya:", static_cast<int>(device_),
              " and mycelya:", static_cast<int>(to.device_), ", whose clocks differ.");
  TORCH_CHECK(done() && to.done(),
              "Both events must be completed before calculating elapsed time: synchronize() them.");
  OutMeta m;
  m.defined = true;
  m.dtype = at::kDouble;
  const at::Tensor time = make_tensor(m, device_);
  record_own(device_, "mycelya::elapsed", {id_, to.id_}, time);
  return to_cpu(time).item<double>();
}

void Event::forget() noexcept {
  if (device_ < 0 || in_bad_fork()) return;
  try {
    if (ticket_ != 0) client().cancel(ticket_);
    if (id_ != 0) record_own(device_, "mycelya::forget_event", {id_});
  } catch (...) {  // the session has ended, and its events with it
  }
  ticket_ = 0;
  id_ = 0;
}

Event::~Event() { forget(); }

}  // namespace mycelya
