// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package network is a network that fails, for tests: toxiproxy between clients and a worker, with one more toxic,
// "faults" (toxic.go). It never looks into the bytes that it passes.
package network

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Faults say what fails on all connections from the beginning.
type Faults struct {
	Seed  int64
	Mean  int64  // bytes between two faults in one direction, on average; 0: no faults
	Kinds string // names of faults, with commas; empty: all
	Rate  int64  // KB per second in each direction; 0: no limit
}

// Network is a proxy before a worker.
type Network struct {
	Addr  string // where clients connect
	proxy *toxiproxy.Proxy
}

// Start starts a proxy before the worker at an address.
func Start(worker string, f Faults) (*Network, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(server, "worker", "127.0.0.1:0", worker)
	if err := server.Collection.Add(p, true); err != nil {
		return nil, err
	}
	n := &Network{Addr: p.Listen, proxy: p}
	for _, direction := range []string{"upstream", "downstream"} {
		if f.Mean > 0 {
			t := toxic{Seed: f.Seed, Mean: f.Mean}
			if f.Kinds != "" {
				t.Kinds = strings.Split(f.Kinds, ",")
			}
			if len(t.kinds()) == 0 {
				return nil, fmt.Errorf("no fault has a name of %q; they are %v", f.Kinds, faultNames)
			}
			if err := add(p, direction, "faults", t); err != nil {
				return nil, err
			}
		}
		if f.Rate > 0 {
			if err := add(p, direction, "bandwidth", map[string]int64{"rate": f.Rate}); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

// add adds a toxic to a direction.
func add(p *toxiproxy.Proxy, direction, kind string, attributes any) error {
	text, err := json.Marshal(map[string]any{
		"name": kind + " " + direction, "type": kind, "stream": direction, "attributes": attributes,
	})
	if err == nil {
		_, err = p.Toxics.AddToxicJson(bytes.NewReader(text))
	}
	return err
}
