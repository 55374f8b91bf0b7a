// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
)

const (
	// relayPiece bounds the bytes that are read at once: some windows of TCP, and little memory for each relay.
	relayPiece = 256 << 10
	// lingerWait is how long a relay whose client has ended waits for the last bytes of the worker.
	lingerWait = 5 * time.Second
)

// Relay connects a stream to the unix socket of a worker of this user: the stdin and stdout of a program that ssh
// has started on the worker's host. It writes transport.RelayMark when the connection is there. What stands before
// the mark in the stream is not the worker's. Relay returns when the worker has closed the connection, or when the
// client has ended its stream and the worker has had time for its last bytes. It never looks at the bytes.
func Relay(socket string, in io.Reader, out *os.File) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return fmt.Errorf("the worker's socket cannot be reached: %w", err)
	}
	defer c.Close()
	if err := transport.CheckPeer(c); err != nil {
		return err
	}
	if _, err := io.WriteString(out, transport.RelayMark); err != nil {
		return nil // nobody reads
	}
	go func() {
		_, _ = copyPieces(c, in)
		_ = c.(*net.UnixConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(lingerWait))
	}()
	_, _ = copyPieces(out, c)
	return nil
}

// copyPieces copies until either end fails. The plain interfaces keep io.Copy from taking a smaller buffer of its own.
func copyPieces(to io.Writer, from io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, relayPiece))
}
