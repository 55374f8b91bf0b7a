// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package launch_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/kernels"
)

// compiledGraph is a graph as a client sends it.
type compiledGraph struct {
	g      *ir.Graph
	c      *codegen.Compiled
	key    byte
	groups int // number of groups with kernels
	trace  []uint64
	most   float64         // of the inputs
	roots  map[uint32]bool // by slot: the graph takes the square root of the storage's new content, a mean of squares
}

var keys byte

func compile(t *testing.T, text string) *compiledGraph {
	t.Helper()
	g, err := ir.Parse(text)
	require.NoError(t, err)
	g, err = passes.Run(g, passes.Options{Check: 1})
	require.NoError(t, err)
	c, err := codegen.Compile(g, codegen.Options{Kernels: true, Undrawn: true, Scratch: make([]bool, 1<<14)})
	require.NoError(t, err)
	keys++
	p := &compiledGraph{g: g, c: c, key: keys, trace: make([]uint64, 1<<16), most: 2, roots: map[uint32]bool{}}
	for i := range g.Nodes {
		if g.Nodes[i].Op != ir.OpCall || g.CallName(ir.NodeID(i)) != "aten::_foreach_sqrt" {
			continue
		}
		under := g.Operands(ir.NodeID(i))
		for _, o := range g.Outputs {
			p.roots[o.Slot] = p.roots[o.Slot] || slices.Contains(under, o.Value)
		}
	}
	for _, s := range c.Program.Steps {
		if _, ok := s.(*program.Fused); ok {
			p.groups++
		}
	}
	for _, s := range g.Syms {
		if s.Quotient == nil {
			p.trace[s.Slot] = uint64(s.First)
		}
	}
	p.numbers(0.5)
	return p
}

// message is the program as a client sends it.
func (p *compiledGraph) message() *proto.Program {
	key := make([]byte, proto.KeyBytes)
	key[0] = p.key
	return &proto.Program{Key: key, Words: program.Pack(p.c.Program.Words())}
}

// numbers sets all numbers of a program to v, or to a value near v.
func (p *compiledGraph) numbers(v float64) {
	for i := range p.g.Nodes {
		if n := &p.g.Nodes[i]; n.Op == ir.OpParam || n.Op == ir.OpScalar {
			p.trace[n.Slot] = word(p.g.Types[n.First].DType, n.Op == ir.OpScalar, v+v*float64(i%5)/8)
		}
	}
}

// word returns a number, or the element of a 0-dim tensor, as a word of a call.
func word(d ir.DType, element bool, v float64) uint64 {
	switch {
	case element && d == ir.F32:
		return uint64(math.Float32bits(float32(v)))
	case d.Is(ir.Floats):
		return math.Float64bits(v)
	}
	return uint64(math.Ceil(v))
}

// dims evaluates sizes or strides with the sizes of the trace.
func (p *compiledGraph) dims(list []ir.Dim) []int64 {
	var out []int64
	for _, d := range list {
		v := p.g.First(d)
		for i := range p.g.Syms {
			if s := &p.g.Syms[i]; d == ir.SymDim(i) && s.Quotient == nil {
				v = int64(p.trace[s.Slot])
			}
		}
		out = append(out, v)
	}
	return out
}

// bytes returns the size of a value.
func (p *compiledGraph) bytes(t ir.Type) int64 {
	sizes, reach, count := p.dims(t.Dims), int64(1), int64(1)
	for _, n := range sizes {
		count *= n
	}
	if t.Strides == nil || count == 0 {
		return count * int64(t.DType.Size())
	}
	for i, s := range p.dims(t.Strides) {
		reach += (sizes[i] - 1) * s
	}
	return reach * int64(t.DType.Size())
}

// content returns that many bytes of a dtype: floats of at most `most`, integers like small indices.
func content(r *rand.Rand, d ir.DType, bytes int64, most float64) []byte {
	out := make([]byte, 0, bytes)
	for int64(len(out)) < bytes {
		v := (2*r.Float64() - 1) * most
		switch d {
		case ir.F32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		case ir.F64:
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(v))
		case ir.BF16:
			out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(float32(v))>>16))
		case ir.F16:
			out = binary.LittleEndian.AppendUint16(out, uint16(r.IntN(2)<<15|r.IntN(16)<<10|r.IntN(1024)))
		default:
			out = append(append(out, byte(r.IntN(2))), make([]byte, d.Size()-1)...)
		}
	}
	return out
}

