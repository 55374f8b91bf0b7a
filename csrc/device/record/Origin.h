// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The place in the user's program that an op comes from: the innermost Python frame outside of torch and this package.
// It is read from this thread's own state without the GIL.
#ifndef MYCELYA_DEVICE_RECORD_ORIGIN_H_
#define MYCELYA_DEVICE_RECORD_ORIGIN_H_

#include <string>

#include "abi/mycelya.h"

namespace mycelya {

using Origin = myc_origin;

// Takes the GIL at the first sight of a code object: never call it with a lock held.
Origin CurrentOrigin();

// In backward: the forward line whose autograd node runs now; otherwise CurrentOrigin(), remembered for that purpose.
Origin RecordOrigin();

// Folders, with a trailing slash, whose Python frames are skipped.
void SetInternalFolders(std::string torch, std::string package);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_ORIGIN_H_
