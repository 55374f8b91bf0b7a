// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/compile"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/settings"
	"github.com/mycelya/mycelya/trace"
)

func metricsOf(t testing.TB, r *Local) map[string]any {
	var m map[string]any
	require.NoError(t, json.Unmarshal(r.Metrics(), &m))
	return m
}

func TestAForgottenProgramIsSentAgain(t *testing.T) {
	r, w := start(t)
	require.NoError(t, r.Flush(0, relu(1, 2), func() {}))
	require.NoError(t, r.Flush(0, relu(2, 3), func() {}))
	w.greet()
	var p proto.Program
	w.next(transport.Program, &p)
	first := w.next(transport.Call, new(proto.Call))
	w.next(transport.Call, new(proto.Call)) // waits behind it
	w.send(transport.Done, first.Seq, &proto.Done{UnknownProgram: true}, nil)
	var again proto.Program
	w.next(transport.Program, &again)
	require.Equal(t, p.Key, again.Key)
	var call proto.Call
	h := w.next(transport.Call, &call)
	require.Equal(t, first.Seq, h.Seq)
	require.Equal(t, []uint64{1}, call.Inputs)
	require.Equal(t, []uint64{2}, call.Outputs)
	require.Equal(t, []uint64{4}, call.Params)
	require.EqualValues(t, 1, metricsOf(t, r)["programs_resent"])
}

// TestAMessageIsCountedBeforeItsAnswer: a reset of the metrics after an answer also resets the counts of the request.
func TestAMessageIsCountedBeforeItsAnswer(t *testing.T) {
	r, w := start(t)
	for i := range 1000 {
		ticket, err := r.Sync(0, trace.Place{})
		require.NoError(t, err)
		if i == 0 {
			w.greet()
		}
		h := w.next(transport.Sync, new(proto.Sync))
		require.EqualValues(t, i+1, metricsOf(t, r)["messages_sent"])
		w.send(transport.SyncReply, h.Seq, &proto.SyncReply{}, nil)
		require.NoError(t, wait(t, r, ticket))
	}
}

func TestCreditsRunOutAndComeBack(t *testing.T) {
	r, w := start(t)
	for i := range uint64(core.MaxCalls - 1) {
		require.NoError(t, r.Flush(0, relu(1, 10+i), func() {}))
	}
	require.ErrorIs(t, r.Flush(0, relu(1, 5), func() {}), ErrPending)
	ticket, err := r.Room(0, trace.Place{})
	require.NoError(t, err)
	require.ErrorIs(t, r.Wait(ticket, time.Millisecond), ErrPending)
	w.greet()
	w.next(transport.Program, new(proto.Program))
	h := w.next(transport.Call, new(proto.Call))
	require.ErrorIs(t, r.Wait(ticket, time.Millisecond), ErrPending)
	w.send(transport.Done, h.Seq, &proto.Done{}, nil)
	require.NoError(t, wait(t, r, ticket))
	ticket, err = r.Room(0, trace.Place{}) // there is room
	require.NoError(t, err)
	require.NoError(t, wait(t, r, ticket))

	require.ErrorIs(t, r.Flush(0, relu(1, 6), func() {}), ErrPending)
	ticket, err = r.Room(0, trace.Place{})
	require.NoError(t, err)
	w.exit = provider.Exit{Code: 3, Detail: "one\ntwo\n"}
	w.die()
	require.EqualError(t, wait(t, r, ticket), "mycelya:0 is lost: its worker (fake:1) ended in an unknown way. "+
		"All tensors on it are gone. "+
		"Call torch.mycelya.restart(0) to use the device again.\nThe end of its log:\n  one\n  two")
}

// ended waits for what may have left a ticket.
func ended(r *Local) func(ticket uint64, err error) error {
	return func(ticket uint64, err error) error {
		for err == ErrPending {
			err = r.Wait(ticket, time.Second)
		}
		return err
	}
}

func upload0(r *Local, id uint64, data []byte) error {
	return ended(r)(r.Upload(0, id, data, trace.Place{}))
}

