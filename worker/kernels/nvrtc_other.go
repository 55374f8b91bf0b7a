// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !cgo || !linux

package kernels

import "errors"

// NVRTC needs cgo, and CUDA is on Linux only.
type NVRTC struct{}

var errNone = errors.New("this build has no NVRTC: it needs cgo and Linux")

// Find finds none.
func Find(string) string { return "" }

// Open always fails.
func Open(string) (*NVRTC, error) { return nil, errNone }

// Version is never asked for.
func (*NVRTC) Version() string { return "" }

// Compile always fails.
func (*NVRTC) Compile(string, string, []string) ([]byte, string, error) { return nil, "", errNone }
