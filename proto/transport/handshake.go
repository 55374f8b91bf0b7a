// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Build is the version of the package. A client and a worker of different builds refuse each other: they are installed
// together, so a difference means a broken installation.
const Build = "0.1.0"

// Host names the running kernel, so that a client knows whether its worker has the same processor; "" if the system
// does not name it.
var Host = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
})

// FolderPrefix begins the name of a folder that was made for one worker's socket. The worker removes such a folder
// when it ends.
const FolderPrefix = "mycelya-"

// RelayMark is the line with which mycelya-worker --relay begins its output, before the first byte of the worker.
const RelayMark = "MYCELYA-RELAY\n"

const handshakeMark = "MYCELYA"

// Exit codes of a worker that has ended by one of its clocks. They pass through ssh and containers.
const (
	ExitLease = 10 // its lease has passed
	ExitAlone = 11 // it had no session for too long
)

// AnotherClient is the error of the last Hello of a session whose place another client has taken. The machine goes on,
// and this client must leave it alone.
const AnotherClient = "Another client has attached to this machine, which has one client at a time."

// Handshake is the line that a worker prints on stdout when it listens:
//
//	MYCELYA|1|unix|/tmp/mycelya-1/s|4711|0.1.0
//
// With the network "stdio" the frames of the only client follow the line.
type Handshake struct {
	Version int    // of the wire
	Network string // "unix", "tcp" or "stdio"
	Addr    string // path of the socket, or address and port, or "-"
	PID     int
	Build   string
}

// String returns the line without its newline.
func (h Handshake) String() string {
	return fmt.Sprintf("%s|%d|%s|%s|%d|%s", handshakeMark, h.Version, h.Network, h.Addr, h.PID, h.Build)
}

// ParseHandshake is the inverse of String. It checks the form but not the versions.
func ParseHandshake(line string) (Handshake, error) {
	f := strings.Split(strings.TrimSuffix(line, "\n"), "|")
	if len(f) != 6 || f[0] != handshakeMark {
		return Handshake{}, fmt.Errorf("transport: %q is not a worker's handshake", line)
	}
	version, err1 := strconv.Atoi(f[1])
	pid, err2 := strconv.Atoi(f[4])
	if err1 != nil || err2 != nil || pid <= 0 || !slices.Contains([]string{"unix", "tcp", "stdio"}, f[2]) ||
		f[3] == "" {
		return Handshake{}, fmt.Errorf("transport: %q is not a worker's handshake", line)
	}
	return Handshake{Version: version, Network: f[2], Addr: f[3], PID: pid, Build: f[5]}, nil
}