// TestUploadsBeyondTheLimitWait: with too many bytes under way, a caller waits until its own are sent.
func TestUploadsBeyondTheLimitWait(t *testing.T) {
	r, w := start(t)
	const fit = catalogue.UploadUnderWay / catalogue.UploadCopied
	piece := make([]byte, catalogue.UploadCopied)
	for i := range uint64(fit) {
		_, err := r.Upload(0, i, piece, trace.Place{})
		require.NoError(t, err, "no caller waits")
	}
	ticket, err := r.Upload(0, fit, piece, trace.Place{})
	require.ErrorIs(t, err, ErrPending)
	w.greet()
	for i := range uint64(fit + 1) {
		require.ErrorIs(t, r.Wait(ticket, 0), ErrPending)
		storage, data := w.upload()
		require.Equal(t, i, storage)
		require.Len(t, data, catalogue.UploadCopied)
	}
	require.NoError(t, ended(r)(ticket, ErrPending))
	done := make(chan error)
	go func() {
		for range 100 {
			if err := upload0(r, 100, piece); err != nil {
				done <- err
				return
			}
		}
	}()
	time.Sleep(20 * time.Millisecond)
	w.die() // without this the test would wait for ever
	require.ErrorContains(t, <-done, "mycelya:0 is lost")
}

func TestALargeUploadIsSentFromTheCallersMemory(t *testing.T) {
	r, w := start(t)
	data := make([]byte, catalogue.UploadCopied+1)
	data[catalogue.UploadCopied] = 9
	done := make(chan error)
	go func() { done <- upload0(r, 5, data) }()
	w.greet()
	select {
	case <-done:
		t.Fatal("the call returned while its memory was in use")
	case <-time.After(20 * time.Millisecond):
	}
	_, got := w.upload()
	require.NoError(t, <-done)
	require.True(t, bytes.Equal(data, got))
	go func() { done <- upload0(r, 6, data) }()
	w.next(transport.Begin, new(proto.Upload))
	w.die()
	require.ErrorContains(t, <-done, "mycelya:0 is lost")
}

func bytesView(n int64) View {
	return View{Storage: 1, DType: ir.U8, Sizes: []int64{n}, Strides: []int64{1}}
}

func TestReadsAnswerAndCancel(t *testing.T) {
	r, w := start(t)
	dst := make([]byte, 4)
	ticket, err := r.Read(0, bytesView(4), dst, trace.Place{})
	require.NoError(t, err)
	w.greet()
	h := w.next(transport.Read, new(proto.Read))
	require.ErrorIs(t, r.Wait(ticket, time.Millisecond), ErrPending)
	w.send(transport.ReadReply, h.Seq, &proto.ReadReply{Bytes: 4}, []byte{1, 2, 3, 4})
	require.NoError(t, wait(t, r, ticket))
	require.Equal(t, []byte{1, 2, 3, 4}, dst)
	require.ErrorContains(t, r.Wait(ticket, 0), "BUG: ticket")

	ticket, err = r.Read(0, bytesView(4), dst, trace.Place{})
	require.NoError(t, err)
	h = w.next(transport.Read, new(proto.Read))
	r.Cancel(ticket)
	w.send(transport.ReadReply, h.Seq, &proto.ReadReply{Bytes: 4}, []byte{9, 9, 9, 9})
	ticket, err = r.Sync(0, trace.Place{})
	require.NoError(t, err)
	h = w.next(transport.Sync, new(proto.Sync))
	w.send(transport.SyncReply, h.Seq, &proto.SyncReply{}, nil)
	require.NoError(t, wait(t, r, ticket))
	require.Equal(t, []byte{1, 2, 3, 4}, dst, "a cancelled read was written")

	ticket, err = r.Read(0, bytesView(4), dst, trace.Place{})
	require.NoError(t, err)
	h = w.next(transport.Read, new(proto.Read))
	w.send(transport.ReadReply, h.Seq, &proto.ReadReply{Bytes: 3}, []byte{9, 9, 9})
	require.ErrorContains(t, wait(t, r, ticket), "the worker answered a read of 4 bytes with 3 bytes")
	require.Equal(t, []byte{1, 2, 3, 4}, dst)
}

