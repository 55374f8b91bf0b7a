// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/session"
)

func TestCallReadFree(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(1, f32(1, 2, 3))
	c.send(transport.Program, sent(1, unary("aten::neg")), nil)
	require.Empty(t, c.call(callOf(1, 3, 1, 2)).Errors)
	b, st := c.read(2, 12)
	require.Nil(t, st)
	require.Equal(t, f32(-1, -2, -3), b)

	s := c.sync()
	require.Nil(t, s.Status)
	require.EqualValues(t, 2, s.Storages)
	require.EqualValues(t, 24, s.Bytes)

	c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{1}}, nil)
	require.EqualValues(t, 1, c.sync().Storages)
	c.upload(1, f32(5))
	call := callOf(1, 1, 1, 0) // the output is not used
	call.Frees = []uint64{1, 2}
	require.Empty(t, c.call(call).Errors)
	require.Zero(t, c.sync().Storages)

	_, st = c.read(2, 12)
	require.Contains(t, st.Text, "Storage 2 doesn't exist")
	b, st = c.read(2, 0)
	require.Nil(t, b)
	require.NotNil(t, st)
	c.upload(3, nil)
	b, st = c.read(3, 0)
	require.Nil(t, st)
	require.Empty(t, b)
}

func TestManyCallsAreNotWaitedFor(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(1, f32(1, 2))
	c.send(transport.Program, sent(1, unary("aten::neg")), nil)
	first := c.seq + 1
	for i := range uint64(100) {
		c.send(transport.Call, callOf(1, 2, 1+i, 2+i), nil)
	}
	for i := range uint64(100) {
		var d proto.Done
		c.expect(transport.Done, first+i, &d)
		require.Empty(t, d.Errors)
	}
	b, st := c.read(101, 8)
	require.Nil(t, st)
	require.Equal(t, f32(1, 2), b)
}

// TestDonesWaitForTheNextAnswer checks the Dones of calls during which the client is busy. They may wait for the next
// answer, if one will come.
func TestDonesWaitForTheNextAnswer(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(1, f32(1, 2))
	c.send(transport.Program, sent(1, unary("aten::neg")), nil)
	for range 50 {
		first := c.seq + 1
		for i := range uint64(3) {
			m := callOf(1, 2, 1+i, 2+i)
			m.Busy = 1
			require.NoError(t, c.c.Hold(transport.Call, first+i, m, nil)) // so that they arrive at once
		}
		c.seq += 3
		c.send(transport.Read, &proto.Read{Storage: 4, Dtype: 7, Sizes: []int64{2}, Strides: []int64{1}}, nil)
		for i := range uint64(3) {
			c.expect(transport.Done, first+i, new(proto.Done))
		}
		var r proto.ReadReply
		c.expect(transport.ReadReply, c.seq, &r)
		got := make([]byte, 8)
		require.NoError(t, c.c.ReadBody(got))
		require.Equal(t, f32(-1, -2), got)

		// A frame that has no answer does not delay a Done.
		m := callOf(1, 2, 1, 2)
		m.Busy = 1
		require.NoError(t, c.c.Hold(transport.Call, c.seq+1, m, nil))
		c.seq++
		call := c.seq
		c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{3}}, nil)
		c.expect(transport.Done, call, new(proto.Done))
	}
}

