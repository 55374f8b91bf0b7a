// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The memory that the system lets this process use, in bytes.
#ifndef MYCELYA_EXEC_MEMORY_SYSTEM_H_
#define MYCELYA_EXEC_MEMORY_SYSTEM_H_

#include <cstdint>

namespace mycelya::exec {

// The least of the machine's memory, the limits of this process's control groups, and its own limit.
uint64_t MemoryOfProcess();
// What is left of it, less a small reserve. A page that the system can drop, such as one of a file, is free.
uint64_t FreeMemory();

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_MEMORY_SYSTEM_H_
