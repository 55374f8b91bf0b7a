// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#pragma once

namespace mycelya {

// Tells PyTorch's generic code about the device: counts, generators, storage resizing.
void register_hooks();

}  // namespace mycelya
