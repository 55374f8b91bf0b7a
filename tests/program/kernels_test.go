// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/graphs"
	"github.com/mycelya/mycelya/worker/conformance"
	"github.com/mycelya/mycelya/worker/ref"
)

// TestKernelsKeepMeaning runs random graphs on the reference backend, with groups as operators and as kernels, and
// compares every byte. One of the two divides a mean of floats before rounding, the other after it. So graphs with a
// mean run without a comparison.
func TestKernelsKeepMeaning(t *testing.T) {
	kernels, unfused := 0, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		p := graphs.Own(t)
		after, err := passes.Run(p.Graph, passes.Options{Check: 1})
		require.NoError(t, err, p.Graph.String())
		compile := func(kernels bool) *codegen.Compiled {
			c, err := codegen.Compile(after, codegen.Options{Scratch: make([]bool, 64), Kernels: kernels})
			require.NoError(t, err, after.String())
			return c
		}
		plain, fused := compile(false), compile(true)
		for _, u := range fused.Unfused {
			unfused[u.Why]++
		}
		kernels += len(fused.Program.Kernels)
		if len(fused.Program.Kernels) == 0 || !plain.Holds(p.Params) {
			return
		}
		want, _ := runOn(t, ref.Backend{}, plain, p.Params, p.Inputs)
		got, _ := runOn(t, ref.Backend{Kernels: true}, fused, p.Params, p.Inputs)
		if len(want) == 0 || hasMean(after) {
			return
		}
		sameOutputs(t, after, fused, want, got)
	})
	// 60 runs of 100 graphs had 21 to 45 kernels each.
	require.Greater(t, kernels, 10, "too few graphs had kernels: %v", unfused)
	t.Log(kernels, unfused)
}

// sameOutputs compares the storages after two runs of a graph.
func sameOutputs(t *rapid.T, g *ir.Graph, c *codegen.Compiled, want, got map[uint32][]byte) {
	for _, o := range g.Outputs {
		if g.Types[o.Value].Strides != nil {
			continue // bytes between the elements are undefined
		}
		if d := g.Types[o.Value].DType; !graphs.Same(d, want[o.Slot], got[o.Slot]) {
			t.Fatalf("storage %d is %x, not %x\n%s\n%s", o.Slot, got[o.Slot], want[o.Slot], g, c.Text())
		}
	}
}

func hasMean(g *ir.Graph) bool {
	for i := range g.Nodes {
		if g.Nodes[i].Op == ir.OpMean {
			return true
		}
	}
	return false
}

// TestKernelsThatWrite compares graphs with views, writes in place, updates and resizes with the meaning of ir/eval.
func TestKernelsThatWrite(t *testing.T) {
	kernels, unfused := 0, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		g, err := passes.Run(r.g, passes.Options{Check: 1})
		require.NoError(t, err, r.g.String())
		want, err := eval.Run(r.g, r.params, r.inputs)
		require.NoError(t, err)
		c, err := codegen.Compile(g, codegen.Options{Scratch: r.scratch, Kernels: true})
		require.NoError(t, err, g.String())
		for _, u := range c.Unfused {
			unfused[u.Why]++
		}
		if kernels += len(c.Program.Kernels); len(c.Program.Kernels) == 0 || !c.Holds(r.params) {
			return
		}
		got, _ := runOn(t, ref.Backend{Kernels: true}, c, r.params, r.inputs)
		show := func(slot uint32) string {
			return fmt.Sprintf("storage %d\n%s\nparams %v\n%s", slot, g, r.params, c.Text())
		}
		for _, o := range r.g.Outputs {
			same := graphs.Same(r.g.Types[o.Value].DType, want[o.Slot], got[o.Slot])
			require.True(t, same, "%s\nis %s, not %s", show(o.Slot), words(got[o.Slot]), words(want[o.Slot]))
		}
		for slot, data := range r.inputs {
			if _, replaced := want[slot]; !replaced && !r.scratch[slot] {
				require.Equal(t, words(data), words(got[slot]), show(slot))
			}
		}
	})
	require.Greater(t, kernels, 5, "too few graphs had kernels: %v", unfused)
	t.Log(kernels, unfused)
}

// TestKernelsKeepMeaningInLibtorch runs random graphs on the CPU worker's executor, with groups as operators and as
// kernels, and compares every byte. Some graphs run without a comparison: those with sums of floats, which depend on
// the order, and those with functions that differ between libraries in the last digit. The end-to-end tests compare
// those within tolerances.
func TestKernelsKeepMeaningInLibtorch(t *testing.T) {
	torch, err := conformance.Torch(t).Load()
	require.NoError(t, err)
	kernels := 0
	rapid.Check(t, func(t *rapid.T) {
		p := graphs.Own(t)
		after, err := passes.Run(p.Graph, passes.Options{})
		require.NoError(t, err, p.Graph.String())
		run := func(kernels bool) (map[uint32][]byte, *codegen.Compiled) {
			c, err := codegen.Compile(after, codegen.Options{Scratch: make([]bool, 64), Kernels: kernels})
			require.NoError(t, err, after.String())
			if !c.Holds(p.Params) {
				return nil, c
			}
			out, _ := runOn(t, torch, c, p.Params, p.Inputs)
			return out, c
		}
		want, _ := run(false)
		got, c := run(true)
		kernels += len(c.Program.Kernels)
		if len(want) == 0 || len(c.Program.Kernels) == 0 || !exact(after) {
			return
		}
		sameOutputs(t, after, c, want, got)
	})
	require.Greater(t, kernels, 3, "too few graphs had kernels")
	t.Log(kernels)
}

// exact reports whether all libraries compute the same bits for a graph.
func exact(g *ir.Graph) bool {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		switch n.Op {
		case ir.OpSqrt, ir.OpRsqrt, ir.OpMean:
			return false
		case ir.OpFmod, ir.OpRemainder: // exact, although they have the cost of a function
		case ir.OpSum, ir.OpAmax, ir.OpAmin, ir.OpMaximum, ir.OpMinimum: // the order also chooses between 0 and -0
			if g.Types[n.First].DType.Is(ir.Floats | ir.Complexes) {
				return false
			}
		default:
			if k := ir.Info(n.Op).Kernel; k != nil && k.Cost == catalogue.CostFunction {
				return false
			}
		}
	}
	return true
}
