// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/capture/asm"
	"github.com/mycelya/mycelya/client/mailbox"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/local"
	"github.com/mycelya/mycelya/trace"
)

// workerBin is the real worker, run with the reference backend.
var workerBin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mycelya-client-test")
	if err != nil {
		log.Fatal(err)
	}
	workerBin = filepath.Join(dir, "mycelya-worker")
	build := exec.Command("go", "build", "-o", workerBin, "../worker/cmd/mycelya-worker")
	if out, err := build.CombinedOutput(); err != nil {
		log.Fatalf("building the worker: %v\n%s", err, out)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// device is a runtime with device 0 open on a worker of its own.
type device struct {
	testing.TB
	*runtime.Local
	names *capture.Table
}

func open(t testing.TB, environment ...string) *device {
	names := capture.NewTable()
	r := runtime.NewLocal(names, func(runtime.Paths) (provider.Provider, error) {
		return local.Provider{Paths: local.Spec{Worker: workerBin, Backend: "ref"}}, nil
	})
	request := provider.Request{Spec: provider.Spec{Device: "cpu"}}
	require.NoError(t, r.Open(0, runtime.Paths{Request: request}, environment))
	t.Cleanup(func() { r.Close(0) })
	return &device{t, r, names}
}

func (d *device) trace(text string) *trace.Trace {
	d.Helper()
	tr, err := asm.Parse(text, d.names)
	require.NoError(d, err)
	return tr
}

func (d *device) flush(text string) {
	d.Helper()
	require.NoError(d, d.Flush(0, d.trace(text), func() {}))
}

func (d *device) put(id uint64, data []byte) error {
	return d.ended(d.Upload(0, id, data, trace.Place{}))
}

// ended waits for what may have left a ticket.
func (d *device) ended(ticket uint64, err error) error {
	for err == runtime.ErrPending {
		err = d.Wait(ticket, time.Second)
	}
	return err
}

// info returns facts of the worker, which it starts.
func (d *device) info() ([]byte, error) {
	if err := d.ended(d.Start(0)); err != nil {
		return nil, err
	}
	return d.DeviceInfo(0)
}

func (d *device) upload(id uint64, values ...float32) {
	d.Helper()
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	require.NoError(d, d.put(id, b))
}

func (d *device) wait(ticket uint64, err error) error {
	d.Helper()
	require.NoError(d, err)
	for range 6000 {
		if err := d.Wait(ticket, 20*time.Millisecond); err != runtime.ErrPending {
			return err
		}
	}
	d.Fatal("a ticket never ended")
	return nil
}

func (d *device) read(id uint64, n int64) ([]float32, error) {
	d.Helper()
	dst := make([]byte, 4*n)
	v := runtime.View{Storage: id, DType: ir.F32, Sizes: []int64{n}, Strides: []int64{1}}
	err := d.wait(d.Read(0, v, dst, trace.Place{}))
	out := make([]float32, n)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(dst[4*i:]))
	}
	return out, err
}

func (d *device) want(id uint64, values ...float32) {
	d.Helper()
	got, err := d.read(id, int64(len(values)))
	require.NoError(d, err)
	require.Equal(d, values, got)
}

func (d *device) sync() error {
	d.Helper()
	return d.wait(d.Sync(0, trace.Place{}))
}

func (d *device) metric(name string) float64 {
	var m map[string]any
	require.NoError(d, json.Unmarshal(d.Metrics(), &m))
	return m[name].(float64)
}

func TestFirstLight(t *testing.T) {
	d := open(t)
	d.upload(1, 1, -2, 3)
	d.upload(2, 10, 20, 30)
	d.flush(`
bind 1 2 3 4
dead %2
cut read train.py:9
aten::mul.Tensor %0:f32[3] %1:f32[3] -> %2:f32[3]   # train.py:1
aten::add_.Tensor %0! %2 1                          # train.py:2
aten::neg %0:f32[2]{1}+1 -> %3:f32[2]               # train.py:3
`)
	d.want(1, 11, -42, 93)
	d.want(2, 10, 20, 30)
	d.want(4, 42, -93)
	_, err := d.read(3, 3)
	require.ErrorContains(t, err, "Storage 3 doesn't exist") // died before the cut: it never existed there
	info, err := d.info()
	require.NoError(t, err)
	require.Contains(t, string(info), `"device":"cpu"`)
}

