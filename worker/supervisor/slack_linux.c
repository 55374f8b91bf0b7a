// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// clang-format off
//go:build cgo && linux
//  clang-format on

#include <sys/prctl.h>

// While a Go thread is in C code, as a computing worker is, Go's monitor thread wakes up every 20 us. Each time
// it interrupts a core, and so a thread that computes. A timer slack of 2 ms lets Linux delay these wake-ups. Threads
// inherit the slack of the thread that creates them, so it is set before main.
__attribute__((constructor)) static void set_timer_slack(void) { prctl(PR_SET_TIMERSLACK, 2000000ul, 0ul, 0ul, 0ul); }
