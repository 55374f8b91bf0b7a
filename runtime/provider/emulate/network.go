// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package emulate is a network of a certain delay and rate on this host, between a client and a worker: what a program
// costs on a machine far away can be seen without one.
package emulate

import (
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Patterns of an option's values.
const (
	RTTPattern  = `[0-9]+([.][0-9]+)?(us|ms|s)`
	RatePattern = `[0-9]+([.][0-9]+)?[kMG]?bit`
)

// ParseRTT parses a round trip time, as "50ms", of at most a minute.
func ParseRTT(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || !regexp.MustCompile("^(?:"+RTTPattern+")$").MatchString(text) || d > time.Minute {
		return 0, fmt.Errorf("%q is no round trip time up to a minute, as \"50ms\" is", text)
	}
	return d, nil
}

// ParseRate parses a rate in bits per second, as "100Mbit".
func ParseRate(text string) (int64, error) {
	m := regexp.MustCompile(`^([0-9.]+)([kMG]?)bit$`).FindStringSubmatch(text)
	if m != nil {
		n, err := strconv.ParseFloat(m[1], 64)
		if n *= map[string]float64{"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[m[2]]; err == nil && n >= 8000 && n <= 1e12 {
			return int64(n), nil
		}
	}
	return 0, fmt.Errorf("%q is no rate from \"8kbit\" to \"1000Gbit\", as \"100Mbit\" is", text)
}

// line is one direction of a network. It sends the bytes of all connections one after the other at its rate, and each
// byte arrives a delay after it was sent. Bytes that cannot be sent yet wait in a queue of limited length, as in a
// router. When the queue is full, the line reads no more, so that the sender's TCP waits. Loss of packets is not
// simulated, and neither are TCP's windows: the bytes under way are in this process.
type line struct {
	delay time.Duration
	rate  float64 // bytes per second; 0: no limit

	mu   sync.Mutex
	free time.Time // when all bytes that the line has taken will have been sent
}

const (
	// queueTime is the length of the queue. A sender who is late by less than that loses none of the rate.
	queueTime = 10 * time.Millisecond
	// A chunk is what the line sends in chunkTime, in these bounds. A chunk arrives as a whole.
	chunkTime            = time.Millisecond / 2
	minChunk, maxChunk   = 16 << 10, 1 << 20
	chunkWithoutLimit    = 256 << 10
	underWayWithoutLimit = 256 << 20
	// moreUnderWay is what may be under way beyond the rate times the delay: the receiver may be late.
	moreUnderWay = 8 << 20
	// Socket buffers before the line would be a second queue, so they hold no more than queueTime.
	minSocket, maxSocket = 64 << 10, 4 << 20
)

// past is a deadline that ends each read.
var past = time.Unix(1, 0)

// newLine makes a line with a rate in bits per second.
func newLine(delay time.Duration, rate int64) *line {
	return &line{delay: delay, rate: float64(rate) / 8}
}

// chunk is how many bytes are read at once.
func (l *line) chunk() int {
	if l.rate == 0 {
		return chunkWithoutLimit
	}
	return min(max(int(l.rate*chunkTime.Seconds()), minChunk), maxChunk)
}

// depth is how many chunks may be under way.
func (l *line) depth() int {
	bytes := float64(underWayWithoutLimit)
	if l.rate != 0 {
		bytes = 2*l.rate*(l.delay+queueTime).Seconds() + moreUnderWay
	}
	return int(bytes)/l.chunk() + 1
}

// socket is the size of a socket's buffer before the line; 0: the system chooses.
func (l *line) socket() int {
	if n := int(l.rate * queueTime.Seconds()); n > 0 && n < maxSocket {
		return max(n, minSocket)
	}
	return 0
}

// send takes n bytes and returns when the last of them will have been sent.
func (l *line) send(n int) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	if l.rate != 0 {
		l.free = l.free.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	}
	return l.free
}

// packet is a chunk under way.
type packet struct {
	buffer  *[]byte
	n       int
	arrives time.Time
}

// carry passes all bytes of src, and then its end, to dst.
func (l *line) carry(dst, src *net.TCPConn) {
	buffers := sync.Pool{New: func() any { b := make([]byte, l.chunk()); return &b }}
	underWay := make(chan packet, l.depth())
	go func() {
		defer close(underWay)
		for {
			b := buffers.Get().(*[]byte)
			n, err := src.Read(*b)
			sent := l.send(n)
			underWay <- packet{b, n, sent.Add(l.delay)} // the end too takes its time
			if err != nil {
				return
			}
			time.Sleep(time.Until(sent.Add(-queueTime)))
		}
	}()
	gone := false
	for p := range underWay { // after an error too, or the reader would wait forever
		if !gone {
			time.Sleep(time.Until(p.arrives))
			if _, err := dst.Write((*p.buffer)[:p.n]); err != nil {
				gone = true
				_ = src.SetReadDeadline(past) // CloseRead would still return what a busy sender goes on to send
			}
		}
		buffers.Put(p.buffer)
	}
	_ = dst.CloseWrite()
}

// Network is a line in each direction: to the server, and back.
type Network struct{ there, back *line }

// New makes a network with a delay in each direction and a rate in bits per second; 0: no limit.
func New(delay time.Duration, rate int64) *Network {
	return &Network{newLine(delay, rate), newLine(delay, rate)}
}

// withBuffer returns a function that sets the size of a socket's receive buffer before it has a connection.
func withBuffer(bytes int) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		if bytes == 0 {
			return nil
		}
		err2 := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, bytes)
		})
		if err == nil {
			err = err2
		}
		return err
	}
}

// Listen joins connections to an address, which it returns, to new connections to a server, until the listener is
// closed.
func (n *Network) Listen(server string) (address string, listener io.Closer, err error) {
	config := net.ListenConfig{Control: withBuffer(n.there.socket())}
	l, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go n.join(client.(*net.TCPConn), server)
		}
	}()
	return l.Addr().String(), l, nil
}

// join passes bytes between a client and a new connection to a server, until both directions have ended.
func (n *Network) join(client *net.TCPConn, server string) {
	defer client.Close()
	dialer := net.Dialer{Control: withBuffer(n.back.socket()), Timeout: 10 * time.Second}
	c, err := dialer.Dial("tcp", server)
	if err != nil {
		return
	}
	defer c.Close()
	var ways sync.WaitGroup
	ways.Go(func() { n.there.carry(c.(*net.TCPConn), client) })
	ways.Go(func() { n.back.carry(client, c.(*net.TCPConn)) })
	ways.Wait()
}
