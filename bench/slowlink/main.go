// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Slowlink simulates a worker behind a slow network. It starts the real worker and listens on the socket that the
// worker's flags name. It passes bytes in both directions with a delay and at a limited rate. A client uses it as it
// uses a worker: it has the same flags and handshake line, and ends in the same way.
//
//	slowlink --worker PATH [--delay 50ms] [--rate 100000000] -- FLAGS OF THE WORKER
//
// The delay is for each direction; 0 is no delay. The rate is in bits per second; 0 is no limit. Slowlink passes no
// file descriptors, so the client shares no memory with the worker. It ends when its stdin or its worker ends, and
// leaves neither process nor socket.
package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/mycelya/mycelya/bench/standin"
	"github.com/mycelya/mycelya/proto/transport"
)

func main() {
	runtime.GOMAXPROCS(1) // a chunk passes through several goroutines; one thread avoids waking other cores
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run returns the exit status: that of the worker, 1 if slowlink could not start, 2 for wrong arguments.
func run(args []string, stdin io.Reader, stdout io.Writer, stderr *os.File) int {
	flags := flag.NewFlagSet("slowlink", flag.ContinueOnError)
	flags.SetOutput(stderr)
	worker := flags.String("worker", "", "path of the real mycelya-worker")
	delay := flags.Duration("delay", 0, "delay for each direction; a multiple of half a millisecond")
	rate := flags.Int64("rate", 0, "bits per second in each direction; 0: no limit")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	socket, others := split(flags.Args())
	if *worker == "" || socket == "" {
		fmt.Fprintln(stderr, "slowlink needs --worker and, after --, the worker's flags with --socket.")
		return 2
	}
	l, err := newLink(*delay, *rate)
	if err != nil {
		fmt.Fprintf(stderr, "slowlink: %v\n", err)
		return 2
	}
	status, err := serve(l, *worker, socket, others, stdin, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "slowlink: %v\n", err)
	}
	return status
}

// split removes the socket from a worker's flags.
func split(flags []string) (socket string, others []string) {
	for i := 0; i < len(flags); i++ {
		if name, value, ok := strings.Cut(flags[i], "="); strings.TrimLeft(name, "-") != "socket" {
			others = append(others, flags[i])
		} else if ok {
			socket = value
		} else if i++; i < len(flags) {
			socket = flags[i]
		}
	}
	return socket, others
}

// serve runs the worker on another socket in the same folder, until the worker ends.
func serve(
	l link, worker, socket string, flags []string, stdin io.Reader, stdout io.Writer, stderr *os.File,
) (int, error) {
	dir := filepath.Dir(socket)
	behind := filepath.Join(dir, "w") // short, because the length of a socket's path is limited
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return 1, err
	}
	defer func() {
		_ = listener.Close() // removes the socket
		_ = os.Remove(behind)
		if strings.HasPrefix(filepath.Base(dir), transport.FolderPrefix) {
			_ = os.Remove(dir)
		}
	}()
	cmd := exec.Command(worker, append([]string{"--socket", behind, "--stdin-eof"}, flags...)...)
	cmd.Stderr = stderr
	return standin.Run(cmd, stdin, stdout, func(h *transport.Handshake) error {
		h.Addr = socket
		go accept(listener, behind, l)
		return nil
	})
}

// accept joins each client to a new connection to the worker.
func accept(listener net.Listener, behind string, l link) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		if transport.CheckPeer(client) != nil {
			_ = client.Close()
			continue
		}
		go func() {
			worker, err := net.DialTimeout("unix", behind, 10*time.Second)
			if err != nil {
				_ = client.Close()
				return
			}
			l.join(client.(*net.UnixConn), worker.(*net.UnixConn))
		}()
	}
}
