// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

// link is a network between two sockets. Its toxics are toxiproxy's; toxiproxy's own proxy is for TCP only.
//
// A chunk's delay counts from its arrival, so that many are on their way at once. The rate comes after the delay: the
// latency toxic would count the time that a chunk waits for its turn as delay, and for chunks in their order the sum is
// the same. Both toxics are there in a link without delay or limit too: such links cost as much as the others.
type link struct {
	there, back int64 // milliseconds: to the worker, to the client
	rate        int64 // thousands of bytes per second; 0: no limit
}

const (
	// io.Copy reads at most 32 KiB at a time: this holds 256 MiB, or 8,192 small messages, on their way.
	inFlight = 1 << 13
	bitsOfKB = 8 * 1000 // toxiproxy's KB
)

// newLink makes a link of a delay of one way and of bits per second. Toxiproxy counts in whole milliseconds: where there
// and back are a whole number of them, half of one is moved from the way back to the way there.
func newLink(delay time.Duration, rate int64) (link, error) {
	both := 2 * delay
	if both < 0 || both%time.Millisecond != 0 {
		return link{}, fmt.Errorf("a delay of %v is not half a whole number of milliseconds", delay)
	}
	if rate < 0 || rate%bitsOfKB != 0 {
		return link{}, fmt.Errorf("a rate of %d bits per second is not a multiple of %d", rate, bitsOfKB)
	}
	ms := both.Milliseconds()
	return link{there: ms - ms/2, back: ms / 2, rate: rate / bitsOfKB}, nil
}

// join passes bytes between two sockets until both ways have ended, and closes them.
func (l link) join(client, worker *net.UnixConn) {
	var ways sync.WaitGroup
	ways.Go(func() { l.carry(worker, client, l.there) })
	ways.Go(func() { l.carry(client, worker, l.back) })
	ways.Wait()
	_ = client.Close()
	_ = worker.Close()
}

// carry is one way: all that comes from src, and then its end, to dst.
func (l link) carry(dst, src *net.UnixConn, delay int64) {
	arrived := make(chan *stream.StreamChunk, inFlight)
	late, paced := make(chan *stream.StreamChunk), make(chan *stream.StreamChunk)
	go (&toxics.LatencyToxic{Latency: delay}).Pipe(toxics.NewToxicStub(arrived, late))
	var pace toxics.Toxic = &toxics.BandwidthToxic{Rate: l.rate}
	if l.rate == 0 { // which would hold everything back
		pace = &toxics.NoopToxic{}
	}
	go pace.Pipe(toxics.NewToxicStub(late, paced))
	go func() {
		in := stream.NewChanWriter(arrived) // notes the time of arrival
		_, _ = io.Copy(in, src)
		_ = in.Close()
	}()
	gone := false
	for chunk := range paced { // to its end, or the toxics would wait for ever
		if gone {
			continue
		}
		if _, err := dst.Write(chunk.Data); err != nil {
			gone = true
			_ = src.CloseRead()
		}
	}
	_ = dst.CloseWrite()
}
