// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Slowlink is a mycelya-worker behind a slow network: it starts the real worker, listens where the worker was told to, and
// passes bytes on both ways with a delay and at a limited rate. To a client it is a worker: the same flags, the same
// handshake line, the same end.
//
//	slowlink --worker PATH [--delay 50ms] [--rate 100000000] -- FLAGS OF THE WORKER
//
// The delay is that of one way, the rate is in bits per second; 0 is none and no limit. Descriptors don't pass a network,
// so a client can't share memory with the worker behind it. It ends when its stdin or its worker does, and leaves neither
// process nor socket.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
)

func main() {
	runtime.GOMAXPROCS(1) // a chunk passes from goroutine to goroutine: that is not to wake other cores
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run returns the exit status: the worker's, 1 if the link can't be made, 2 for wrong arguments.
func run(args []string, stdin io.Reader, stdout io.Writer, stderr *os.File) int {
	flags := flag.NewFlagSet("slowlink", flag.ContinueOnError)
	flags.SetOutput(stderr)
	worker := flags.String("worker", "", "path of the real mycelya-worker")
	delay := flags.Duration("delay", 0, "of one way; there and back must be whole milliseconds")
	rate := flags.Int64("rate", 0, "bits per second, each way; 0: no limit")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	socket, theirs := split(flags.Args())
	if *worker == "" || socket == "" {
		fmt.Fprintln(stderr, "slowlink needs --worker and, after --, the worker's flags with --socket.")
		return 2
	}
	l, err := newLink(*delay, *rate)
	if err != nil {
		fmt.Fprintf(stderr, "slowlink: %v\n", err)
		return 2
	}
	status, err := serve(l, *worker, socket, theirs, stdin, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "slowlink: %v\n", err)
	}
	return status
}

// split takes the socket out of a worker's flags.
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

// serve runs the worker on a socket beside the one that was asked for, until its end.
func serve(l link, worker, socket string, flags []string, stdin io.Reader, stdout io.Writer, stderr *os.File) (int, error) {
	dir := filepath.Dir(socket)
	behind := filepath.Join(dir, "w") // as short as the client's own, since paths of sockets have a limit
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
	// The write end is nobody else's: however this process ends, the worker does too.
	r, w, err := os.Pipe()
	if err != nil {
		return 1, err
	}
	defer func() { _ = r.Close(); _ = w.Close() }()
	cmd := exec.Command(worker, append([]string{"--socket", behind, "--stdin-eof"}, flags...)...)
	cmd.Stdin, cmd.Stderr = r, stderr
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
	go func() { <-signals; _ = w.Close() }()
	go func() { _, _ = io.Copy(io.Discard, stdin); _ = w.Close() }()

	lines := bufio.NewReader(out)
	line, _ := lines.ReadString('\n')
	if h, err := transport.ParseHandshake(line); err == nil {
		h.Addr, h.PID = socket, os.Getpid()
		go accept(listener, behind, l)
		fmt.Fprintln(stdout, h)
	} else {
		fmt.Fprint(stdout, line) // the client knows better what to say of it
	}
	_, _ = io.Copy(stdout, lines)
	err = cmd.Wait()
	if ended := new(exec.ExitError); errors.As(err, &ended) {
		return max(ended.ExitCode(), 1), nil // -1: a signal
	}
	return 0, err
}

// accept joins each client to a connection of its own to the worker.
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