func TestFailedStepPoisons(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(1, f32(1, 2))
	bad := unary("aten::neg")
	bad.Tensors[1].Sizes[0] = 7
	c.send(transport.Program, sent(1, bad), nil)
	c.send(transport.Program, sent(2, unary("aten::neg")), nil)
	d := c.call(callOf(1, 2, 1, 2))
	failedCall := c.seq
	require.EqualValues(t, 1, d.Failed)
	require.Len(t, d.Errors, 1)
	require.EqualValues(t, proto.ErrRuntime, d.Errors[0].Kind)
	require.Equal(t, failedCall, d.Errors[0].Call)
	d = c.call(callOf(2, 2, 1, 3))
	require.True(t, d.Skipped)
	require.Zero(t, d.Failed)
	_, st := c.read(3, 8)
	require.NotNil(t, st, "a skipped call makes no storage")
	require.Equal(t, failedCall, st.Call)
	b, st := c.read(1, 8)
	require.Nil(t, st)
	require.Equal(t, f32(1, 2), b, "a storage from before is not poisoned")
	c.send(transport.Resume, &proto.Resume{}, nil)
	d = c.call(callOf(2, 2, 1, 4))
	require.False(t, d.Skipped)
	b, st = c.read(4, 8)
	require.Nil(t, st)
	require.Equal(t, f32(-1, -2), b, "the session goes on")
	d = c.call(callOf(2, 2, 3, 5))
	require.EqualValues(t, 1, d.Failed, "what needs a poisoned storage fails")
	require.Equal(t, failedCall, d.Errors[0].Call, "with the first cause")
}

// TestFail: a failure that the client has found has the effect of a call that fails.
func TestFail(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(1, f32(1, 2))
	c.send(transport.Program, sent(1, unary("aten::neg")), nil)
	c.send(transport.Fail,
		&proto.Fail{Status: &proto.Status{Kind: proto.ErrRuntime, Text: "No program."}, Storages: []uint64{1, 2}}, nil)
	require.True(t, c.call(callOf(1, 2, 1, 3)).Skipped)
	for _, id := range []uint64{2, 3} {
		_, st := c.read(id, 8)
		require.Equal(t, "No program.", st.GetText())
	}
	b, st := c.read(1, 8)
	require.Nil(t, st)
	require.Equal(t, f32(1, 2), b)
	c.send(transport.Resume, &proto.Resume{}, nil)
	require.False(t, c.call(callOf(1, 2, 1, 4)).Skipped)
}

// TestFreesComeBeforeTheRun, but not before the call has its inputs.
func TestFreesComeBeforeTheRun(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(1, f32(1, 2))
	c.upload(2, f32(3, 4))
	c.send(transport.Program, sent(1, unary("aten::neg")), nil)
	m := callOf(1, 2, 1, 2) // makes a storage with the id of one that it frees
	m.Frees = []uint64{1, 2}
	require.Zero(t, c.call(m).Failed)
	b, st := c.read(2, 8)
	require.Nil(t, st)
	require.Equal(t, f32(-1, -2), b)
	_, st = c.read(1, 8)
	require.Contains(t, st.GetText(), "doesn't exist")
}

func TestErrorsPerCallAreBounded(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(1, f32(1, 2))
	p := unary("aten::neg")
	p.Tensors[1].Sizes[0] = 7
	step, free := p.Steps[0], &program.Free{Buffer: 1}
	p.Records = []uint32{80}
	for i := range uint32(39) { // each step is of an earlier op than those before
		p.Steps = append(p.Steps, free, step)
		p.Records = append(p.Records, 79-2*i, 78-2*i)
	}
	c.send(transport.Program, sent(1, p), nil)
	d := c.call(callOf(1, 2, 1, 2))
	require.EqualValues(t, 40, d.Failed)
	require.Len(t, d.Errors, executor.MaxErrors)
	require.EqualValues(t, 78, d.Errors[0].Step, "the first is the one whose op was recorded first")
}

// unpreparable refuses programs with a certain operator, as csrc/exec does with operators that its PyTorch lacks, and
// uploads of more than 1 MiB.
type unpreparable struct{ executor.Backend }

type refusing struct{ executor.Executor }

func (u unpreparable) New(device string) (executor.Executor, error) {
	x, err := u.Backend.New(device)
	return refusing{x}, err
}

func (r refusing) Prepare(p *program.Program, words []uint64) (executor.Prepared, error) {
	if c := p.Steps[0].(*program.Call); c.Op == "aten::lacking" {
		return nil, executor.Errorf(proto.ErrNotImplemented, "There is no operator %s.", c.Op)
	}
	return r.Executor.Prepare(p, words)
}

func (r refusing) UploadBegin(id, bytes uint64) ([]byte, error) {
	if bytes > 1<<20 {
		return nil, executor.Errorf(proto.ErrMemory, "No memory for storage %d.", id)
	}
	return r.Executor.UploadBegin(id, bytes)
}

