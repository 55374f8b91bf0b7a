// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#pragma once

namespace mycelya {

// Registers the recorder for every operator of the op table. Once per process, at load.
void register_ops();

}  // namespace mycelya