func TestCancelWhileBytesArrive(t *testing.T) {
	r, w := start(t)
	const n = 8 << 20 // more than a socket holds
	dst := make([]byte, n)
	ticket, err := r.Read(0, bytesView(n), dst, trace.Place{})
	require.NoError(t, err)
	w.greet()
	h := w.next(transport.Read, new(proto.Read))
	arriving := make(chan error)
	body := bytes.Repeat([]byte{5}, n)
	go func() { arriving <- w.conn.Send(transport.ReadReply, h.Seq, &proto.ReadReply{Bytes: n}, body) }()
	time.Sleep(time.Millisecond)
	r.Cancel(ticket)
	after := bytes.Clone(dst)
	require.NoError(t, <-arriving)
	ticket, err = r.Sync(0, trace.Place{})
	require.NoError(t, err)
	h = w.next(transport.Sync, new(proto.Sync))
	w.send(transport.SyncReply, h.Seq, &proto.SyncReply{}, nil)
	require.NoError(t, wait(t, r, ticket))
	require.True(t, bytes.Equal(after, dst), "dst was written after the cancel")
}

// TestAFailureIsRaisedOnce: waits fail until a caller raises the error. Then the worker is told.
func TestAFailureIsRaisedOnce(t *testing.T) {
	r, w := start(t)
	require.NoError(t, r.Flush(0, relu(1, 2), func() {}))
	w.greet()
	w.next(transport.Program, new(proto.Program))
	h := w.next(transport.Call, new(proto.Call))
	lost, err := r.Raise(0)
	require.NoError(t, err, "nothing has failed")
	require.Zero(t, lost)
	cause := &proto.Status{Kind: 2, Text: "out of range.\n", Call: h.Seq, Step: 0}
	w.send(transport.Done, h.Seq, &proto.Done{Failed: 2, Errors: []*proto.Status{cause, {Kind: 1, Text: "later"}}}, nil)
	const want = "out of range.\n  in aten::relu(f32[4]), recorded at train.py:12"
	sync := func() error {
		ticket, err := r.Sync(0, trace.Place{})
		require.NoError(t, err)
		q := w.next(transport.Sync, new(proto.Sync))
		w.send(transport.SyncReply, q.Seq, &proto.SyncReply{}, nil)
		return wait(t, r, ticket)
	}
	for range 2 {
		err := sync()
		require.EqualError(t, err, want)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, KindIndex, e.Kind)
	}
	lost, err = r.Raise(0)
	require.EqualError(t, err, want)
	require.EqualValues(t, 2, lost, "the first storage that was not made")
	w.next(transport.Resume, new(proto.Resume))
	require.NoError(t, sync())
	_, err = r.Raise(0)
	require.NoError(t, err, "it was raised")

	ticket, err := r.Read(0, bytesView(4), make([]byte, 4), trace.Place{})
	require.NoError(t, err)
	q := w.next(transport.Read, new(proto.Read))
	w.send(transport.ReadReply, q.Seq, &proto.ReadReply{Status: cause}, nil)
	require.EqualError(t, wait(t, r, ticket), want, "what it has poisoned raises it")
}

func TestOneHashTwoSkeletons(t *testing.T) {
	r, w := start(t)
	require.NoError(t, r.Flush(0, relu(1, 2), func() {}))
	other := relu(1, 3)
	other.Skeleton = []uint64{8}
	require.NoError(t, r.Flush(0, other, func() {}))
	require.NoError(t, r.Flush(0, relu(1, 4), func() {}))
	w.greet()
	var p1, p2 proto.Program
	w.next(transport.Program, &p1)
	var c proto.Call
	w.next(transport.Call, &c)
	w.next(transport.Program, &p2)
	require.NotEqual(t, p1.Key, p2.Key)
	w.next(transport.Call, &c)
	require.Equal(t, p2.Key, c.Key)
	w.next(transport.Call, &c)
	require.Equal(t, p1.Key, c.Key)
	m := metricsOf(t, r)
	require.EqualValues(t, 1, m["hash_collisions"])
	require.EqualValues(t, 1, m["program_hits"])
	require.EqualValues(t, map[string]any{"read": 3.0}, m["cuts"])
	r.ResetMetrics()
	require.EqualValues(t, 0, metricsOf(t, r)["program_hits"])
}

func TestAWorkerThatRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		hello *proto.Hello
		want  string
	}{
		"error": {&proto.Hello{Error: "There is no CUDA device 7."},
			"mycelya:0 could not start its worker: There is no CUDA device 7."},
		"build": {&proto.Hello{Protocol: transport.Version, Build: "0.0.9", Abi: proto.ABIVersion},
			fmt.Sprintf("mycelya:0 could not start its worker: The worker is build 0.0.9 (wire version %d), "+
				"this package is build %s (wire version %[1]d). Reinstall the package.", transport.Version, transport.Build)},
		"abi": {&proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: 99},
			fmt.Sprintf("mycelya:0 could not start its worker: The worker's ABI is 99, this package's is %d. "+
				"Reinstall the package.", proto.ABIVersion)},
	} {
		t.Run(name, func(t *testing.T) {
			r, w := start(t)
			w.hello = c.hello
			ticket, err := r.Sync(0, trace.Place{})
			require.NoError(t, err)
			w.greet()
			require.EqualError(t, wait(t, r, ticket), c.want)
		})
	}
}

