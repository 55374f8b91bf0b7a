// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Trips simulates a worker behind a network with a delay, and counts the round trips that a client waits for (count).
// It starts the real worker, and a client uses it as it uses a worker: it has the same flags and handshake line, and
// ends in the same way.
//
//	trips --report SOCKET [--delay 50ms] --worker PATH -- FLAGS OF THE WORKER   the worker listens on TCP
//	trips --report SOCKET [--delay 50ms] --pipe [--tls] -- COMMAND              stdin and stdout are the stream
//
// The delay is for each direction. With --tls the stream becomes TLS, after some lines of text. A client of the unix
// socket SOCKET sends the line "count" and gets the count as a line of JSON, or the line "reset": then the count begins
// again.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/mycelya/mycelya/bench/standin"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/tests/trips/count"
)

func main() { os.Exit(run(os.Args[1:])) }

// run returns the exit status: that of the worker or the command, 1 if this program could not start, 2 for wrong
// arguments.
func run(args []string) int {
	flags := flag.NewFlagSet("trips", flag.ContinueOnError)
	delay := flags.Duration("delay", 50*time.Millisecond, "of each direction")
	socket := flags.String("report", "", "path of the unix socket that tells the count")
	worker := flags.String("worker", "", "path of the real mycelya-worker")
	pipe := flags.Bool("pipe", false, "what follows -- is a command whose stdin and stdout are the stream")
	secure := flags.Bool("tls", false, "the stream of --pipe becomes TLS")
	if err := flags.Parse(args); err != nil || *socket == "" || (*worker == "") != *pipe || *pipe && flags.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "trips needs --report, and --worker or --pipe with a command after --.")
		return 2
	}
	w := count.Line{Delay: *delay, Counter: new(count.Counter)}
	reports, err := net.Listen("unix", *socket)
	if err != nil {
		fmt.Fprintf(os.Stderr, "trips: %v\n", err)
		return 1
	}
	defer reports.Close()
	go report(reports, w.Counter)
	status, err := 1, error(nil)
	if *pipe {
		status, err = between(w, flags.Args(), *secure)
	} else {
		status, err = before(w, *worker, flags.Args())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "trips: %v\n", err)
	}
	return status
}

// report tells the count to each client of a socket.
func report(l net.Listener, c *count.Counter) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			if line, _ := bufio.NewReader(conn).ReadString('\n'); line == "reset\n" {
				c.Reset()
			}
			_ = json.NewEncoder(conn).Encode(c.Result())
		}()
	}
}

// before runs a worker that listens on TCP behind a line.
func before(w count.Line, worker string, flags []string) (int, error) {
	cmd := exec.Command(worker, flags...)
	cmd.Stderr = os.Stderr
	return standin.Run(cmd, os.Stdin, os.Stdout, func(h *transport.Handshake) error {
		if h.Network != "tcp" {
			return fmt.Errorf("the worker listens on %s, not on TCP", h.Addr)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		behind := h.Addr
		go func() { _ = w.Serve(l, "tcp", behind) }()
		h.Addr = l.Addr().String()
		return nil
	})
}

// between runs a command whose stdin and stdout are behind a line.
func between(w count.Line, argv []string, secure bool) (int, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return 1, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	w.Pipe(os.Stdin, in, out, os.Stdout, secure)
	_ = os.Stdout.Close()
	err = cmd.Wait()
	if ended := new(exec.ExitError); errors.As(err, &ended) {
		return max(ended.ExitCode(), 1), nil // -1: a signal
	}
	return 0, err
}