// call runs a program on inputs that depend on seed only, and returns its storages by slot, or its error.
func (c *client) call(p *compiledGraph, seed uint64) (map[uint32][]byte, *proto.Done) {
	c.t.Helper()
	params, err := p.c.Params(p.trace)
	require.NoError(c.t, err)
	r := rand.New(rand.NewPCG(seed, 1))
	at := map[uint32]uint64{} // storage of a slot
	for i := range p.g.Nodes {
		if n := &p.g.Nodes[i]; n.Op == ir.OpInput {
			t := p.g.Types[n.First]
			data := content(r, t.DType, p.bytes(t), p.most)
			if p.roots[n.Slot] { // a negative mean of squares gives NaN, and one near 0 makes rounding errors large
				for i := t.DType.Size() - 1; i < len(data); i += t.DType.Size() {
					data[i] &= 0x7f
				}
			}
			at[n.Slot] = c.upload(data)
		}
	}
	call := &proto.Call{Key: p.message().Key, Params: params}
	for _, slot := range p.c.Inputs {
		call.Inputs = append(call.Inputs, at[slot])
	}
	for _, slot := range p.c.Outputs {
		if at[slot] == 0 {
			c.id++
			at[slot] = c.id
		}
		call.Outputs = append(call.Outputs, at[slot])
	}
	done := &proto.Done{}
	c.ask(transport.Call, call, transport.Done, done)
	out := map[uint32][]byte{}
	var all []uint64
	for _, id := range at {
		all = append(all, id)
	}
	for _, o := range p.g.Outputs {
		if t := p.g.Types[o.Value]; t.Strides == nil && done.Failed == 0 {
			data, status := c.read(at[o.Slot], p.bytes(t))
			require.Nil(c.t, status)
			out[o.Slot] = data
		}
	}
	if done.Failed > 0 {
		for _, id := range call.Outputs {
			_, status := c.read(id, 0)
			require.Equal(c.t, done.Errors[0].Text, status.GetText())
		}
	}
	c.free(all)
	return out, done
}

func (c *client) program(p *compiledGraph) { c.send(transport.Program, p.message(), nil) }

// warm calls a program until none of its kernels is pending, and adds up the worker's counts.
func (c *client) warm(p *compiledGraph) *proto.Kernels {
	c.t.Helper()
	told := &proto.Kernels{}
	for end := time.Now().Add(4 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, done := c.call(p, 1)
		k := done.Kernels
		told.Compiled += k.GetCompiled()
		told.Cached += k.GetCached()
		told.CompileNanoseconds += k.GetCompileNanoseconds()
		told.Warning += k.GetWarning()
		require.Zero(c.t, k.GetWrong(), k.GetWrongText())
		if k.GetWaiting()+k.GetTried() == 0 {
			return told
		}
		require.True(c.t, time.Now().Before(end), "kernels are still pending")
	}
}

// same compares the storages of two runs: floats up to rounding, relative to the largest of them.
func (p *compiledGraph) same(t *testing.T, want, got map[uint32][]byte) {
	t.Helper()
	require.Len(t, got, len(want))
	for _, o := range p.g.Outputs {
		d := p.g.Types[o.Value].DType
		a, b := want[o.Slot], got[o.Slot]
		require.Len(t, b, len(a))
		tolerance := map[ir.DType]float64{ir.F32: 2e-6, ir.F64: 1e-13, ir.BF16: 0x1p-7, ir.F16: 0x1p-10}[d]
		if tolerance == 0 {
			require.Equal(t, a, b, "storage %d\n%s", o.Slot, p.g)
			continue
		}
		x, y, most := floats(d, a), floats(d, b), 0.
		for _, v := range x {
			if !math.IsInf(v, 0) && !math.IsNaN(v) {
				most = max(most, math.Abs(v))
			}
		}
		for i := range x {
			if x[i] == y[i] || math.IsNaN(x[i]) && math.IsNaN(y[i]) {
				continue
			}
			if !(math.Abs(x[i]-y[i]) <= tolerance*(8*math.Abs(x[i])+most)) {
				t.Fatalf("element %d of storage %d is %v, not %v\n%s", i, o.Slot, y[i], x[i], p.g)
			}
		}
	}
}

