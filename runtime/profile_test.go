// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/compile"
	"github.com/mycelya/mycelya/trace"
)

// profileLine is a line of a profile.
type profileLine struct {
	track, name, place                         string
	device, begin, end, caller, call, programs int64
}

func profileOf(t *testing.T, r *Local) (lines []profileLine, dropped int64) {
	t.Helper()
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		require.NoError(t, err)
		return n
	}
	for text := range strings.Lines(r.Profiled()) {
		f := strings.Split(strings.TrimSuffix(text, "\n"), "\t")
		if f[0] == "dropped" {
			return lines, number(f[1])
		}
		require.Len(t, f, 9)
		lines = append(lines, profileLine{f[0], f[7], f[8], number(f[1]), number(f[2]), number(f[3]), number(f[4]),
			number(f[5]), number(f[6])})
	}
	t.Fatal("a profile has no last line")
	return nil, 0
}

// profiledRelu is a trace whose recording began an instant ago.
func profiledRelu(out, caller uint64) *trace.Trace {
	t := relu(1, out)
	t.Callers, t.Began, t.Closed = []uint64{caller}, now()-1000, now()
	return t
}

func TestProfileIsOnTheClientsClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{
		"the same clock": 0, "a clock an hour ahead": time.Hour, "a clock a day behind": -24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			r, w := start(t)
			began := now()
			r.Profile(true)
			require.NoError(t, r.Flush(0, profiledRelu(10, 99), func() {}))
			require.NoError(t, r.Flush(0, relu(1, 11), func() {})) // was recorded before the profile
			w.greet()
			w.next(transport.Program, new(proto.Program))
			var c proto.Call
			h := w.next(transport.Call, &c)
			require.True(t, c.Timed)
			theirs := uint64(now() + int64(ahead))
			w.send(transport.Done, h.Seq, &proto.Done{Times: &proto.Times{
				Began: theirs, Ended: theirs + 300, Steps: []uint64{1 + 50, 200},
			}}, nil)
			c.Reset()
			second := w.next(transport.Call, &c)
			require.False(t, c.Timed)
			w.send(transport.Done, second.Seq, &proto.Done{}, nil)
			ticket, err := r.Sync(0, trace.Place{})
			require.NoError(t, err)
			h2 := w.next(transport.Sync, new(proto.Sync))
			w.send(transport.SyncReply, h2.Seq, &proto.SyncReply{}, nil)
			require.NoError(t, wait(t, r, ticket))
			r.Profile(false)
			ended := now()
			require.Contains(t, string(r.Bill(nil)), `{"file":"train.py","line":12,"cuts":{},`)
			require.Contains(t, string(r.Bill(nil)), `"worker_seconds":2e-7,`)
			r.ResetMetrics()
			require.Equal(t, "[]", string(r.Bill(nil)))

			lines, dropped := profileOf(t, r)
			require.Zero(t, dropped)
			by := map[string][]profileLine{}
			for _, l := range lines {
				by[l.track] = append(by[l.track], l)
				require.LessOrEqual(t, began-1000, l.begin, "%+v", l)
				require.LessOrEqual(t, l.begin, l.end)
				require.LessOrEqual(t, l.end, ended, "%+v", l)
				require.Zero(t, l.device)
			}
			require.Len(t, by["record"], 1)
			require.Equal(t, "1 op", by["record"][0].name)
			require.Equal(t, "train.py:12", by["record"][0].place)
			require.Len(t, by["compile"], 1)
			require.Equal(t, "compile program 1 of 1 op", by["compile"][0].name)
			require.Len(t, by["worker"], 1)
			worker := by["worker"][0]
			require.EqualValues(t, 300, worker.end-worker.begin)
			require.EqualValues(t, h.Seq, worker.call)
			require.Len(t, by["op"], 1)
			op := by["op"][0]
			require.Equal(t, "relu", op.name)
			require.Equal(t, "train.py:12", op.place)
			require.EqualValues(t, 99, op.caller)
			require.EqualValues(t, 50, op.begin-worker.begin)
			require.EqualValues(t, 200, op.end-op.begin)
			var sent []string
			for _, l := range by["send"] {
				sent = append(sent, strings.Fields(l.name)[0])
			}
			require.Equal(t, []string{"Program", "Call", "Call", "Sync"}, sent)
		})
	}
}

