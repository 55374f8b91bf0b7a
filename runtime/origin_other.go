// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package runtime

// findMapping needs Linux.
func findMapping(_, _ uintptr) (mapping, bool) { return mapping{}, false }