func TestProgramThatCantBePrepared(t *testing.T) {
	c := serve(t, func() (executor.Backend, error) { b, err := refBackend(); return unpreparable{b}, err }, 0).connect(t)
	c.upload(1, f32(1, 2))
	c.send(transport.Program, sent(1, unary("aten::lacking")), nil)
	c.send(transport.Program, sent(2, unary("aten::neg")), nil)
	for range 2 { // each call reports it
		d := c.call(callOf(1, 2, 1, 2))
		require.EqualValues(t, 1, d.Failed)
		require.EqualValues(t, proto.ErrNotImplemented, d.Errors[0].Kind)
		require.Equal(t, c.seq, d.Errors[0].Call)
		bad := c.seq
		require.True(t, c.call(callOf(2, 2, 1, 3)).Skipped)
		for _, id := range []uint64{2, 3} {
			_, st := c.read(id, 8)
			require.Equal(t, "There is no operator aten::lacking.", st.GetText())
			require.Equal(t, bad, st.Call)
		}
		c.send(transport.Resume, &proto.Resume{}, nil)
		c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{2, 3}}, nil)
		_, st := c.read(3, 8)
		require.Contains(t, st.GetText(), "doesn't exist", "a free removes the poison too")
	}
}

// TestAResultThatAnOperatorDoesNotHave: the program obeys the rules, and only the backend knows the operator.
func TestAResultThatAnOperatorDoesNotHave(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	for i, op := range []string{"mycelya::manual_seed", "aten::zero_"} {
		k, out := byte(i+1), uint64(i+2)
		c.send(transport.Program, sent(k, unary(op)), nil)
		c.upload(1, f32(1, 2))
		d := c.call(callOf(k, 2, 1, out))
		require.EqualValues(t, 1, d.Failed)
		require.Contains(t, d.Errors[0].Text, op)
		_, st := c.read(out, 8)
		require.Equal(t, d.Errors[0].Text, st.Text)
		c.send(transport.Resume, &proto.Resume{}, nil)
		c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{1, out}}, nil)
	}
}

func TestUploadWithoutMemory(t *testing.T) {
	c := serve(t, func() (executor.Backend, error) { b, err := refBackend(); return unpreparable{b}, err }, 0).connect(t)
	c.upload(1, make([]byte, 2<<20))
	c.upload(2, f32(7))
	_, st := c.read(1, 4)
	require.EqualValues(t, proto.ErrMemory, st.Kind)
	b, st := c.read(2, 4)
	require.Nil(t, st)
	require.Equal(t, f32(7), b, "the session continues after an upload without memory")
}

// TestUploadToAStorageThatExists breaks the protocol: the storage would lose its content.
func TestUploadToAStorageThatExists(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(2, f32(7))
	c.upload(2, f32(8))
	require.Contains(t, c.fault(), "exists already")
}

func TestUnknownProgramWaits(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(1, f32(1, 2))
	c.send(transport.Program, sent(2, unary("aten::abs")), nil)
	missing := c.send(transport.Call, callOf(1, 2, 1, 2), nil)
	abs := c.send(transport.Call, callOf(2, 2, 2, 3), nil) // its input is the output of the call before
	again := c.send(transport.Call, callOf(1, 2, 3, 4), nil)
	read := c.send(transport.Read, &proto.Read{Storage: 3, Dtype: 1, Sizes: []int64{8}, Strides: []int64{1}}, nil)
	c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{1}}, nil)
	c.upload(9, f32(9)) // does not wait
	var d proto.Done
	c.expect(transport.Done, missing, &d)
	require.True(t, d.UnknownProgram)

	c.send(transport.Program, sent(1, unary("aten::neg")), nil)
	require.NoError(t, c.c.Send(transport.Call, missing, callOf(1, 2, 1, 2), nil))
	for _, seq := range []uint64{missing, abs, again} {
		var d proto.Done
		c.expect(transport.Done, seq, &d)
		require.False(t, d.UnknownProgram)
		require.Empty(t, d.Errors)
	}
	var r proto.ReadReply
	c.expect(transport.ReadReply, read, &r)
	got := make([]byte, 8)
	require.NoError(t, c.c.ReadBody(got))
	require.Equal(t, f32(1, 2), got)
	require.EqualValues(t, 4, c.sync().Storages, "2, 3, 4, 9: the free waited for the calls before it")
}