func TestNextProfileForgetsTheLast(t *testing.T) {
	r, w := start(t)
	require.Empty(t, r.Profiled())
	r.Profile(true)
	require.NoError(t, r.Flush(0, profiledRelu(10, 0), func() {}))
	w.greet()
	w.next(transport.Program, new(proto.Program))
	h := w.next(transport.Call, new(proto.Call))
	r.Profile(false) // before the answer, which is left out
	lines, _ := profileOf(t, r)
	for _, l := range lines {
		require.NotEqual(t, "op", l.track)
	}
	r.Profile(true)
	w.send(transport.Done, h.Seq, &proto.Done{}, nil) // of a worker that has no times
	ticket, err := r.Sync(0, trace.Place{})
	require.NoError(t, err)
	h = w.next(transport.Sync, new(proto.Sync))
	w.send(transport.SyncReply, h.Seq, &proto.SyncReply{}, nil)
	require.NoError(t, wait(t, r, ticket))
	r.Profile(false)
	lines, _ = profileOf(t, r)
	require.Len(t, lines, 1)
	require.Equal(t, "send", lines[0].track)
	r.Profile(true)
	r.Profile(false)
	lines, _ = profileOf(t, r)
	require.Empty(t, lines)
}

func TestProfileIsBounded(t *testing.T) {
	var p profile
	p.on.Store(1)
	times := &proto.Times{Steps: make([]uint64, 2*1000)}
	for range maxProfiled / 1000 {
		p.answer(&profiled{began: 1}, 0, times)
	}
	require.Less(t, len(p.calls), maxProfiled/1000)
	require.NotZero(t, p.dropped)
	require.Equal(t, p.dropped+len(p.calls)*1004, p.events)
	kept := len(p.calls)
	p.answer(&profiled{began: 1}, 0, times)
	p.frame(0, false, transport.Call, 1)()
	require.Len(t, p.calls, kept)
	require.Empty(t, p.frames)
}

func TestNamesOfSteps(t *testing.T) {
	calls := func(op string) program.Step { return &program.Call{Op: op} }
	free, kernel, dst := &program.Free{}, &program.Kernel{}, &program.Copy{}
	fused := func(kernels, plain uint32) program.Step { return &program.Fused{Kernels: kernels, Plain: plain} }
	p := &program.Program{}
	e := &compile.Entry{}
	add := func(s program.Step, op string) {
		record := uint32(0)
		if op != "" {
			e.Ops = append(e.Ops, op)
			record = uint32(len(e.Ops))
		}
		p.Steps, p.Records = append(p.Steps, s), append(p.Records, record)
	}
	add(calls("aten::mm"), "aten::linear")
	add(fused(2, 4), "")
	add(kernel, "")
	add(free, "")
	add(calls("aten::mul.Tensor"), "aten::mul.Tensor")
	add(calls("aten::add.Tensor"), "aten::add.Tensor")
	add(free, "")
	add(calls("aten::mul.Scalar"), "aten::mul.Scalar")
	add(dst, "aten::copy_")
	add(dst, "")
	add(calls("mycelya::set_flag"), "mycelya::set_flag")
	names := stepNames(&call{entry: e, variant: &compile.Variant{Compiled: &codegen.Compiled{Program: p}}})
	require.Equal(t, []string{
		"mm", "", "fused mul ×2, add", "", "mul", "add", "", "mul", "copy_", "copy", "mycelya::set_flag",
	}, names)
	var many []string
	for i := range 9 {
		many = append(many, fmt.Sprintf("aten::op%d.out", i))
	}
	e.Ops, p.Records, p.Steps = nil, nil, nil
	add(fused(1, 9), "")
	add(kernel, "")
	for _, op := range many {
		add(calls(op), op)
	}
	names = stepNames(&call{entry: e, variant: &compile.Variant{Compiled: &codegen.Compiled{Program: p}}})
	require.Equal(t, "fused op0, op1, op2, op3, op4, op5, 3 more", names[1])
}
