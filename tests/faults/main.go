// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Faults simulates a worker behind a network that fails. It starts the real worker, whose flags must have --listen, and
// passes bytes between clients and the worker through toxiproxy, whose HTTP interface tests use: it cuts and refuses
// connections, delays and throttles them, and has one more toxic, "faults" (toxic.go). A client uses this program as it
// uses a worker: it has the same flags and handshake line, and ends in the same way.
//
//	faults --worker PATH --api PORT [--seed N --mean BYTES --kinds NAMES] -- FLAGS OF THE WORKER
//
// With --mean, all connections have the toxic "faults" from the beginning.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/mycelya/mycelya/bench/standin"
	"github.com/mycelya/mycelya/proto/transport"
)

func main() { os.Exit(run(os.Args[1:])) }

type options struct {
	worker, api string
	kinds       string
	seed, mean  int64
}

// run returns the exit status: that of the worker, 1 if this program could not start, 2 for wrong arguments.
func run(args []string) int {
	flags := flag.NewFlagSet("faults", flag.ContinueOnError)
	var o options
	flags.StringVar(&o.worker, "worker", "", "path of the real mycelya-worker")
	flags.StringVar(&o.api, "api", "", "port of toxiproxy's HTTP interface, on the loopback")
	flags.Int64Var(&o.seed, "seed", 1, "of the faults")
	flags.Int64Var(&o.mean, "mean", 0, "bytes between two faults in one direction, on average; 0: none")
	flags.StringVar(&o.kinds, "kinds", "", "names of faults, with commas; empty: all")
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
	return standin.Run(cmd, os.Stdin, os.Stdout, func(h *transport.Handshake) (err error) {
		if h.Network != "tcp" {
			return fmt.Errorf("the worker listens on %s, not on TCP", h.Addr)
		}
		h.Addr, err = proxy(o, h.Addr)
		return err
	})
}

// proxy starts the proxy before a worker, and returns its address.
func proxy(o options, worker string) (string, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(server, "worker", "127.0.0.1:0", worker)
	if err := server.Collection.Add(p, true); err != nil {
		return "", err
	}
	if o.mean > 0 {
		for _, direction := range []string{"upstream", "downstream"} {
			t := toxic{Seed: o.seed, Mean: o.mean}
			if o.kinds != "" {
				t.Kinds = strings.Split(o.kinds, ",")
			}
			text, err := json.Marshal(map[string]any{
				"name": direction, "type": "faults", "stream": direction, "attributes": t,
			})
			if err != nil {
				return "", err
			}
			if len(t.kinds()) == 0 {
				return "", fmt.Errorf("no fault has a name of %q; they are %v", o.kinds, faultNames)
			}
			if _, err := p.Toxics.AddToxicJson(bytes.NewReader(text)); err != nil {
				return "", err
			}
		}
	}
	go server.Listen("127.0.0.1", o.api) // nothing says when it listens: tests try again
	return p.Listen, nil
}
