// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !cgo || !linux

package kernels

import "errors"

// NVRTC cannot be used: it needs cgo and Linux.
type NVRTC struct{}

var errNone = errors.New("this build has no NVRTC: it needs cgo and Linux")

// Find returns "".
func Find(string) string { return "" }

// Open always fails.
func Open(string) (*NVRTC, error) { return nil, errNone }

// Version is never called.
func (*NVRTC) Version() string { return "" }

// Compile always fails.
func (*NVRTC) Compile(string, string, []string) ([]byte, string, error) { return nil, "", errNone }
