// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux || !cgo

package supervisor

// DriverGPUs returns nil: NVIDIA's driver is asked through cgo, on Linux.
func DriverGPUs() func() []GPU { return nil }