// differing returns the call next of program k, encoded as its difference from the call prev, which had number base.
func differing(t *testing.T, k byte, base uint64, prev, next *proto.Call) *proto.Call {
	delta, ok := proto.AppendDelta(nil, prev, next)
	require.True(t, ok)
	return &proto.Call{Key: key(k), Base: base, Delta: delta}
}

// TestCallsThatDiffer checks calls that are encoded as the difference from the program's last call, also while the
// program is missing.
func TestCallsThatDiffer(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(1, f32(1, 2))
	c.send(transport.Program, sent(1, unary("aten::neg")), nil)
	calls := []*proto.Call{callOf(1, 2, 1, 2), callOf(1, 2, 2, 3), callOf(1, 2, 3, 4)}
	calls[2].Frees = []uint64{2, 3}
	require.Zero(t, c.call(calls[0]).Failed)
	first := c.seq
	c.send(transport.Program, sent(2, unary("aten::abs")), nil)
	require.Zero(t, c.call(callOf(2, 2, 1, 9)).Failed, "another program's call between")
	require.Zero(t, c.call(differing(t, 1, first, calls[0], calls[1])).Failed)
	require.Zero(t, c.call(differing(t, 1, c.seq, calls[1], calls[2])).Failed)
	b, st := c.read(4, 8)
	require.Nil(t, st)
	require.Equal(t, f32(-1, -2), b)
	require.EqualValues(t, 3, c.sync().Storages, "1, 4, 9")

	missing := c.send(transport.Call, callOf(3, 2, 1, 5), nil)
	next := c.send(transport.Call, differing(t, 3, missing, callOf(3, 2, 1, 5), callOf(3, 2, 5, 6)), nil)
	var d proto.Done
	c.expect(transport.Done, missing, &d)
	require.True(t, d.UnknownProgram)
	c.send(transport.Program, sent(3, unary("aten::neg")), nil)
	require.NoError(t, c.c.Send(transport.Call, missing, callOf(3, 2, 1, 5), nil))
	for _, seq := range []uint64{missing, next} {
		var d proto.Done
		c.expect(transport.Done, seq, &d)
		require.Zero(t, d.Failed)
	}
	b, st = c.read(6, 8)
	require.Nil(t, st)
	require.Equal(t, f32(1, 2), b)
}

func TestTwoUnknownPrograms(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(1, f32(4))
	first := c.send(transport.Call, callOf(1, 1, 1, 2), nil)
	second := c.send(transport.Call, callOf(2, 1, 2, 3), nil)
	for i, seq := range []uint64{first, second} {
		var d proto.Done
		c.expect(transport.Done, seq, &d)
		require.True(t, d.UnknownProgram)
		c.send(transport.Program, sent(byte(i+1), unary("aten::neg")), nil)
		require.NoError(t, c.c.Send(transport.Call, seq, callOf(byte(i+1), 1, uint64(i+1), uint64(i+2)), nil))
		c.expect(transport.Done, seq, &d)
		require.False(t, d.UnknownProgram)
	}
	b, st := c.read(3, 4)
	require.Nil(t, st)
	require.Equal(t, f32(4), b)
}

// TestEviction checks a store with space for one program. It keeps the newest programs. A call of an evicted program is
// answered as one of an unknown program.
func TestEviction(t *testing.T) {
	c := serve(t, refBackend, 1).connect(t)
	c.upload(1, f32(1))
	const n = 40
	for k := range byte(n) {
		c.send(transport.Program, sent(k, unary("aten::neg")), nil)
		require.False(
			t,
			c.call(callOf(k, 1, 1, 100+uint64(k))).UnknownProgram,
			"a program that was just sent is not evicted",
		)
	}
	require.False(t, c.call(callOf(n-1, 1, 1, 200)).UnknownProgram)
	require.True(t, c.call(callOf(0, 1, 1, 201)).UnknownProgram)
}

