// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Transport is the peers of bench/transport.py, and a network with a delay and a rate.
//
//	transport drive [--delay 5ms --rate 1000000000]
//
// is the client of TCP, TLS 1.3, gRPC and proto/link to servers in another process. It does the tasks that stdin has,
// one JSON object a line, and prints their results; see task and result. With --delay or --rate the network is between
// client and servers, in a process of its own.
//
//	transport worker --worker PATH [--delay 5ms] [--rate 1000000000] -- FLAGS OF THE WORKER
//
// is a worker behind the network. A client that connects over TCP uses it as it uses a worker.
//
// The delay is for each direction. The rate is in bits per second in each direction; 0 is no limit. Two more commands
// are for drive: serve, the servers, and proxy, the network. All end when stdin ends.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/mycelya/mycelya/bench/standin"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider/emulate"
)

func main() {
	status, err := run(os.Args[1:])
	report("this program", err)
	os.Exit(status)
}

// report prints an error that no other function reports.
func report(what string, err error) {
	if !isEnd(err) {
		fmt.Fprintf(os.Stderr, "bench/transport: %s: %v\n", what, err)
	}
}

// run returns the exit status: 1 after an error, 2 for wrong arguments, or that of the worker.
func run(args []string) (int, error) {
	if len(args) == 0 {
		return 2, fmt.Errorf("a command is missing: drive or worker")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	worker := flags.String("worker", "", "path of the real mycelya-worker")
	delay := flags.Duration("delay", 0, "delay in each direction")
	rate := flags.Int64("rate", 0, "bits per second in each direction; 0: no limit")
	if err := flags.Parse(args[1:]); err != nil {
		return 2, nil // flags has printed it
	}
	if *delay < 0 || *rate < 0 {
		return 2, fmt.Errorf("a delay of %v and a rate of %d bits per second do not exist", *delay, *rate)
	}
	var err error
	switch args[0] {
	case "drive":
		var net []string
		if *delay > 0 || *rate > 0 {
			net = args[1:]
		}
		err = drive(os.Stdin, os.Stdout, net)
	case "serve":
		err = serveAll(os.Stdin, os.Stdout)
	case "proxy":
		err = proxy(emulate.New(*delay, *rate), os.Stdin, os.Stdout)
	case "worker":
		return behind(emulate.New(*delay, *rate), *worker, flags.Args())
	default:
		return 2, fmt.Errorf("there is no command %q", args[0])
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// serveAll runs the servers: in has their credentials, out gets their addresses.
func serveAll(in io.Reader, out io.Writer) error {
	text, err := transport.ReadCredentials(in)
	if err != nil {
		return err
	}
	secret, err := transport.ParseCredentials(text)
	if err != nil {
		return err
	}
	addresses, err := listen(secret, new(memory))
	if err != nil {
		return err
	}
	return printAndWait(addresses, in, out)
}

// proxy puts the network before servers: in has their addresses, out gets those of the network.
func proxy(n *emulate.Network, in io.Reader, out io.Writer) error {
	var servers map[string]string
	decoder := json.NewDecoder(in)
	if err := decoder.Decode(&servers); err != nil {
		return err
	}
	addresses := map[string]string{}
	for name, server := range servers {
		address, listener, err := n.Listen(server)
		if err != nil {
			return err
		}
		defer listener.Close()
		addresses[name] = address
	}
	return printAndWait(addresses, in, out)
}

func printAndWait(addresses map[string]string, in io.Reader, out io.Writer) error {
	if err := json.NewEncoder(out).Encode(addresses); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

// behind runs a worker behind the network, and returns its exit status.
func behind(n *emulate.Network, worker string, flags []string) (int, error) {
	if worker == "" {
		return 2, fmt.Errorf("--worker is missing")
	}
	cmd := exec.Command(worker, flags...)
	cmd.Stderr = os.Stderr
	var listener io.Closer
	defer func() {
		if listener != nil {
			_ = listener.Close()
		}
	}()
	return standin.Run(cmd, os.Stdin, os.Stdout, func(h *transport.Handshake) (err error) {
		if h.Network != "tcp" {
			return fmt.Errorf("the worker listens on %s, not on TCP", h.Addr)
		}
		h.Addr, listener, err = n.Listen(h.Addr)
		return err
	})
}
