// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package answers_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/capture/asm"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/trace"
)

const (
	// length is the number of elements of each vector.
	length = 128
	// An honest worker answers within milliseconds, unless the machine is busy.
	patience, longPatience = 400 * time.Millisecond, 30 * time.Second
	// cancelWait is more than the time in which a Cancel ends a ticket, and closeWait than that of a Close.
	cancelWait = 2 * time.Minute
	closeWait  = 2 * time.Minute
)

// client is a real session of package runtime, and what its storages must hold.
type client struct {
	r      *rand.Rand
	names  *capture.Table
	rt     *runtime.Local
	worker *liar
	wait   time.Duration // for an answer

	ids    []uint64
	values map[uint64][]float32 // nil: an op has failed before
	// The numbers of elements that reads have not used. Each read has another one, so that no answer fits another read.
	lengths []int
	reads   []*reading
	outcome outcome
}

// reading is a read under way.
type reading struct {
	ticket uint64
	dst    []byte
	want   []float32 // nil: the read must fail
}

// outcome counts what became of waits.
type outcome struct{ right, failed, lost, cancelled int }

func (o *outcome) add(p outcome) {
	o.right, o.failed, o.lost, o.cancelled = o.right+p.right, o.failed+p.failed, o.lost+p.lost, o.cancelled+p.cancelled
}

func newClient(r *rand.Rand, worker *liar) (*client, error) {
	names := capture.NewTable()
	c := &client{r: r, names: names, worker: worker, wait: patience, values: map[uint64][]float32{}}
	if worker.plan.honest() {
		c.wait = longPatience
	}
	provide := func(runtime.Paths) (provider.Provider, error) { return worker, nil }
	c.rt = runtime.NewLocal(names, provide)
	for _, n := range r.Perm(length / 2) {
		c.lengths = append(c.lengths, 2*(n+1))
	}
	return c, c.rt.Open(0, runtime.Paths{}, []string{"MYCELYA_LOG=error"})
}

// run does random things until the session is lost, and returns the first thing that must not be.
func (c *client) run() error {
	for range 6 + c.r.IntN(12) {
		if err := c.one(); err != nil {
			return err
		}
		if c.rt.Ended(0) != "" {
			c.outcome.lost++
			break
		}
	}
	for _, n := range c.reads {
		if err := c.finish(n); err != nil {
			return err
		}
	}
	return c.close()
}

func (c *client) close() error {
	closed := make(chan struct{})
	go func() { c.rt.Close(0); close(closed) }()
	select {
	case <-closed:
		return nil
	case <-time.After(closeWait):
		return fmt.Errorf("the session does not close within %v", closeWait)
	}
}

func (c *client) one() error {
	switch n := c.r.IntN(11); {
	case len(c.ids) == 0 || n == 0:
		return c.upload()
	case n <= 4:
		return c.compute()
	case n <= 7 && len(c.lengths) > 0:
		return c.read()
	case n == 8 && len(c.reads) > 0:
		i := c.r.IntN(len(c.reads))
		at := c.reads[i]
		c.reads = append(c.reads[:i], c.reads[i+1:]...)
		return c.finish(at)
	case n == 10:
		return c.pass()
	}
	if err := c.sync(); err != nil {
		return err
	}
	_, err := c.rt.Raise(0)
	return c.proper(err)
}

func (c *client) storage() uint64 {
	id := uint64(len(c.ids)) + 1
	c.ids = append(c.ids, id)
	return id
}

