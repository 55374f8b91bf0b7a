// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package program_test compares programs with graphs. It runs the program of any graph that a pass may make on the
// reference backend. The program must leave the bytes of ir/eval in every storage, free its buffers, and change no
// other storage.
package program_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/tests/graphs"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/ref"
)

// run executes a program on the reference backend and returns all storages by slot.
func run(t require.TestingT, c *codegen.Compiled, params []uint64, inputs map[uint32][]byte) map[uint32][]byte {
	out, failed := runOn(t, ref.Backend{}, c, params, inputs)
	require.Empty(t, failed, c.Text())
	return out
}

// runOn runs a program on any backend. It also returns the errors.
func runOn(
	t require.TestingT, on executor.Backend, c *codegen.Compiled, params []uint64, inputs map[uint32][]byte,
) (map[uint32][]byte, []executor.StepError) {
	x, err := on.New("")
	require.NoError(t, err)
	defer x.Close()
	id := func(slot uint32) uint64 { return uint64(slot) + 1 }
	slots := map[uint32]bool{}
	for slot, data := range inputs {
		slots[slot] = true
		b, err := x.UploadBegin(id(slot), uint64(len(data)))
		require.NoError(t, err)
		copy(b, data)
		require.NoError(t, x.UploadEnd(id(slot)))
	}
	require.NoError(t, c.Program.Validate())
	p, err := x.Prepare(c.Program, c.Program.Words())
	require.NoError(t, err)
	words, err := c.Params(params)
	require.NoError(t, err)
	var ins, outs []uint64
	for i, slot := range c.Inputs {
		ins = append(ins, uint64(c.Program.Inputs[i]), id(slot))
	}
	for i, slot := range c.Outputs {
		slots[slot] = true
		outs = append(outs, uint64(c.Program.Outputs[i]), id(slot))
	}
	failed, errs := x.Run(p, words, ins, outs, nil, 1)
	require.Equal(t, failed > 0, len(errs) > 0)
	out := map[uint32][]byte{}
	if failed > 0 {
		return out, errs
	}
	for slot := range slots {
		out[slot] = contents(t, x, id(slot))
	}
	return out, nil
}

// contents reads a storage of unknown size.
func contents(t require.TestingT, x executor.Executor, id uint64) (data []byte) {
	size := int64(0)
	for step := int64(1 << 12); step > 0; {
		v := &proto.Read{Storage: id, Dtype: uint32(ir.U8), Sizes: []int64{size + step}, Strides: []int64{1}}
		if x.Read(v, func(b []byte) error { data = append([]byte{}, b...); return nil }) == nil {
			size += step
		} else {
			step /= 2
		}
	}
	return data
}

// leaks lists the buffers that a program makes and neither frees nor returns.
func leaks(c *codegen.Compiled) (out []uint32) {
	alive := map[uint32]bool{}
	for _, s := range c.Program.Steps {
		switch k := s.(type) {
		case *program.Call:
			for _, r := range k.Results {
				if r != 0 {
					alive[c.Program.Tensors[r-1].Buffer] = true
				}
			}
		case *program.Copy:
			alive[c.Program.Tensors[k.Dst].Buffer] = true
		case *program.Alloc:
			alive[k.Buffer] = true
		case *program.Clone:
			alive[k.To] = true
		case *program.Free:
			delete(alive, k.Buffer)
		}
	}
	for _, b := range append(append([]uint32{}, c.Program.Inputs...), c.Program.Outputs...) {
		delete(alive, b)
	}
	for b := range alive {
		out = append(out, b)
	}
	return out
}

// check compiles a graph, runs it, compares, and returns the program.
func check(t require.TestingT, r *random, g *ir.Graph) *codegen.Compiled {
	require.NoError(t, ir.Verify(g))
	want, err := eval.Run(g, r.params, r.inputs)
	require.NoError(t, err)
	c, err := codegen.Compile(g, codegen.Options{Scratch: r.scratch})
	require.NoError(t, err, g.String())
	again, err := codegen.Compile(g, codegen.Options{Scratch: r.scratch})
	require.NoError(t, err)
	require.Equal(t, c.Text(), again.Text())
	from := map[uint32]uint32{} // buffer -> slot of its storage
	for i, b := range c.Program.Inputs {
		from[b] = c.Inputs[i]
	}
	for i, b := range c.Program.Outputs {
		if slot, ok := from[b]; ok {
			require.Equal(t, slot, c.Outputs[i], "two storages share a buffer\n%s", c.Text())
		}
	}
	got := run(t, c, r.params, r.inputs)
	show := func(slot uint32) string {
		return fmt.Sprintf("storage %d\n%s\nparams %v\n%s", slot, g, r.params, c.Text())
	}
	for slot, data := range want {
		require.Equal(t, words(data), words(got[slot]), show(slot))
	}
	for slot, data := range r.inputs {
		if _, replaced := want[slot]; !replaced && !r.scratch[slot] {
			require.Equal(t, words(data), words(got[slot]), show(slot))
		}
	}
	for _, b := range leaks(c) {
		// Only a buffer that was copied into an output may live until the end of the program.
		require.True(t, copiedLast(c, b), "buffer %d leaks\n%s", b, c.Text())
	}
	return c
}

