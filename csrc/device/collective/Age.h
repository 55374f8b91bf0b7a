// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_COLLECTIVE_AGE_H_
#define MYCELYA_DEVICE_COLLECTIVE_AGE_H_

#include <c10/core/Device.h>

namespace mycelya {

// A collective was recorded: other workers wait for this one. If then nothing more is recorded for a moment, what is
// recorded is sent: this process may wait, or compute, for as long as it wants. A process that goes on to record sends
// it at the end of its step, so that a step with collectives remains one program.
void SendSoon(c10::DeviceIndex device);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_COLLECTIVE_AGE_H_
