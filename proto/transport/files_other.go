// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package transport

import (
	"errors"
	"net"
	"os"
)

// fileReader works on Linux only, as does the shared memory that descriptors name.
type fileReader struct{}

func newFileReader(net.Conn) *fileReader           { return nil }
func (*fileReader) Read([]byte) (int, error)       { return 0, errors.ErrUnsupported }
func (*fileReader) take() *os.File                 { return nil }
func (*fileReader) close()                         {}
func writeFile(net.Conn, []byte, int) (int, error) { return 0, errors.ErrUnsupported }