func TestOtherSizesAndNumbersHit(t *testing.T) {
	d := open(t)
	step := "bind %d %d\n" +
		"aten::mul.Tensor %%0:f32[%d] num=%g -> %%1:f32[%d]\naten::add.Tensor %%1 %%0 1 -> %%2:f32[%d]\n"
	for i, n := range []int{3, 5, 2} {
		in, out := uint64(10*i+1), uint64(10*i+2)
		values := make([]float32, n)
		want := make([]float32, n)
		scale := 0.5 + float64(i)
		for j := range values {
			values[j] = float32(j + 1)
			want[j] = values[j] * float32(scale)
		}
		d.upload(in, values...)
		d.flush(fmt.Sprintf(step, in, out, n, scale, n, n))
		d.want(out, want...)
	}
	require.EqualValues(t, 1, d.metric("program_misses"))
	require.EqualValues(t, 2, d.metric("program_hits"))
}

func TestVariantsEndInTheirUnion(t *testing.T) {
	d := open(t)
	d.upload(1, 1, 2)
	run := func(base int, dead string) {
		d.flush(fmt.Sprintf("bind 1 %d %d\n%s\n"+
			"aten::neg %%0:f32[2] -> %%1:f32[2]\naten::mul.Tensor %%1 %%1 -> %%2:f32[2]", base, base+1, dead))
	}
	run(10, "dead %1")
	run(20, "dead %2")
	run(30, "")
	run(40, "dead %1")
	run(50, "dead %1 %2")
	d.want(11, 1, 4)
	d.want(20, -1, -2)
	d.want(30, -1, -2)
	d.want(31, 1, 4)
	d.want(41, 1, 4)
	require.EqualValues(t, 2, d.metric("program_misses")) // {2}, then {1,2}
	require.EqualValues(t, 3, d.metric("program_hits"))
	_, err := d.read(40, 2)
	require.ErrorContains(t, err, "Storage 40 doesn't exist")
}

func TestStoragesAreFreed(t *testing.T) {
	d := open(t)
	d.upload(1, 1, 2)
	d.upload(2, 1, 2)
	d.upload(3, 1, 2)
	d.flush("bind 1 7\ndead %0\nfrees 2\naten::neg %0:f32[2] -> %1:f32[2]")
	d.flush("frees 3")
	d.want(7, -1, -2)
	for _, id := range []uint64{1, 2, 3} {
		_, err := d.read(id, 2)
		require.ErrorContains(t, err, fmt.Sprintf("Storage %d doesn't exist", id))
	}
}

func TestInplaceOnADyingInput(t *testing.T) {
	d := open(t)
	d.upload(1, 1, 2)
	d.flush("bind 1 7\ndead %0\naten::neg_ %0:f32[2]!\naten::mul.Tensor %0 num=2 -> %1:f32[2]")
	d.want(7, -2, -4)
	require.NoError(t, d.sync())
}