// copiedLast reports whether the last use of a buffer is a copy into an output.
func copiedLast(c *codegen.Compiled, b uint32) bool {
	outputs := map[uint32]bool{}
	for _, o := range c.Program.Outputs {
		outputs[o] = true
	}
	for i := len(c.Program.Steps) - 1; i >= 0; i-- {
		switch k := c.Program.Steps[i].(type) {
		case *program.Clone:
			if outputs[k.To] && k.From == b {
				return true
			}
		case *program.Copy:
			if outputs[c.Program.Tensors[k.Dst].Buffer] && c.Program.Tensors[k.Src].Buffer == b {
				return true
			}
		default:
			return false
		}
	}
	return false
}

func words(b []byte) string {
	s := fmt.Sprintf("%d bytes:", len(b))
	for len(b) >= 4 {
		s += fmt.Sprintf(" %08x", binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	return s + fmt.Sprintf(" %x", b)
}

// donations counts the own ops that are computed over an operand, in place and with out=.
func donations(g *ir.Graph, c *codegen.Compiled) (self, out int) {
	own := map[int32]bool{}
	for _, n := range g.Nodes {
		own[n.Record] = n.Op.Own()
	}
	for i, s := range c.Program.Steps {
		if call, ok := s.(*program.Call); ok && own[int32(c.Program.Record(i))] {
			switch form, isOut := ir.FormOver(call.Op); {
			case isOut:
				out++
			case form != "":
				self++
			}
		}
	}
	return self, out
}

func TestAnyGraph(t *testing.T) {
	var self, out int
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		c := check(t, r, r.g)
		a, b := donations(r.g, c)
		self, out = self+a, out+b
	})
	require.Greater(t, self, 10, "too few ops are computed in place")
	require.Greater(t, out, 2, "too few ops are computed over an operand other than the first")
}

func TestAnyGraphAfterPasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		g, err := passes.Run(r.g, passes.Options{Check: 2}) // 2: with the nodes in another order
		require.NoError(t, err, r.g.String())
		check(t, r, g)
	})
}

// TestAnyGraphOfOwnOps runs graphs over all own ops and dtypes.
func TestAnyGraphOfOwnOps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := graphs.Own(t)
		if _, err := eval.Run(p.Graph, p.Params, p.Inputs); err != nil {
			require.ErrorContains(t, err, "by zero") // of integers: such a graph has no result
			t.Skip()
		}
		check(t, &random{g: p.Graph, params: p.Params, inputs: p.Inputs, scratch: make([]bool, 64)}, p.Graph)
	})
}

// TestOrderTakesNoMoreMemory compares the peaks of programs with and without the pass.
func TestOrderTakesNoMoreMemory(t *testing.T) {
	moved := 0
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		before, err := passes.Run(r.g, passes.Options{Only: []string{"dce"}})
		require.NoError(t, err)
		after, err := passes.Run(before, passes.Options{Only: []string{"order"}})
		require.NoError(t, err)
		was, is := peak(t, before, r), peak(t, after, r)
		require.LessOrEqual(t, is.Bytes, was.Bytes, "%s\nbecomes\n%s", before, after)
		if before.String() != after.String() {
			moved++
		}
		check(t, r, after)
	})
	require.Greater(t, moved, 5)
}

// TestOrderTakesLessMemory checks that a mask that is only used at the end is made there, not at the start.
func TestOrderTakesLessMemory(t *testing.T) {
	g, err := ir.Parse(`graph b.py:3 none {
  dims n=64@0
  %0: f32[n,n] = input 0
  %1: f32[n,n] = input 1
  %2: b8[n,n] = gt %1 %0
  %3: f32[n,n] = exp %0
  %4: f32[n,n] = aten.mm %3 %3
  %5: f32[n] = sum %4 [0] false
  %6: f32[n,n] = where %2 %0 %1
  output %5 -> s2
  output %6 -> s3
}`)
	require.NoError(t, err)
	r := &random{params: []uint64{64}}
	require.EqualValues(t, 9*64*64, peak(t, g, r).Bytes)
	g, err = passes.Run(g, passes.Options{Only: []string{"order"}})
	require.NoError(t, err)
	require.EqualValues(t, 8*64*64, peak(t, g, r).Bytes)
}

func peak(t require.TestingT, g *ir.Graph, r *random) codegen.Peak {
	c, err := codegen.Compile(g, codegen.Options{Scratch: r.scratch})
	require.NoError(t, err)
	params, err := c.Params(r.params)
	require.NoError(t, err)
	p, err := c.Peak(params)
	require.NoError(t, err)
	return p
}