func floats(d ir.DType, data []byte) (out []float64) {
	for ; len(data) > 0; data = data[d.Size():] {
		switch d {
		case ir.F32:
			out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(data))))
		case ir.F64:
			out = append(out, math.Float64frombits(binary.LittleEndian.Uint64(data)))
		case ir.BF16:
			out = append(out, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data))<<16)))
		default:
			b := binary.LittleEndian.Uint16(data)
			v := math.Ldexp(float64(b&1023), -24)
			if e := int(b >> 10 & 31); e == 31 {
				v = math.Inf(1)
				if b&1023 != 0 {
					v = math.NaN()
				}
			} else if e > 0 {
				v = math.Ldexp(float64(1024+int(b&1023)), e-25)
			}
			out = append(out, math.Copysign(v, 1-2*float64(b>>15)))
		}
	}
	return out
}

// chain is an elementwise graph with a number, for vectors of any size.
const chain = `
graph model.py:1 sync {
  dims n=1000@0
  %0: f32[n]             = input 0
  %1: f32[n]             = input 1
  %2: f64[]              = param 1
  %3: f32[n]             = mul %0 %2
  %4: f32[n]             = add %3 %1
  %5: f32[n]             = tanh %4
  output %5 -> s2
}
`

// TestResults runs graphs of all kinds as operators while their kernels are compiled, and then as kernels.
func TestResults(t *testing.T) {
	compiler := &gxx{}
	c := start(t, executor.Kernels{Compiler: compiler.open, Folder: t.TempDir(), Threads: 2}).connect(t)
	graphs := map[string]string{"chain": chain}
	for name, text := range more {
		graphs[name] = text
	}
	files, err := filepath.Glob(filepath.Join("..", "replay", "budgets", "*.ir"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range append(files, filepath.Join("..", "replay", "corpus", "digits.ir")) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		graphs[filepath.Base(path)] = string(text)
	}
	launched := uint32(0)
	for name, text := range graphs {
		t.Run(name, func(t *testing.T) {
			c.t = t
			p := compile(t, text)
			if p.groups == 0 { // some graphs test that there is no group
				return
			}
			switch name {
			case "block.ir": // one number is the dropout probability of attention
				p.numbers(0)
			case "digits.ir": // larger weights make logits of 10,000, whose rounding decides about the smallest gradients
				p.most = 0.25
			case "masked_softmax.ir": // one number is a dropout probability
				p.trace[23] = 0
			case "f16 means":
				p.numbers(130000)
			}
			c.program(p)
			want, first := c.call(p, 1)
			require.Zero(t, first.Failed, "%v", first.Errors)
			c.warm(p)
			got, done := c.call(p, 1)
			require.Zero(t, done.Failed, "%v", done.Errors)
			require.EqualValues(t, p.groups, done.Kernels.Groups, "%v", done.Kernels)
			launched += done.Kernels.Launched
			p.same(t, want, got)
		})
	}
	require.NotZero(t, launched)
	t.Logf("%d kernels, %d texts", launched, compiler.calls.Load())
}

// TestTiering checks that a call runs operators until its kernels are ready, and that the worker counts this. Other
// sessions, and other workers with the same folder, use the kernels that one session compiled.
func TestTiering(t *testing.T) {
	compiler, cache := &gxx{gate: make(chan struct{})}, t.TempDir()
	r := start(t, executor.Kernels{Compiler: compiler.open, Folder: cache})
	c, p := r.connect(t), compile(t, chain)
	c.program(p)
	want, done := c.call(p, 1)
	for range 5 {
		require.Equal(t, &proto.Kernels{Waiting: 1}, clean(done.Kernels))
		_, done = c.call(p, 1)
	}
	close(compiler.gate)
	told := c.warm(p)
	require.EqualValues(t, 1, told.Compiled)
	require.Positive(t, told.CompileNanoseconds)
	got, done := c.call(p, 1)
	require.Equal(t, &proto.Kernels{Groups: 1, Launched: 1, Ops: 3}, clean(done.Kernels))
	p.same(t, want, got)

	other := r.connect(t)
	other.program(p)
	_, done = other.call(p, 1)
	require.EqualValues(t, 1, done.Kernels.Tried, "each session compares")
	got, done = other.call(p, 1)
	require.Equal(t, &proto.Kernels{Groups: 1, Launched: 1, Ops: 3}, clean(done.Kernels))
	p.same(t, want, got)

	again := start(t, executor.Kernels{Compiler: compiler.open, Folder: cache}).connect(t)
	again.program(p)
	told = again.warm(p)
	require.EqualValues(t, 1, told.Cached)
	require.Zero(t, told.Compiled)
	require.EqualValues(t, 1, compiler.calls.Load())
}

// clean returns a message without its times, which differ between runs.
func clean(k *proto.Kernels) *proto.Kernels {
	return &proto.Kernels{Groups: k.GetGroups(), Launched: k.GetLaunched(), Ops: k.GetOps(), Waiting: k.GetWaiting(),
		Unfused:  k.GetUnfused(),
		Compiled: k.GetCompiled(), Cached: k.GetCached(), Warning: k.GetWarning()}
}

// TestParameters checks calls with other parameters. New sizes may need another variant; until it is ready, the call
// runs operators. New numbers never need one. No size runs kernels of another size. If no launch supports the alignment
// of memory, operators run.
func TestParameters(t *testing.T) {
	compiler := &gxx{}
	c := start(t, executor.Kernels{Compiler: compiler.open}).connect(t)
	operators := start(t, executor.Kernels{Compiler: none}).connect(t)
	p := compile(t, chain)
	c.program(p)
	operators.program(p)
	sizes := []uint64{1000, 1, 0, 3, 8, 1002, 4096, 70000, 5}
	for range 3 { // more calls than are planned at once
		for i := range uint64(8) {
			sizes = append(sizes, 2000+4*i)
		}
	}
	texts := compiler.calls.Load()
	for i, n := range sizes {
		p.trace[0] = n
		p.trace[1] = math.Float64bits(float64(i))
		c.warm(p)
		for range 2 { // another number is another argument of the same launch
			want, _ := operators.call(p, 7)
			got, done := c.call(p, 7)
			require.EqualValues(t, 1, done.Kernels.Groups, "%d elements", n)
			p.same(t, want, got)
			p.trace[1] = math.Float64bits(float64(i)/8 - 1)
		}
	}
	texts = compiler.calls.Load() - texts
	require.LessOrEqual(t, texts, int64(3), "a text does not depend on a size")

	p.trace[0], p.trace[1] = 1001, math.Float64bits(0.25) // 4,004 bytes, see testdata/emulated.cpp
	c.warm(p)
	want, _ := operators.call(p, 7)
	got, done := c.call(p, 7)
	require.Equal(t, &proto.Kernels{Unfused: 1}, clean(done.Kernels))
	require.Equal(t, want, got)
}

func none() (kernels.Compiler, error) { return nil, errors.New("this test has no compiler") }

// TestFailures checks that programs run as operators if there is no compiler, or if it fails. The user gets one
// warning, with the path of the log.
func TestFailures(t *testing.T) {
	t.Run("text", func(t *testing.T) {
		compiler, cache := &gxx{wrong: "tanh"}, t.TempDir()
		r := start(t, executor.Kernels{Compiler: compiler.open, Folder: cache})
		c := r.connect(t)
		p, fine := compile(t, chain), compile(t, strings.ReplaceAll(chain, "tanh", "relu"))
		c.program(p)
		c.program(fine)
		told := c.warm(p)
		_, done := c.call(p, 1)
		told.Warning += done.Kernels.Warning
		require.EqualValues(t, 1, done.Kernels.Unfused)
		logs, err := filepath.Glob(filepath.Join(cache, "*.log"))
		require.NoError(t, err)
		require.Len(t, logs, 1)
		require.Equal(t, 1, strings.Count(told.Warning, "A fused kernel could not be made"), told.Warning)
		require.Contains(t, told.Warning, logs[0])
		require.Contains(t, r.log.String(), logs[0])
		text, err := os.ReadFile(logs[0])
		require.NoError(t, err)
		require.Contains(t, string(text), "error: the text is wrong")
		require.Contains(t, string(text), "tanhf")
		c.warm(fine)
		_, done = c.call(fine, 1)
		require.Equal(t, &proto.Kernels{Groups: 1, Launched: 1, Ops: 3}, clean(done.Kernels))
		require.EqualValues(t, 2, compiler.calls.Load(), "a text that does not compile is compiled again")
	})
	t.Run("compiler", func(t *testing.T) {
		r := start(t, executor.Kernels{Compiler: none})
		for range 2 { // the user of each session gets a warning
			c, p := r.connect(t), compile(t, chain)
			c.program(p)
			told := c.warm(p)
			_, done := c.call(p, 1)
			told.Warning += done.Kernels.Warning
			require.Equal(t, 1, strings.Count(told.Warning, "this test has no compiler"), told.Warning)
			_, done = c.call(p, 1)
			require.Equal(t, &proto.Kernels{Unfused: 1}, clean(done.Kernels))
		}
		require.Equal(t, 1, strings.Count(r.log.String(), "this test has no compiler"))
	})
	t.Run("folder", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		compiler := &gxx{}
		r := start(t, executor.Kernels{Compiler: compiler.open, Folder: filepath.Join(file, "kernels")})
		c, p := r.connect(t), compile(t, chain)
		c.program(p)
		require.EqualValues(t, 1, c.warm(p).Compiled)
		require.Contains(t, r.log.String(), "compiled kernels are not kept on disk")
	})
}