func TestErrorsNameTheLine(t *testing.T) {
	d := open(t)
	d.upload(1, 1, 2)
	d.flush("bind 1 2 3 4\naten::frobnicate %0:f32[2] -> %1:f32[2]  # model.py:12\n" +
		"aten::neg %1 -> %2:f32[2]\naten::neg %0 -> %3:f32[2]")
	want := "The reference worker doesn't know aten::frobnicate with these arguments.\n" +
		"  in aten::frobnicate(f32[2]), recorded at model.py:12"
	for _, id := range []uint64{2, 3} {
		_, err := d.read(id, 2)
		require.EqualError(t, err, want)
		var e *runtime.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, runtime.KindNotImplemented, e.Kind)
	}
	d.flush("bind 1\naten::neg_ %0:f32[2]!") // nothing has an effect before the error is raised
	lost, err := d.Raise(0)
	require.EqualError(t, err, want)
	require.EqualValues(t, 2, lost)
	d.want(1, 1, 2)
	require.NoError(t, d.sync())
	for _, id := range []uint64{2, 3, 4} {
		_, err := d.read(id, 2)
		require.EqualError(t, err, want, "storage %d was not made", id)
	}

	d.flush("bind 3 5\naten::neg %0:f32[2] -> %1:f32[2]") // what needs it fails with the first cause
	_, err = d.read(5, 2)
	require.EqualError(t, err, want)
	_, err = d.Raise(0)
	require.EqualError(t, err, want)

	d.flush("bind 1 6\naten::frobnicate %0:f32[2] -> %1:f32[2]  # model.py:20")
	require.ErrorContains(t, d.sync(), "recorded at model.py:20")
	_, err = d.Raise(0)
	require.ErrorContains(t, err, "recorded at model.py:20")
	require.NoError(t, d.sync()) // once
	require.EqualValues(t, 3, d.metric("errors"))
}

func TestATraceThatDoesNotCompileLosesOnlyItsResults(t *testing.T) {
	d := open(t)
	d.upload(1, 1, 2)
	tr := d.trace("bind 1 2\ncut read a.py:3\naten::neg %0:f32[2] -> %1:f32[2]")
	tr.Skeleton[2] |= 0xff << 8 // no such dtype
	require.NoError(t, d.Flush(0, tr, func() {}))
	_, err := d.read(2, 2)
	require.EqualError(t, err, "BUG: mycelya could not compile the 1 ops recorded before a.py:3: "+
		"decoding a trace: record 0: word 2: unknown dtype 255.\n"+
		"Their results are lost; please report this.")
	_, err = d.Raise(0)
	require.ErrorContains(t, err, "could not compile")
	require.NoError(t, d.sync())
	d.flush("bind 2 3\naten::neg %0:f32[2] -> %1:f32[2]")
	_, err = d.read(3, 2)
	require.ErrorContains(t, err, "could not compile")
	_, err = d.Raise(0)
	require.ErrorContains(t, err, "could not compile")
	d.upload(4, 5, 6)
	d.flush("bind 4 5\naten::neg %0:f32[2] -> %1:f32[2]")
	d.want(5, -5, -6)
}

func (d *device) pid() int {
	b, err := d.info()
	require.NoError(d, err)
	var info struct{ PID int }
	require.NoError(d, json.Unmarshal(b, &info))
	return info.PID
}

// stopped reports whether each thread of a process has stopped: a signal takes effect some time after it was sent.
func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, file := range threads {
		stat, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(stat), ") T ") {
			return false
		}
	}
	return err == nil && len(threads) > 0
}

// ended reports whether a process has ended. The new parent of an orphan may never ask how.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestAKilledWorker(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	d := open(t)
	d.upload(1, 1, 2)
	require.NoError(t, d.sync())
	require.NoError(t, syscall.Kill(d.pid(), syscall.SIGSTOP))
	require.Eventually(t, func() bool { return stopped(d.pid()) }, time.Minute, time.Millisecond)
	ticket, err := d.Sync(0, trace.Place{})
	require.NoError(t, err)
	require.ErrorIs(t, d.Wait(ticket, 10*time.Millisecond), runtime.ErrPending)
	pid := d.pid()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	err = d.wait(ticket, nil)
	require.ErrorContains(t, err, fmt.Sprintf("mycelya:0 is lost: the process of its session (%d, of worker local:", pid))
	require.ErrorContains(t, err, ") was ended by signal killed, before its first call. Its last programs "+
		"and calls are in ")
	require.ErrorContains(t, err, " All tensors on it are gone. Call torch.mycelya.restart(0) to use the device again.")
	want := err.Error()
	require.Contains(t, want, d.Ended(0))
	require.EqualError(t, d.Flush(0, d.trace("bind 1 2\naten::neg %0:f32[2] -> %1:f32[2]"), func() {}), want)
	require.EqualError(t, d.put(9, []byte{1}), want)
	require.EqualError(t, d.put(9, make([]byte, 64<<20)), want)
	_, err = d.Sync(0, trace.Place{})
	require.EqualError(t, err, want)
	var e *runtime.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, runtime.KindLost, e.Kind)
}

