// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package provider

import "net"

// sendLate does nothing: the system decides how many bytes wait in a socket.
func sendLate(net.Conn) {}
