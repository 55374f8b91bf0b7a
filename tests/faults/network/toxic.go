// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package network

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

// toxic is the toxic "faults": in one direction of each connection, one fault follows another. The bytes between two
// faults are random, with a mean, and depend on the seed and the number of the connection.
type toxic struct {
	Seed  int64    `json:"seed"`
	Mean  int64    `json:"mean"`
	Kinds []string `json:"kinds"` // names of faults; empty: all
}

// fault is what happens to a chunk of bytes. Missing and doubled bytes often make TLS wait for the rest of a record, so
// the link is silent until its heartbeat ends the connection.
type fault uint8

const (
	cut       fault = iota // the connection ends
	corrupt                // a bit flips
	drop                   // bytes are missing
	duplicate              // bytes come twice
	late                   // bytes come later
	stall                  // bytes come no more for a while, and then the connection ends
	numFaults
)

var faultNames = [numFaults]string{"cut", "corrupt", "drop", "duplicate", "late", "stall"}

// kinds are the faults that the toxic has.
func (t *toxic) kinds() (out []fault) {
	for i, name := range faultNames {
		if len(t.Kinds) == 0 || slices.Contains(t.Kinds, name) {
			out = append(out, fault(i))
		}
	}
	return out
}

const (
	lateMost  = 100 * time.Millisecond
	stallMost = time.Second
)

// connections counts the connections of all toxics.
var connections atomic.Uint64

// Pipe implements toxics.Toxic.
func (t *toxic) Pipe(stub *toxics.ToxicStub) {
	r := rand.New(rand.NewPCG(uint64(t.Seed), connections.Add(1)))
	next := func() int { return int(r.ExpFloat64() * float64(t.Mean)) }
	left, kinds := next(), t.kinds()
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			if len(c.Data) <= left {
				left -= len(c.Data)
				stub.Output <- c
				continue
			}
			if !happen(kinds[r.IntN(len(kinds))], c, left, r, stub) {
				return
			}
			left = next()
		}
	}
}

// happen lets a fault happen to the bytes of a chunk from an offset on. False: the connection has ended.
func happen(f fault, c *stream.StreamChunk, at int, r *rand.Rand, stub *toxics.ToxicStub) bool {
	pass := func(data []byte) {
		if len(data) > 0 {
			stub.Output <- &stream.StreamChunk{Data: data, Timestamp: c.Timestamp}
		}
	}
	rest := bytes.Clone(c.Data[at:])
	pass(c.Data[:at])
	switch f {
	case cut:
		stub.Close()
		return false
	case corrupt:
		rest[r.IntN(len(rest))] ^= 1 << r.IntN(8)
	case drop:
		rest = rest[1+r.IntN(len(rest)):]
	case duplicate:
		pass(rest)
	case late:
		pause(r, lateMost, stub)
	case stall:
		pause(r, stallMost, stub)
		stub.Close()
		return false
	}
	pass(rest)
	return true
}

func pause(r *rand.Rand, most time.Duration, stub *toxics.ToxicStub) {
	select {
	case <-time.After(time.Duration(r.Int64N(int64(most)))):
	case <-stub.Interrupt:
	}
}

func init() { toxics.Register("faults", new(toxic)) }