func TestAMissingWorker(t *testing.T) {
	r := runtime.NewLocal(capture.NewTable(), func(runtime.Paths) (provider.Provider, error) {
		return local.Provider{Paths: local.Spec{Worker: "/nowhere/mycelya-worker", Backend: "ref"}}, nil
	})
	require.NoError(t, r.Open(0, runtime.Paths{}, nil))
	defer r.Close(0)
	d := &device{t, r, nil}
	_, err := d.info()
	require.ErrorContains(t, err, "mycelya:0 could not start its worker: ")
	require.ErrorContains(t, err, "/nowhere/mycelya-worker")
}

func TestCloseEndsTheWorker(t *testing.T) {
	d := open(t)
	pid := d.pid()
	require.NotEmpty(t, d.FDs())
	ticket, err := d.Sync(0, trace.Place{})
	require.NoError(t, err)
	d.Close(0)
	require.Eventually(t, func() bool { return ended(pid) }, time.Minute, 10*time.Millisecond)
	_ = d.wait(ticket, nil) // it ends, either way
	_, err = d.Sync(0, trace.Place{})
	require.ErrorContains(t, err, "mycelya:0 has been stopped")
	require.Empty(t, d.FDs())
	require.NoError(t, d.Open(0, runtime.Paths{}, nil)) // and again
	require.NotEqual(t, pid, d.pid())
}

func TestLargeUpload(t *testing.T) {
	d := open(t)
	data := make([]byte, 40<<20)
	for i := range data {
		data[i] = byte(i * 7)
	}
	require.NoError(t, d.put(1, data))
	back := make([]byte, len(data))
	v := runtime.View{Storage: 1, DType: ir.U8, Sizes: []int64{int64(len(data))}, Strides: []int64{1}}
	require.NoError(t, d.wait(d.Read(0, v, back, trace.Place{})))
	require.True(t, string(data) == string(back))
	require.NoError(t, d.put(2, nil))
	empty := runtime.View{Storage: 2, DType: ir.U8, Sizes: []int64{0}, Strides: []int64{1}}
	require.NoError(t, d.wait(d.Read(0, empty, nil, trace.Place{})))
}

// rss is the resident memory of this process in bytes.
func rss(t testing.TB) int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc here: resident memory can't be read")
	}
	var size, resident int64
	_, err = fmt.Sscan(string(b), &size, &resident)
	require.NoError(t, err)
	return resident * int64(os.Getpagesize())
}

func TestUploadsLeaveNoMemoryBehind(t *testing.T) {
	d := open(t)
	data := make([]byte, 16<<20)
	for i := range data {
		data[i] = 1
	}
	require.NoError(t, d.put(1, data))
	require.NoError(t, d.sync())
	before := rss(t)
	for i := range uint64(64) { // 1 GiB in pieces
		require.NoError(t, d.put(10+i, data))
		d.flush(fmt.Sprintf("frees %d", 10+i))
	}
	require.NoError(t, d.sync())
	require.Less(t, rss(t)-before, int64(64<<20))
}

func TestDumpOfAStep(t *testing.T) {
	dir := t.TempDir()
	d := open(t, "MYCELYA_DUMP="+dir, "MYCELYA_CHECK=2")
	d.upload(1, 1, 2)
	d.flush("bind 1 2\ndead %1\ncut step train.py:7\n" +
		"aten::neg %0:f32[2] -> %1:f32[2]  # a.py:1\naten::neg %0 -> %2:f32[2]  # a.py:2")
	require.NoError(t, d.sync())
	folders, err := filepath.Glob(filepath.Join(dir, "001-train.py:7-*"))
	require.NoError(t, err)
	require.Len(t, folders, 1)
	for _, name := range []string{"00-capture.ir", "plan.txt"} {
		b, err := os.ReadFile(filepath.Join(folders[0], name))
		require.NoError(t, err)
		require.NotEmpty(t, b)
	}
	b, err := os.ReadFile(filepath.Join(dir, "summary.txt"))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(b), "001  train.py:7"))
}

