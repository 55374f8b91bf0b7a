// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_PYTORCH_HOOKS_H_
#define MYCELYA_DEVICE_PYTORCH_HOOKS_H_

namespace mycelya {

// Tells PyTorch's generic code about the device: counts, generators, storage resizing.
void RegisterHooks();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_HOOKS_H_
