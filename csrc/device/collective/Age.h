// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_COLLECTIVE_AGE_H_
#define MYCELYA_DEVICE_COLLECTIVE_AGE_H_

#include <c10/core/Device.h>

namespace mycelya {

// A collective was recorded: other workers wait for this one. If what is recorded is not sent for another reason within
// a moment, it is sent then: this process may wait, or compute, for as long as it wants.
void SendSoon(c10::DeviceIndex device);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_COLLECTIVE_AGE_H_
