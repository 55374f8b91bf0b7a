// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// torch.mycelya.set_sync_debug_mode: finds the lines that wait for values of the device.
#ifndef MYCELYA_DEVICE_RECORD_SYNCDEBUG_H_
#define MYCELYA_DEVICE_RECORD_SYNCDEBUG_H_

#include <ATen/core/TensorBody.h>

namespace mycelya {

// 0: nothing; 1: a warning, once for each line; 2: an error. Lines may warn again after each call.
void SetSyncDebug(int mode);
int GetSyncDebug();

// Called before a wait for the elements of a tensor.
void CheckSync(const at::Tensor& read);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_SYNCDEBUG_H_