func TestSettings(t *testing.T) {
	r := runtime.New(capture.NewTable(), nil, mailbox.New)
	for env, want := range map[string]string{
		"MYCELYA_DUMP=-,pases":  `MYCELYA_DUMP has no word "pases"`,
		"MYCELYA_CHECK=9":       `MYCELYA_CHECK is "9"; it is 0`,
		"MYCELYA_REPLAY=no":     `MYCELYA_REPLAY is "no"`,
		"MYCELYA_AHEAD=far":     `MYCELYA_AHEAD is "far"; it is on`,
		"MYCELYA_CHOOSE=gpu":    `MYCELYA_CHOOSE is "gpu"; it is on`,
		"MYCELYA_LOCAL=far":     `MYCELYA_LOCAL is "far"; it is on`,
		"MYCELYA_FETCH=never":   `MYCELYA_FETCH is "never"; it is on`,
		"MYCELYA_KERNELS=yes":   `MYCELYA_KERNELS is "yes"`,
		"MYCELYA_EAGER=yes":     `MYCELYA_EAGER is "yes"; it is on or 1`,
		"MYCELYA_PASSES=-fuzzy": `MYCELYA_PASSES is "-fuzzy"`,
	} {
		err := r.Open(0, runtime.Paths{}, []string{env})
		var e *runtime.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, runtime.KindValue, e.Kind)
		require.ErrorContains(t, err, want)
	}
}

// hundred is a trace of 100 records, as of a small training step.
func hundred(d *device, n int) *trace.Trace {
	var b strings.Builder
	fmt.Fprintf(&b, "bind 1 2\n")
	fmt.Fprintf(&b, "aten::mul.Tensor %%0:f32[%d] num=0.5 -> %%1:f32[%d]  # t.py:1\n", n, n)
	for i := 2; i <= 100; i++ {
		if i%4 == 0 {
			fmt.Fprintf(&b, "aten::neg %%%d -> %%%d:f32[%d]  # t.py:%d\n", i-1, i, n, i)
		} else {
			fmt.Fprintf(&b, "aten::add.Tensor %%%d %%%d 1 -> %%%d:f32[%d]  # t.py:%d\n", i-1, i/2, i, n, i)
		}
	}
	t := d.trace(b.String())
	for i := range t.Bindings {
		if i > 0 && i < 100 {
			t.Alive[i] = 0
		}
		if i > 0 {
			t.Bindings[i] = uint64(100 + i)
		}
	}
	return t
}

// BenchmarkFlushHit measures the time for which the caller of a flush waits: the copy of a 100-record trace into the
// queue.
func BenchmarkFlushHit(b *testing.B) {
	d := open(b)
	d.upload(1, 1, 2)
	tr := hundred(d, 2)
	require.NoError(b, d.Flush(0, tr, func() {}))
	require.NoError(b, d.sync())
	b.ReportMetric(float64(len(tr.Skeleton)), "words")
	var spent time.Duration
	b.ResetTimer()
	for range b.N {
		start := time.Now()
		err := d.Flush(0, tr, func() {})
		spent += time.Since(start)
		if err == runtime.ErrPending {
			require.NoError(b, d.wait(d.Room(0, trace.Place{})))
		} else {
			require.NoError(b, err)
		}
	}
	b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "µs/flush")
	require.NoError(b, d.sync())
}

// BenchmarkMiss compiles a 100-record trace each time.
func BenchmarkMiss(b *testing.B) {
	d := open(b)
	d.upload(1, 1, 2)
	tr := hundred(d, 2)
	d.ResetMetrics()
	b.ResetTimer()
	for i := range b.N {
		tr.Key[0] = uint64(i)
		if err := d.Flush(0, tr, func() {}); err == runtime.ErrPending {
			require.NoError(b, d.wait(d.Room(0, trace.Place{})))
		}
	}
	require.NoError(b, d.sync())
	b.ReportMetric(d.metric("compile_seconds")*1e6/float64(b.N)/100, "µs/op")
}