// TestCorruptFile checks that a kernel with a corrupt cubin is compiled again.
func TestCorruptFile(t *testing.T) {
	compiler, cache := &gxx{}, t.TempDir()
	first := start(t, executor.Kernels{Compiler: compiler.open, Folder: cache}).connect(t)
	p := compile(t, chain)
	first.program(p)
	first.warm(p)
	want, _ := first.call(p, 1)
	files, err := filepath.Glob(filepath.Join(cache, "*.cubin"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	data, err := os.ReadFile(files[0])
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(files[0], data, 0o600))
	c := start(t, executor.Kernels{Compiler: compiler.open, Folder: cache}).connect(t)
	c.program(p)
	require.EqualValues(t, 1, c.warm(p).Compiled)
	got, done := c.call(p, 1)
	require.EqualValues(t, 1, done.Kernels.Groups)
	require.Equal(t, want, got)
}

// TestManyPrograms checks that the number of kernels that compile at once is limited, for any number of sessions, and
// that no call waits for them.
func TestManyPrograms(t *testing.T) {
	compiler := &gxx{gate: make(chan struct{})}
	r := start(t, executor.Kernels{Compiler: compiler.open, Threads: 2})
	type pair struct {
		c *client
		p *compiledGraph
	}
	var all []pair
	for i, op := range []string{"exp", "sin", "cos", "sigmoid", "relu", "abs", "neg", "floor"} {
		c := r.connect(t)
		for j := range 2 {
			p := compile(t, strings.ReplaceAll(strings.ReplaceAll(chain, "tanh", op), "add", []string{"add", "maximum"}[j]))
			c.program(p)
			_, done := c.call(p, uint64(i))
			require.EqualValues(t, 1, done.Kernels.Waiting)
			all = append(all, pair{c, p})
		}
	}
	close(compiler.gate)
	for i, a := range all {
		a.c.warm(a.p)
		_, done := a.c.call(a.p, uint64(i))
		require.EqualValues(t, 1, done.Kernels.Groups)
	}
	require.EqualValues(t, 16, compiler.calls.Load())
	require.LessOrEqual(t, compiler.most.Load(), int64(2))
}

// TestStepsThatFail checks that a group runs as operators if the device refuses its launch, and that the report names
// the kernel and the step. For missing or small storages, the operators report the error. The session continues.
func TestStepsThatFail(t *testing.T) {
	compiler := &gxx{stuck: "sinf"}
	c := start(t, executor.Kernels{Compiler: compiler.open}).connect(t)
	p, fine := compile(t, strings.ReplaceAll(chain, "tanh", "sin")), compile(t, chain)
	c.program(p)
	c.program(fine)
	c.warm(fine)
	for end := time.Now().Add(4 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, done := c.call(p, 1)
		require.Zero(t, done.Failed)
		if k := done.Kernels; k.Wrong > 0 {
			const want = `^Kernel 0 of step 1 could not be launched: The emulation can't launch a kernel: status 701\.`
			require.Regexp(t, want, k.WrongText)
			require.Zero(t, k.WrongStep)
			break
		}
		require.EqualValues(t, 1, done.Kernels.Waiting)
		require.True(t, time.Now().Before(end))
	}
	_, done := c.call(p, 1)
	require.Equal(t, &proto.Kernels{Unfused: 1}, clean(done.Kernels))
	_, done = c.call(fine, 1)
	require.EqualValues(t, 1, done.Kernels.Groups)

	params, err := fine.c.Params(fine.trace)
	require.NoError(t, err)
	small := c.upload(make([]byte, 3996))
	for _, in := range [][]uint64{{900, 901}, {small, 900}} {
		done := &proto.Done{}
		c.ask(transport.Call, &proto.Call{Key: fine.message().Key, Params: params, Inputs: in, Outputs: []uint64{902}},
			transport.Done, done)
		require.NotZero(t, done.Failed)
		require.Contains(t, fmt.Sprint(done.Errors), map[bool]string{true: "3996", false: "does not exist"}[in[0] == small])
		require.EqualValues(t, 1, done.Kernels.Unfused)
		c.send(transport.Resume, &proto.Resume{}, nil)
	}
}
