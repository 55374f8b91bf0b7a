// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	goruntime "runtime"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/runtime/provider"
)

// there is a worker that runs already, as a provider and its instance.
type there struct {
	provider.StartOnly
	addr        string
	credentials *transport.Credentials
}

func (w *there) Start(context.Context, provider.Spec) (provider.Instance, error) { return w, nil }
func (w *there) Credentials() *transport.Credentials                             { return w.credentials }
func (w *there) FDs() []int                                                      { return nil }
func (w *there) Stop(context.Context, time.Duration) error                       { return nil }

func (w *there) Handle() provider.Handle { return provider.Handle{Provider: "there", ID: w.addr} }

func (w *there) Dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", w.addr)
}

func (w *there) Wait(ctx context.Context) (provider.Exit, error) {
	<-ctx.Done()
	return provider.Exit{}, ctx.Err()
}

// open opens a session of package runtime with the worker.
func open(w *there) (*training, error) {
	names := capture.NewTable()
	provide := func(runtime.Paths) (provider.Provider, error) { return w, nil }
	rt := runtime.NewLocal(names, provide)
	t := &training{rt: rt, names: names}
	if err := rt.Open(0, runtime.Paths{}, []string{"MYCELYA_LOG=error"}); err != nil {
		return nil, err
	}
	return t, t.wait(rt.Start(0))
}

// facts are what the session's worker and link say.
type facts struct {
	PID        int    `json:"pid"`
	Reconnects uint64 `json:"reconnects"`
	Sent       uint64 `json:"bytes_sent"`
}

func (t *training) facts() (out facts, err error) {
	info, err := t.rt.DeviceInfo(0)
	if err != nil {
		return out, err
	}
	return out, errors.Join(json.Unmarshal(info, &out), json.Unmarshal(t.rt.Metrics(), &out))
}

// left is what a process holds.
func left() (goroutines, files int) {
	list, _ := os.ReadDir("/proc/self/fd")
	return goruntime.NumGoroutine(), len(list)
}

// runClient is the process of one client. Its stdin has the credentials, and its end ends the client after a round. Its
// lines on stdout are those that follow.
//
//	pid N                  of the session's process
//	value STEP TEXT        that was read
//	end RECONNECTS BYTES   the client has closed its session, and nothing is left
func runClient(addr string, seed uint64) error {
	stdin := bufio.NewReader(os.Stdin)
	text, err := transport.ReadCredentials(stdin)
	if err != nil {
		return err
	}
	credentials, err := transport.ParseCredentials(text)
	if err != nil {
		return err
	}
	var over atomic.Bool
	go func() { _, _ = io.Copy(io.Discard, stdin); over.Store(true) }()
	goroutines, files := left()
	t, err := open(&there{addr: addr, credentials: credentials})
	if err != nil {
		return err
	}
	known, err := t.facts()
	if err != nil {
		return err
	}
	fmt.Println("pid", known.PID)
	for !over.Load() {
		if err := t.round(seed, func(v value) { fmt.Println("value", v.step, v.text) }); err != nil {
			return err
		}
	}
	if err := t.nothingHeld(); err != nil {
		return err
	}
	if known, err = t.facts(); err != nil {
		return err
	}
	t.rt.Close(0)
	if err := nothingLeft(goroutines, files); err != nil {
		return err
	}
	fmt.Println("end", known.Reconnects, known.Sent)
	return nil
}

// nothingLeft waits until the process holds what it held before its session. Go's poller has a descriptor of its own,
// and a second one to wake it.
func nothingLeft(goroutines, files int) error {
	const poller = 3
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		g, f := left()
		if g <= goroutines && f <= files+poller {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the closed session has left %d goroutines (%d before) and %d files (%d before)", g, goroutines,
				f, files)
		}
	}
}