func TestAWorkerThatEndsWithALastWord(t *testing.T) {
	r, w := start(t)
	ticket, err := r.Sync(0, trace.Place{})
	require.NoError(t, err)
	w.greet()
	w.next(transport.Sync, new(proto.Sync))
	w.exit = provider.Exit{Code: 1, Reason: provider.Crashed}
	w.once.Do(func() { close(w.ended) }) // first: the client waits for a limited time to learn it
	w.send(transport.Hello, 0, &proto.Hello{Error: "The client sent a program that breaks the rules."}, nil)
	w.die()
	require.EqualError(t, wait(t, r, ticket), "mycelya:0 is lost: its worker (fake:1) ended with code 1. "+
		"It said: The client sent a program that breaks the rules. "+
		"All tensors on it are gone. Call torch.mycelya.restart(0) to use the device again.")
}

func TestOurOwnMistakesEndInErrors(t *testing.T) {
	r, w := start(t)
	bad := relu(1, 2)
	bad.Skeleton = []uint64{13}
	require.NoError(t, r.Flush(0, bad, func() {}))
	ticket, err := r.Sync(0, trace.Place{})
	if err == nil {
		w.greet()
		err = wait(t, r, ticket)
	}
	require.ErrorContains(t, err, "BUG: unlucky. Please report this.")
	require.ErrorContains(t, r.Open(0, Paths{}, nil), "mycelya:0 is open already.")
	_, err = r.Sync(3, trace.Place{})
	require.EqualError(t, err, "mycelya:3 is not open.")
}

func TestUnknownVariablesAreNamed(t *testing.T) {
	require.Equal(t, "MYCELYA_DUMP", settings.Nearest("MYCELYA_DUNP"))
	require.Equal(t, "MYCELYA_PASSES", settings.Nearest("MYCELYA_PASS"))
	s, err := settings.ParseSettings([]string{"PATH=/bin", "MYCELYA_LOG=error", "MYCELYA_CHECK=2", "MYCELYA_DUNP=-"})
	require.NoError(t, err)
	require.Equal(t, 2, s.Check)
	require.True(t, s.Log.Enabled(t.Context(), slog.LevelError))
	require.False(t, s.Log.Enabled(t.Context(), slog.LevelWarn))
}

func TestEagerTakesTwoPairsOfWords(t *testing.T) {
	for value, want := range map[string]bool{"": false, "on": true, "1": true, "off": false, "0": false} {
		s, err := settings.ParseSettings([]string{"MYCELYA_EAGER=" + value, "MYCELYA_KERNELS=on"})
		require.NoError(t, err)
		require.Equal(t, want, s.Eager)
		c := compile.Compiler{Settings: s, Device: "cpu"}
		require.Equal(t, !want, c.Kernels())
	}
}

// TestEagerIsLeftAsOftenAsEntered counts the blocks of several threads.
func TestEagerIsLeftAsOftenAsEntered(t *testing.T) {
	c := compile.Compiler{Settings: &settings.Settings{}, Device: "cpu"}
	require.True(t, c.Kernels())
	c.SetEager(true)
	c.SetEager(true)
	c.SetEager(false)
	require.False(t, c.Kernels())
	c.SetEager(false)
	require.True(t, c.Kernels())
	c.SetEager(false) // of a block that was entered before the machine was restarted
	c.SetEager(true)
	require.False(t, c.Kernels())
}

func TestTimeouts(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": time.Hour, "0": 0, "1.5": 1500 * time.Millisecond, "60": time.Minute,
	} {
		s, err := settings.ParseSettings([]string{"MYCELYA_TIMEOUT=" + value})
		require.NoError(t, err)
		require.Equal(t, want, s.Silence)
	}
	for _, value := range []string{"-1", "0.5", "nan", "inf", "1h", "1e10"} {
		_, err := settings.ParseSettings([]string{"MYCELYA_TIMEOUT=" + value})
		require.ErrorContains(t, err, "MYCELYA_TIMEOUT is "+strconv.Quote(value))
		require.ErrorContains(t, err, "3600 if not set")
	}
}

