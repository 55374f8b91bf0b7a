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

// link is a network between two sockets. It uses toxiproxy's toxics, but not its proxy, which is for TCP only.
//
// A chunk's delay counts from its arrival, so that many chunks are in flight at once. The rate limit comes after the
// delay. In the other order, the latency toxic would subtract the time that a chunk waits for the limit from the delay.
// A link without delay or limit passes the same two stages, so that all links have the same overhead.
type link struct {
	there, back int64 // milliseconds: to the worker, to the client
	rate        int64 // thousands of bytes per second; 0: no limit
}

const (
	// Chunks in flight. io.Copy reads at most 32 KiB at a time, so this is 256 MiB, or 8,192 small messages.
	inFlight = 1 << 13
	bitsOfKB = 8 * 1000 // toxiproxy's KB
)

// newLink makes a link with a delay for each direction and a rate in bits per second. Toxiproxy's unit is a whole
// millisecond. A delay of n.5 ms becomes n+1 ms to the worker and n ms back.
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

// join passes bytes between two sockets until both directions have ended, and closes the sockets.
func (l link) join(client, worker *net.UnixConn) {
	var ways sync.WaitGroup
	ways.Go(func() { l.carry(worker, client, l.there) })
	ways.Go(func() { l.carry(client, worker, l.back) })
	ways.Wait()
	_ = client.Close()
	_ = worker.Close()
}

// carry is one direction: it passes all bytes of src, and then its end, to dst.
func (l link) carry(dst, src *net.UnixConn, delay int64) {
	arrived := make(chan *stream.StreamChunk, inFlight)
	late, paced := make(chan *stream.StreamChunk), make(chan *stream.StreamChunk)
	go (&toxics.LatencyToxic{Latency: delay}).Pipe(toxics.NewToxicStub(arrived, late))
	var pace toxics.Toxic = &toxics.BandwidthToxic{Rate: l.rate}
	if l.rate == 0 { // with a rate of 0 the bandwidth toxic would pass no data
		pace = &toxics.NoopToxic{}
	}
	go pace.Pipe(toxics.NewToxicStub(late, paced))
	go func() {
		in := stream.NewChanWriter(arrived) // it stores the time of arrival
		_, _ = io.Copy(in, src)
		_ = in.Close()
	}()
	gone := false
	for chunk := range paced { // after an error too, or the toxics would wait forever
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
