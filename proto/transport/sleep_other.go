// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !unix

package transport

import "net"

// sleeper is for unix sockets.
type sleeper struct{}

func newSleeper(net.Conn) *sleeper { return nil }
func (*sleeper) sleep() error      { return nil }
func (*sleeper) wake()             {}
