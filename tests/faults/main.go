// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Faults simulates a worker behind a network that fails. It starts the real worker, whose flags must have --listen, and
// passes bytes between clients and the worker through toxiproxy, which throttles connections and has one more toxic,
// "faults" (network/toxic.go). Tests cut and refuse connections through an HTTP interface, whose address is written to
// the file --api. A client uses this program as it uses a worker: it has the same flags and handshake line, and ends in
// the same way.
//
//	faults --worker PATH --api FILE [--seed N --mean BYTES --kinds NAMES] -- FLAGS OF THE WORKER
//
// With --mean, all connections have the toxic "faults" from the beginning.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"

	"github.com/mycelya/mycelya/bench/standin"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/tests/faults/network"
)

func main() { os.Exit(run(os.Args[1:])) }

type options struct {
	worker, api string
	faults      network.Faults
}

// run returns the exit status: that of the worker, 1 if this program could not start, 2 for wrong arguments.
func run(args []string) int {
	flags := flag.NewFlagSet("faults", flag.ContinueOnError)
	var o options
	flags.StringVar(&o.worker, "worker", "", "path of the real mycelya-worker")
	flags.StringVar(&o.api, "api", "", "file for the address of the HTTP interface")
	flags.Int64Var(&o.faults.Seed, "seed", 1, "of the faults")
	flags.Int64Var(&o.faults.Mean, "mean", 0, "bytes between two faults in one direction, on average; 0: none")
	flags.StringVar(&o.faults.Kinds, "kinds", "", "names of faults, with commas; empty: all")
	flags.Int64Var(&o.faults.Rate, "rate", 0, "KB per second in each direction; 0: no limit")
	if err := flags.Parse(args); err != nil || o.worker == "" || o.api == "" {
		fmt.Fprintln(os.Stderr, "faults needs --worker, --api and, after --, the worker's flags.")
		return 2
	}
	status, err := serve(o, flags.Args())
	if err != nil {
		fmt.Fprintf(os.Stderr, "faults: %v\n", err)
	}
	return status
}

func serve(o options, flags []string) (int, error) {
	cmd := exec.Command(o.worker, flags...)
	cmd.Stderr = os.Stderr
	return standin.Run(cmd, os.Stdin, os.Stdout, func(h *transport.Handshake) error {
		if h.Network != "tcp" {
			return fmt.Errorf("the worker listens on %s, not on TCP", h.Addr)
		}
		n, err := network.Start(h.Addr, o.faults)
		if err != nil {
			return err
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go func() { _ = n.Serve(l) }()
		h.Addr = n.Addr
		return os.WriteFile(o.api, []byte(l.Addr().String()), 0o600) // before clients read the handshake line
	})
}
