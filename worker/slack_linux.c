// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// clang-format off
//go:build cgo && linux
//  clang-format on

#include <sys/prctl.h>

// Go's monitor looks after its threads every 20 us as long as one of them is in C, which is where a worker computes.
// Each look interrupts a core, and a thread that computes or waits for others that do. Threads inherit how late their
// timers may be: those of the process that begins here, by 2 ms.
__attribute__((constructor)) static void be_late(void) { prctl(PR_SET_TIMERSLACK, 2000000ul, 0ul, 0ul, 0ul); }
