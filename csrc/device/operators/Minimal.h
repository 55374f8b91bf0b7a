// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_OPERATORS_MINIMAL_H_
#define MYCELYA_DEVICE_OPERATORS_MINIMAL_H_

#include "device/tensor/Storage.h"

namespace mycelya {

// Changes the size of a storage and keeps the common prefix of its content.
void ResizeBytes(Storage& s, int64_t bytes);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_OPERATORS_MINIMAL_H_