func TestViewBytes(t *testing.T) {
	n, err := (&View{DType: ir.F64, Sizes: []int64{3, 5}}).Bytes()
	require.NoError(t, err)
	require.EqualValues(t, 120, n)
	for _, v := range []View{{DType: 99}, {DType: ir.F32, Sizes: []int64{-1}},
		{DType: ir.F32, Sizes: []int64{1 << 40, 1 << 40}}} {
		_, err := v.Bytes()
		require.ErrorContains(t, err, "BUG: a read of")
	}
}

// BenchmarkFlushHit is the whole client side of a repeated trace of 100 records, about 700 words and 300 parameters:
// the caller's part, and per flush all of it (look-up, words compared, parameters gathered, message sent, answer
// taken).
func BenchmarkFlushHit(b *testing.B) {
	r, w := start(b)
	go func() {
		w.greet()
		for {
			h, err := w.conn.Next()
			if err != nil {
				return
			}
			if h.Type == transport.Call && w.conn.Send(transport.Done, h.Seq, &proto.Done{}, nil) != nil {
				return
			}
		}
	}()
	t := relu(1, 2)
	t.Skeleton, t.Params, t.Origins = make([]uint64, 700), make([]uint64, 300), make([]uint32, 200)
	t.Skeleton[0], t.Params[0] = 7, 4
	require.NoError(b, ended(r)(r.Start(0)))
	var inCall time.Duration
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		err := r.Flush(0, t, func() {})
		inCall += time.Since(began)
		if err == ErrPending {
			ticket, err := r.Room(0, trace.Place{})
			require.NoError(b, err)
			require.NoError(b, wait(b, r, ticket))
		}
	}
	b.ReportMetric(float64(inCall.Nanoseconds())/1e3/float64(b.N), "µs/call")
}

// TestLightProgramsLeaveTheClientACore: on a shared processor, a light call tells the worker to leave one core to the
// client. Reads decide only whether the client's thread looks for the answer.
func TestLightProgramsLeaveTheClientACore(t *testing.T) {
	for _, c := range []struct {
		name        string
		device      string
		blocks      uint32
		host        string
		environment []string
		want        uint32
	}{
		{"near", "cpu", 1, "", nil, 1},
		{"near over TCP", "cpu", 0, transport.Host(), nil, 1},
		{"far", "cpu", 0, "another", nil, 0},
		{"gpu", "cuda:0", 1, "", []string{"MYCELYA_KERNELS=on"}, 0},
		{"operators", "cpu", 1, "", []string{"MYCELYA_KERNELS=off"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, w := start(t, c.environment...)
			w.hello.Device, w.hello.Blocks, w.hello.Host = c.device, c.blocks, c.host
			first := true
			busy := func(size uint64, hurry uint32) uint32 { // of a call with such sizes
				tr := relu(1, 2)
				tr.Params[0] = size
				require.NoError(t, r.Flush(0, tr, func() {}))
				if first {
					first = false
					w.greet()
					w.next(transport.Program, new(proto.Program))
				}
				var m proto.Call
				h := w.next(transport.Call, &m)
				if goruntime.NumCPU() > 1 {
					require.EqualValues(t, hurry, r.queue(0).credits.Hurry.Load())
				}
				w.send(transport.Done, h.Seq, &proto.Done{}, nil)
				return m.Busy
			}
			require.Equal(t, c.want, busy(4, 0), "before the first read")
			for range 2 {
				ticket, err := r.Read(0, bytesView(4), make([]byte, 4), trace.Place{})
				require.NoError(t, err)
				h := w.next(transport.Read, new(proto.Read))
				w.send(transport.ReadReply, h.Seq, &proto.ReadReply{Bytes: 4}, []byte{1, 2, 3, 4})
				require.NoError(t, wait(t, r, ticket))
				require.Equal(t, c.want, busy(4, c.want))
				require.Zero(t, busy(1<<22, 0), "the same program, but heavy")
				for i := 2; i < lately; i++ {
					require.Equal(t, c.want, busy(4, c.want), "call %d after a read", i)
				}
				require.Equal(t, c.want, busy(4, 0), "long after a read")
			}
		})
	}
}
