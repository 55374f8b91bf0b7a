// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package standin runs a worker behind the program that a client has started as its worker. The client's bytes go
// through that program, which may delay, throttle or lose them. The package never reads or changes these bytes.
package standin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/mycelya/mycelya/proto/transport"
)

// Run starts the worker that cmd describes, and returns its exit status when it has ended; 1 if the client cannot use
// it. The worker's stdin gets what stdin gives, and ends with stdin, with this process, even if killed, and at a
// signal. Run calls listening with the worker's handshake, may change its address, and prints it on stdout with the
// number of this process.
func Run(
	cmd *exec.Cmd, stdin io.Reader, stdout io.Writer, listening func(*transport.Handshake) error,
) (status int, err error) {
	// Only this process has the write end. It closes when this process ends, and then the worker ends.
	r, w, err := os.Pipe()
	if err != nil {
		return 1, err
	}
	defer func() { _ = r.Close(); _ = w.Close() }()
	cmd.Stdin = r
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	go func() { // a worker that outlives its client does not end with its stdin
		_ = cmd.Process.Signal(<-signals)
		_ = w.Close()
	}()
	go func() { _, _ = io.Copy(w, stdin); _ = w.Close() }() // the credentials, if any
	lines := bufio.NewReader(out)
	line, _ := lines.ReadString('\n')
	if h, err := transport.ParseHandshake(line); err == nil {
		if err := listening(&h); err != nil {
			return 1, err
		}
		h.PID = os.Getpid()
		fmt.Fprintln(stdout, h)
	} else {
		fmt.Fprint(stdout, line) // the client reports the error
	}
	_, _ = io.Copy(stdout, lines)
	err = cmd.Wait()
	if ended := new(exec.ExitError); errors.As(err, &ended) {
		return max(ended.ExitCode(), 1), nil // -1: a signal
	}
	return 0, err
}
