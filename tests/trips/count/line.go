// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package count

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// Chunks in flight in one direction, of at most chunkBytes.
	inFlight   = 1 << 12
	chunkBytes = 32 << 10
	dialWait   = 10 * time.Second
)

// Line is the way between clients and a worker.
type Line struct {
	Delay   time.Duration // of each direction
	Counter *Counter
}

// Serve passes each connection that l accepts on to a new connection to the worker, until l is closed. The streams are
// TLS.
func (w Line) Serve(l net.Listener, network, worker string) error {
	for {
		client, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		w.Counter.begin(true)
		opened := time.Now()
		go func() {
			behind, err := net.DialTimeout(network, worker, dialWait)
			if err != nil {
				_ = client.Close()
				return
			}
			w.join(client, behind, opened)
		}()
	}
}

// join passes bytes between two connections until both directions have ended. On the loopback the TCP handshake of the
// client takes no time: its first bytes come later instead, by the time that the handshake would have taken.
func (w Line) join(client, worker net.Conn, opened time.Time) {
	var ways sync.WaitGroup
	ways.Go(func() {
		w.carry(way{to: worker, from: client, client: true, after: opened.Add(2 * w.Delay), tls: new(records)})
		closeWrite(worker)
	})
	ways.Go(func() {
		w.carry(way{to: client, from: worker, tls: new(records)})
		closeWrite(client)
	})
	ways.Wait()
	_ = client.Close()
	_ = worker.Close()
}

func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// Pipe passes bytes between a client and a worker whose stream is a pair of pipes each. The client begins to wait when
// the stream begins, and what the worker writes unasked leaves when the request for the stream would have arrived. Pipe
// closes the worker's stdin when the client's bytes end, and returns when the worker's end. secure: both directions
// become TLS, after some lines of text.
func (w Line) Pipe(
	fromClient io.Reader, toWorker io.WriteCloser, fromWorker io.Reader, toClient io.Writer, secure bool,
) {
	w.Counter.begin(false)
	there := way{to: toWorker, from: fromClient, client: true}
	back := way{to: toClient, from: fromWorker, after: time.Now().Add(w.Delay)}
	if secure {
		there.tls, back.tls = new(records), new(records)
	}
	go func() {
		w.carry(there)
		_ = toWorker.Close()
	}()
	w.carry(back)
}

// way is one direction of a stream.
type way struct {
	to     io.Writer
	from   io.Reader
	client bool      // the client sends
	after  time.Time // no bytes leave before
	tls    *records  // nil: all bytes count
}

type chunk struct {
	bytes  []byte
	number int // 0: the bytes do not count
	due    time.Time
}

// carry passes the bytes of one direction on, each after the delay, until an end fails.
func (w Line) carry(d way) {
	under := make(chan chunk, inFlight)
	go func() {
		defer close(under)
		for {
			b := make([]byte, chunkBytes)
			n, err := d.from.Read(b)
			if n > 0 {
				leaves := time.Now()
				if d.after.After(leaves) {
					leaves = d.after
				}
				c := chunk{bytes: b[:n], due: leaves.Add(w.Delay)}
				if d.tls == nil || d.tls.pass(b[:n]) {
					c.number = w.Counter.sent(d.client)
				}
				under <- c
			}
			if err != nil {
				return
			}
		}
	}()
	gone := false
	for c := range under { // after an error too, or the reader would wait
		if gone {
			continue
		}
		time.Sleep(time.Until(c.due))
		w.Counter.arrived(c.number, !d.client)
		_, err := d.to.Write(c.bytes)
		gone = err != nil
	}
}
