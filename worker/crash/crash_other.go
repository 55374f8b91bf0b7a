// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !(cgo && linux)

package crash

// DieBySignal changes nothing here: a crash ends the process with Go's exit code.
func DieBySignal() {}