func (c *client) upload() error {
	id := c.storage()
	var data []byte
	for range length {
		x := float32(c.r.IntN(1000)) / 8
		c.values[id] = append(c.values[id], x)
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	ticket, err := c.rt.Upload(0, id, data, trace.Place{})
	if errors.Is(err, runtime.ErrPending) {
		return c.await(ticket)
	}
	return c.proper(err)
}

// ops are operators with their meaning. The reference backend does not know the last one.
var ops = []struct {
	text string
	of   func(x float32) float32
}{
	{"aten::neg %0:f32[128] -> %1:f32[128]", func(x float32) float32 { return -x }},
	{"aten::relu %0:f32[128] -> %1:f32[128]", func(x float32) float32 { return max(x, 0) }},
	{"aten::mul.Tensor %0:f32[128] %0 -> %1:f32[128]", func(x float32) float32 { return x * x }},
	{"aten::add.Tensor %0:f32[128] %0 1 -> %1:f32[128]", func(x float32) float32 { return x + x }},
	{"aten::erfinv %0:f32[128] -> %1:f32[128]", nil},
}

// compute submits a trace of one op on a storage.
func (c *client) compute() error {
	in := c.ids[c.r.IntN(len(c.ids))]
	out := c.storage()
	op := ops[c.r.IntN(len(ops))]
	t, err := asm.Parse(fmt.Sprintf("bind %d %d\ncut read train.py:3\n%s # train.py:2\n", in, out, op.text), c.names)
	if err != nil {
		return err
	}
	if op.of != nil && c.values[in] != nil {
		for _, x := range c.values[in] {
			c.values[out] = append(c.values[out], op.of(x))
		}
	}
	if err := c.rt.Flush(0, t, func() {}); !errors.Is(err, runtime.ErrPending) {
		return c.proper(err)
	}
	return nil
}

// read begins to read a part of a storage.
func (c *client) read() error {
	id := c.ids[c.r.IntN(len(c.ids))]
	n := c.lengths[0]
	c.lengths = c.lengths[1:]
	at := &reading{dst: make([]byte, 4*n)}
	if v := c.values[id]; v != nil {
		at.want = v[:n]
	}
	view := runtime.View{Storage: id, DType: ir.F32, Sizes: []int64{int64(n)}, Strides: []int64{1}}
	var err error
	if at.ticket, err = c.rt.Read(0, view, at.dst, trace.Place{}); err != nil {
		return c.proper(err)
	}
	c.reads = append(c.reads, at)
	return nil
}

// pass copies a storage as a copy to another device does. The other device is the same one here.
func (c *client) pass() error {
	id := c.ids[c.r.IntN(len(c.ids))]
	ticket, err := c.rt.Ask(0, fmt.Appendf(nil,
		`{"What":"pass","To":0,"Views":[{"Storage":%d,"DType":%d,"Sizes":[%d],"Strides":[1]}]}`, id, ir.F32, length),
		trace.Place{})
	if err == nil {
		err = c.within(ticket, c.wait)
	}
	if errors.Is(err, runtime.ErrPending) {
		return c.nudge(ticket)
	}
	if err != nil {
		return c.proper(err)
	}
	if c.values[id] == nil {
		return errors.New("what an op should have made, and has not, was passed on")
	}
	answer, err := c.rt.Answer(ticket, 1<<20)
	if err != nil {
		return err
	}
	copied := c.storage()
	ticket, err = c.rt.Ask(0, fmt.Appendf(nil, `{"What":"take","Passed":%s,"Storage":%d,"Bytes":%d}`, answer, copied,
		4*length), trace.Place{})
	if err != nil {
		return c.proper(err)
	}
	c.values[copied] = c.values[id]
	return c.await(ticket)
}

func (c *client) sync() error {
	ticket, err := c.rt.Sync(0, trace.Place{})
	if err != nil {
		return c.proper(err)
	}
	return c.await(ticket)
}

// finish waits for a read. A value that it returns must be right.
func (c *client) finish(at *reading) error {
	err := c.within(at.ticket, c.wait)
	if errors.Is(err, runtime.ErrPending) {
		return c.nudge(at.ticket)
	}
	if err != nil {
		return c.proper(err)
	}
	if at.want == nil {
		return errors.New("a read of what an op should have made, and has not, returns a value")
	}
	for i, want := range at.want {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(at.dst[4*i:])); got != want {
			return fmt.Errorf("element %d of %d is %v, not %v", i, len(at.want), got, want)
		}
	}
	c.outcome.right++
	return nil
}

func (c *client) await(ticket uint64) error {
	err := c.within(ticket, c.wait)
	if errors.Is(err, runtime.ErrPending) {
		return c.nudge(ticket)
	}
	return c.proper(err)
}

// within waits at most d for a ticket.
func (c *client) within(ticket uint64, d time.Duration) error {
	for end := time.Now().Add(d); ; {
		err := c.rt.Wait(ticket, 20*time.Millisecond)
		if !errors.Is(err, runtime.ErrPending) || time.Now().After(end) {
			return err
		}
	}
}

// nudge asks the worker another question while a ticket has no answer. If the worker answers the question, the client
// must know that the ticket's answer was left out. If it does not, a Cancel must end the ticket.
func (c *client) nudge(ticket uint64) error {
	if another, err := c.rt.Sync(0, trace.Place{}); err == nil {
		err = c.within(another, c.wait)
		switch {
		case err == nil && errors.Is(c.rt.Wait(ticket, 0), runtime.ErrPending):
			return errors.New("a wait goes on though the worker has answered a later question")
		case errors.Is(err, runtime.ErrPending):
			if err := c.cancel(another); err != nil {
				return err
			}
		}
	}
	err := c.rt.Wait(ticket, 0)
	if errors.Is(err, runtime.ErrPending) {
		return c.cancel(ticket)
	}
	return c.proper(err)
}

func (c *client) cancel(ticket uint64) error {
	cancelled := make(chan struct{})
	go func() { c.rt.Cancel(ticket); close(cancelled) }()
	select {
	case <-cancelled:
		c.outcome.cancelled++
		return nil
	case <-time.After(cancelWait):
		return fmt.Errorf("a ticket is not cancelled within %v", cancelWait)
	}
}

// proper passes all errors but those of the client's own mistakes.
func (c *client) proper(err error) error {
	if err == nil {
		return nil
	}
	if strings.Contains(err.Error(), "goroutine ") {
		return fmt.Errorf("the client has panicked: %w", err)
	}
	c.outcome.failed++
	return nil
}
