// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/kept"
	"github.com/mycelya/mycelya/worker/supervisor"
)

// operation is a save, or a load, which has no value.
type operation struct {
	name, saves string
	perhaps     bool // a save without an answer: it was done, or was not and never will be
}

// names is the model of kept state: each name has the value of the last save.
var names = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byName := map[string][]porcupine.Operation{}
		for _, op := range history {
			name := op.Input.(operation).name
			byName[name] = append(byName[name], op)
		}
		var out [][]porcupine.Operation
		for _, ops := range byName {
			out = append(out, ops)
		}
		return out
	},
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		op := input.(operation)
		switch {
		case op.perhaps:
			return []any{op.saves, state}
		case op.saves != "":
			return []any{op.saves}
		case output == state:
			return []any{state}
		}
		return nil
	},
}

// keptClient is one of the clients that attach in turns. Its methods return an error when its session has ended.
type keptClient struct {
	id      int
	addr    string
	r       *rand.Rand
	began   time.Time
	conn    *transport.Conn
	process int
	seq     uint64

	history []porcupine.Operation
	unknown int // saves without an answer
	open    int // where those in the history begin that may be under way until the next session begins
}

// attach begins a session, which ends that of another client. When it has begun, what was sent in earlier sessions is
// done or never will be.
func (c *keptClient) attach() error {
	nc, err := net.Dial("unix", c.addr)
	if err != nil {
		return err
	}
	_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
	c.conn, c.seq = transport.New(nc), 0
	var h proto.Hello
	if err := c.ask(transport.Hello, goodHello(), transport.Hello, &h); err != nil {
		return err
	}
	c.process = int(h.Pid)
	for ; c.open < len(c.history); c.open++ {
		if op := &c.history[c.open]; op.Input.(operation).perhaps {
			op.Return = time.Since(c.began).Nanoseconds()
		}
	}
	return nil
}

func (c *keptClient) ask(typ transport.Type, m protobuf.Message, wants transport.Type, answer protobuf.Message) error {
	c.seq++
	if err := c.conn.Send(typ, c.seq, m, nil); err != nil {
		return err
	}
	h, err := c.conn.Next()
	if err == nil && h.Type != wants {
		err = fmt.Errorf("a %v", h.Type) // the last Hello of the session
	}
	if err != nil {
		return err
	}
	return c.conn.Meta(answer)
}

// note adds an operation to the history. known: it has its answer.
func (c *keptClient) note(op operation, found string, from time.Time, known bool) {
	until := int64(math.MaxInt64)
	if op.perhaps = !known; known {
		until = time.Since(c.began).Nanoseconds()
	}
	c.history = append(c.history, porcupine.Operation{ClientId: c.id, Input: op, Output: found,
		Call: from.Sub(c.began).Nanoseconds(), Return: until})
}

// save saves a new value. A save without an answer may have been done.
func (c *keptClient) save(name, value string) error {
	storage := c.seq + 1000
	c.seq++
	if err := c.conn.Send(transport.Upload, c.seq, &proto.Upload{Storage: storage, Bytes: uint64(len(value))},
		[]byte(value)); err != nil {
		return err
	}
	from := time.Now()
	m := &proto.Save{Name: name, Tree: value, Views: []*proto.Read{bytesOf(storage, int64(len(value)))}}
	if c.r.IntN(8) == 0 { // the client ends without waiting for the answer
		c.seq++
		_ = c.conn.Send(transport.Save, c.seq, m, nil)
		c.note(operation{name: name, saves: value}, "", from, false)
		c.unknown++
		return net.ErrClosed
	}
	var reply proto.StateReply
	err := c.ask(transport.Save, m, transport.StateReply, &reply)
	if err == nil && reply.Status != nil { // the worker ends the session, for instance
		err = fmt.Errorf("a save has failed: %v", reply.Status)
	}
	c.note(operation{name: name, saves: value}, "", from, err == nil)
	if err != nil {
		c.unknown++
	}
	return err
}

// load loads a value: "" if there is none.
func (c *keptClient) load(name string) error {
	from := time.Now()
	var found, loaded proto.StateReply
	if err := c.ask(transport.Find, &proto.Find{Name: name}, transport.StateReply, &found); err != nil {
		return err
	}
	if text := found.Status.GetText(); strings.Contains(text, "Nothing is kept") {
		c.note(operation{name: name}, "", from, true)
		return nil
	}
	load := &proto.Load{Found: c.seq, Storages: []uint64{c.seq + 2000}}
	if err := c.ask(transport.Load, load, transport.StateReply, &loaded); err != nil {
		return err
	}
	if int(loaded.Bytes) != len(found.Tree) {
		return fmt.Errorf("a file with the tree %q has %d bytes", found.Tree, loaded.Bytes)
	}
	c.note(operation{name: name}, found.Tree, from, true)
	return nil
}

// run attaches some times and does a few operations each time. Sometimes it kills its session's process.
func (c *keptClient) run(rounds int) (sessions int) {
	for round := range rounds {
		if c.attach() != nil {
			continue
		}
		sessions++
		for i := range 1 + c.r.IntN(6) {
			name := fmt.Sprint("n", c.r.IntN(2))
			var err error
			if c.r.IntN(2) == 0 {
				err = c.save(name, fmt.Sprintf("%d-%d-%d", c.id, round, i))
			} else {
				err = c.load(name)
			}
			if err != nil {
				break
			}
			if c.r.IntN(12) == 0 {
				_ = syscall.Kill(c.process, syscall.SIGKILL)
			}
		}
		_ = c.conn.Close()
	}
	return sessions
}

// TestKeptStateIsLinear: what clients see of names, while they take each other's place, end at any time, and lose their
// sessions' processes, is what they would see if each save and load had happened at one moment.
func TestKeptStateIsLinear(t *testing.T) {
	dir, err := os.MkdirTemp("", "mw")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	addr, log := filepath.Join(dir, "s"), &logBuffer{}
	l, err := net.Listen("unix", addr)
	require.NoError(t, err)
	serveUntilTheEnd(t, &supervisor.Supervisor{
		Command: func() *exec.Cmd { return exec.Command(os.Args[0], sessionArgument) },
		Log:     slog.New(slog.NewTextHandler(log, nil)), Output: log,
		Single: true, Kept: &kept.Folder{Path: filepath.Join(dir, "kept")},
	}, l)
	const clients, rounds = 4, 40
	var wait sync.WaitGroup
	began := time.Now()
	all, sessions := make([]*keptClient, clients), make([]int, clients)
	for i := range all {
		all[i] = &keptClient{id: i, addr: addr, r: rand.New(rand.NewPCG(uint64(i), 24)), began: began}
		wait.Go(func() { sessions[i] = all[i].run(rounds) })
	}
	wait.Wait()
	var history []porcupine.Operation
	unknown := 0
	for i, c := range all {
		require.Positive(t, sessions[i], "client %d had no session:\n%s", i, log)
		history = append(history, c.history...)
		unknown += c.unknown
	}
	require.Greater(t, len(history), 20)
	require.Positive(t, unknown, "no save was interrupted")
	require.True(t, porcupine.CheckOperations(names.ToModel(), history), "%v", history)
	t.Logf("%d operations in %v sessions, %d saves without an answer", len(history), sessions, unknown)
}