func TestRefusedHellos(t *testing.T) {
	s := serve(t, refBackend, 0)
	protocol := fmt.Sprintf("The client speaks version 9 of the protocol, the worker version %d.", transport.Version)
	for want, edit := range map[string]func(h *proto.Hello){
		protocol:                                    func(h *proto.Hello) { h.Protocol = 9 },
		"The client has version 99 of the ABI":      func(h *proto.Hello) { h.Abi = 99 },
		`The client is build "x", the worker build`: func(h *proto.Hello) { h.Build = "x" },
	} {
		c := s.dial(t)
		h := goodHello()
		edit(h)
		c.send(transport.Hello, h, nil)
		text := c.fault()
		require.Contains(t, text, want)
		require.Contains(t, text, "pip install")
	}
	s.connect(t)
}

func TestBackendThatDoesNotLoad(t *testing.T) {
	c := serve(t, func() (executor.Backend, error) { return nil, errors.New("No libtorch here.") }, 0).dial(t)
	c.send(transport.Hello, goodHello(), nil)
	require.Equal(t, "No libtorch here.", c.fault())
}

func TestBreachesEndTheSessionOnly(t *testing.T) {
	s := serve(t, refBackend, 0)
	other := s.connect(t)
	other.upload(1, f32(1))
	bad := unary("aten::neg")
	bad.Inputs[0] = 5
	for _, x := range []struct {
		name, want string
		do         func(c *client)
	}{
		{"program", "input 0: buffer 5 of 2", func(c *client) { c.send(transport.Program, sent(1, bad), nil) }},
		{"bytes", "An upload to storage 1 says 9 bytes and has 4", func(c *client) {
			c.send(transport.Upload, &proto.Upload{Storage: 1, Bytes: 9}, f32(1))
		}},
		{"storage 0", "An upload to storage 0", func(c *client) { c.upload(0, f32(1)) }},
		{"body", "A Sync frame has no body", func(c *client) { c.send(transport.Sync, &proto.Sync{}, f32(1)) }},
		{"type", "A client must not send Done frames", func(c *client) { c.send(transport.Done, &proto.Done{}, nil) }},
		{"hello", "A client must not send Hello frames", func(c *client) { c.send(transport.Hello, goodHello(), nil) }},
		{"params", "A call has 2 parameters", func(c *client) {
			c.send(transport.Program, sent(1, unary("aten::neg")), nil)
			m := callOf(1, 1, 1, 2)
			m.Params = []uint64{1, 2}
			c.send(transport.Call, m, nil)
		}},
		{"input 0", "input 0 is storage 0", func(c *client) {
			c.send(transport.Program, sent(1, unary("aten::neg")), nil)
			c.send(transport.Call, callOf(1, 1, 0, 2), nil)
		}},
		{"base", "it differs from call 77, but call 0 is the last", func(c *client) {
			c.send(transport.Program, sent(1, unary("aten::neg")), nil)
			c.send(transport.Call, &proto.Call{Key: key(1), Base: 77, Delta: []byte{0, 0, 0, 0}}, nil)
		}},
		{"delta", "delta of a call", func(c *client) {
			c.send(transport.Program, sent(1, unary("aten::neg")), nil)
			c.call(callOf(1, 1, 1, 2))
			c.send(transport.Call, &proto.Call{Key: key(1), Base: c.seq, Delta: []byte{9}}, nil)
		}},
		{"garbage", "not a frame of this protocol", func(c *client) {
			_, _ = c.c.Net().Write([]byte(strings.Repeat("x", 64)))
		}},
		{"meta", "A Call frame does not decode", func(c *client) {
			c.send(transport.Call, &proto.Hello{Build: "\xc3\xa9", Protocol: 1}, nil)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := s.connect(t)
			x.do(c)
			require.Contains(t, c.fault(), x.want)
		})
	}
	b, st := other.read(1, 4)
	require.Nil(t, st)
	require.Equal(t, f32(1), b)
}

