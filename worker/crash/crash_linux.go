// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build cgo

package crash

// void myc_die_by_signal(void);
import "C"

// DieBySignal makes this process end by the signal of a crash in a library, as a C program does. Panics of Go code
// stay as they are.
func DieBySignal() { C.myc_die_by_signal() }
