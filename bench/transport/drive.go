// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
)

// A task is a line of the driver's stdin, and a result the line of stdout that answers it.
type task struct {
	Do    string // "up", "down", "trips" or "busy"
	Peer  string // see open
	Bytes int    // of a transfer
	Count int    // of round trips
}

type result struct {
	Seconds float64   `json:"seconds,omitempty"` // of the transfer
	Micros  []float64 `json:"micros,omitempty"`  // of each round trip
	Error   string    `json:"error,omitempty"`
}

// started is the first line of the driver's stdout.
type started struct {
	PIDs []int `json:"pids"` // of the client, which is the driver, and of the servers
}

const (
	// lease is how long the certificates are valid.
	lease = 24 * time.Hour
	// tripPause is between two round trips during a transfer.
	tripPause = 5 * time.Millisecond
)

// driver is the client of all peers. Connections stay open, so that a transfer finds its windows wide.
type driver struct {
	addresses map[string]string
	secret    *transport.Credentials
	peers     map[string]peer
	memory    memory
}

// drive starts the servers, with a network before them if net has flags, and does the tasks of in until its end.
func drive(in io.Reader, out io.Writer, net []string) error {
	near, far, err := transport.Mint(lease)
	if err != nil {
		return err
	}
	secret, err := far.Encode()
	if err != nil {
		return err
	}
	d := &driver{secret: near, peers: map[string]peer{}}
	servers, err := begin(secret, &d.addresses, "serve")
	if err != nil {
		return err
	}
	defer servers.end()
	if len(net) > 0 {
		behind, err := json.Marshal(d.addresses)
		if err != nil {
			return err
		}
		proxy, err := begin(append(behind, '\n'), &d.addresses, append([]string{"proxy"}, net...)...)
		if err != nil {
			return err
		}
		defer proxy.end()
	}
	answer := json.NewEncoder(out)
	if err := answer.Encode(started{[]int{os.Getpid(), servers.cmd.Process.Pid}}); err != nil {
		return err
	}
	for tasks := json.NewDecoder(in); ; {
		var t task
		if err := tasks.Decode(&t); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		r, err := d.do(t)
		if err != nil {
			r.Error = fmt.Sprintf("%s %s: %v", t.Do, t.Peer, err)
		}
		if err := answer.Encode(r); err != nil {
			return err
		}
	}
}

// peer returns an open peer, which it opens once.
func (d *driver) peer(name string) (peer, error) {
	if p, ok := d.peers[name]; ok {
		return p, nil
	}
	p, err := open(name, d.addresses, d.secret)
	if err == nil {
		d.peers[name] = p
	}
	return p, err
}

func (d *driver) do(t task) (r result, err error) {
	p, err := d.peer(t.Peer)
	if err != nil {
		return r, err
	}
	err = d.memory.use(uint64(t.Bytes), func(b []byte) error {
		start := time.Now()
		switch t.Do {
		case "up":
			err = p.up(b)
		case "down":
			err = p.down(b)
		case "trips":
			r.Micros, err = trips(p, t.Count)
			return err
		case "busy":
			r.Micros, err = d.busy(t.Peer, p, b)
		default:
			err = fmt.Errorf("it is not known how to do this")
		}
		r.Seconds = time.Since(start).Seconds()
		return err
	})
	return r, err
}

// trips returns the times of round trips in µs.
func trips(p peer, count int) ([]float64, error) {
	micros := make([]float64, count)
	for i := range micros {
		start := time.Now()
		if err := p.trip(); err != nil {
			return nil, err
		}
		micros[i] = float64(time.Since(start).Nanoseconds()) / 1e3
	}
	return micros, nil
}

// busy returns the times of round trips in µs while bytes are sent: with gRPC on the same connection, otherwise on
// another one.
func (d *driver) busy(name string, p peer, src []byte) ([]float64, error) {
	other, err := p, error(nil)
	if _, ok := p.(stream); ok {
		if other, err = d.other(name); err != nil {
			return nil, err
		}
	}
	over := make(chan error, 1)
	go func() { over <- p.up(src) }()
	var micros []float64
	for {
		one, err := trips(other, 1)
		if err != nil {
			return nil, err
		}
		micros = append(micros, one...)
		select {
		case err := <-over:
			return micros, err
		case <-time.After(tripPause):
		}
	}
}

// other returns a second connection to a server.
func (d *driver) other(name string) (peer, error) {
	second := name + ", second"
	if p, ok := d.peers[second]; ok {
		return p, nil
	}
	p, err := open(name, d.addresses, d.secret)
	if err == nil {
		err = p.trip() // a handshake is no round trip
	}
	if err == nil {
		d.peers[second] = p
	}
	return p, err
}

// process is a process of this program that has printed its addresses. It ends when its stdin ends.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// begin starts this program with arguments, gives it some bytes on stdin, and reads its addresses.
func begin(input []byte, addresses *map[string]string, arguments ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, arguments...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd, stdin}
	_, err = io.Copy(stdin, bytes.NewReader(input))
	if err == nil {
		*addresses = nil
		err = json.NewDecoder(stdout).Decode(addresses)
	}
	if err != nil {
		p.end()
		return nil, fmt.Errorf("%s did not start: %w", arguments[0], err)
	}
	return p, nil
}

func (p *process) end() {
	_ = p.stdin.Close()
	_ = p.cmd.Wait()
}