func TestFirstFrameMustBeHello(t *testing.T) {
	c := serve(t, refBackend, 0).dial(t)
	c.send(transport.Sync, &proto.Sync{}, nil)
	require.Contains(t, c.fault(), "The first frame is Sync, not Hello")
}

// panicking is an executor with a bug.
type panicking struct{ executor.Backend }

type panickingExecutor struct{ executor.Executor }

func (p panicking) New(device string) (executor.Executor, error) {
	x, err := p.Backend.New(device)
	return panickingExecutor{x}, err
}

func (panickingExecutor) Sync() error { panic("boom") }

func TestPanicEndsTheSessionOnly(t *testing.T) {
	s := serve(t, func() (executor.Backend, error) { b, err := refBackend(); return panicking{b}, err }, 0)
	other := s.connect(t)
	other.upload(1, f32(1))
	c := s.connect(t)
	c.send(transport.Sync, &proto.Sync{}, nil)
	require.Contains(t, c.fault(), "The worker has a bug: boom")
	require.Contains(t, s.log.String(), "panickingExecutor", "the log has the stack")
	b, st := other.read(1, 4)
	require.Nil(t, st)
	require.Equal(t, f32(1), b)
}

// closing sends a signal when an executor is closed.
type closing struct {
	executor.Backend
	closed chan struct{}
}

type closingExecutor struct {
	executor.Executor
	closed chan struct{}
}

func (c closing) New(device string) (executor.Executor, error) {
	x, err := c.Backend.New(device)
	return closingExecutor{x, c.closed}, err
}

func (c closingExecutor) Close() {
	c.Executor.Close()
	c.closed <- struct{}{}
}

// trims counts the calls of Trim.
type trims struct {
	all    atomic.Int32
	during atomic.Int32 // those during the last Sync
	before atomic.Int32 // those before its end
}

// trimming counts the calls of Trim, and makes a Sync take some time.
type trimming struct {
	executor.Backend
	n    *trims
	sync time.Duration
}

type slowExecutor struct {
	executor.Executor
	trimming
}

func (b trimming) New(device string) (executor.Executor, error) {
	x, err := b.Backend.New(device)
	return slowExecutor{x, b}, err
}

func (b trimming) Trim() { b.n.all.Add(1) }

func (x slowExecutor) Sync() error {
	time.Sleep(x.sync / 2) // one that had begun before this call is over
	began := x.n.all.Load()
	time.Sleep(x.sync)
	x.n.before.Store(x.n.all.Load())
	x.n.during.Store(x.n.all.Load() - began)
	return x.Executor.Sync()
}

func TestIdleServerFreesMemory(t *testing.T) {
	const idle = 50 * time.Millisecond
	var n trims
	s := start(t, &session.Server{Idle: idle, Load: func() (executor.Backend, error) {
		b, err := refBackend()
		return trimming{b, &n, 20 * idle}, err
	}})
	reaches := func(want int32) {
		t.Helper()
		require.Eventually(t, func() bool { return n.all.Load() == want }, time.Minute, time.Millisecond)
		time.Sleep(3 * idle)
		require.Equal(t, want, n.all.Load(), "once for each idle time")
	}
	c := s.connect(t)
	c.sync()
	require.Zero(t, n.during.Load(), "a long frame is not idle time")
	before := n.before.Load()
	reaches(before + 1)
	c.upload(1, f32(1))
	reaches(before + 2)
	require.NoError(t, c.c.Close())
	reaches(before + 3)
}

func TestSessionEndsWithItsConnection(t *testing.T) {
	closed := make(chan struct{}, 4)
	s := serve(t, func() (executor.Backend, error) { b, err := refBackend(); return closing{b, closed}, err }, 0)
	c := s.connect(t)
	c.upload(1, f32(1))
	require.NoError(t, c.c.Close())
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatal("the executor was not closed")
	}
	fresh := s.connect(t)
	require.Zero(t, fresh.sync().Storages, "a session's storages end with it")
}
