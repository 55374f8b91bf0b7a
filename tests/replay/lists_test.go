// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package replay

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/tests/graphs"
)

func compileAdamW(t require.TestingT, before *ir.Graph) (*ir.Graph, *codegen.Compiled) {
	g, err := passes.Run(before, passes.Options{})
	require.NoError(t, err)
	c, err := codegen.Compile(g, codegen.Options{Kernels: true})
	require.NoError(t, err)
	return g, c
}

// TestListsAreOneKernel: a step of an optimizer is one group with a kernel for each rank, however many tensors it has.
// Each tensor's window is written by one instance.
func TestListsAreOneKernel(t *testing.T) {
	for _, n := range []int{2, 3, 4, 7, 100, 20000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			before, err := ir.Parse(graphs.AdamW(n))
			require.NoError(t, err)
			g, c := compileAdamW(t, before)
			require.Len(t, g.Groups, 1)
			require.Empty(t, c.Unfused)
			require.NoError(t, c.Program.Validate())
			require.LessOrEqual(t, len(c.Program.Kernels), 2)
			written := map[uint32]int{} // by slot
			slots := map[uint32]uint32{}
			for i, b := range c.Program.Inputs {
				slots[b] = c.Inputs[i]
			}
			instances := 0
			for _, s := range c.Program.Steps {
				k, ok := s.(*program.Kernel)
				if !ok {
					continue
				}
				instances += len(k.Instances)
				message := c.Program.Kernels[k.Kernel]
				for _, at := range k.Instances {
					family := map[uint32]bool{}
					for i, u := range at.Uses {
						slot := slots[c.Program.Tensors[u.Tensor].Buffer]
						family[slot%uint32(n)] = true
						if message.Operands[i].Access&kernel.Write != 0 {
							written[slot]++
						}
					}
					require.Len(t, family, 1, "an instance has windows of several parameters")
				}
			}
			require.Equal(t, n, instances)
			require.Len(t, written, 3*n)
			for slot, times := range written {
				require.Equal(t, 1, times, "storage %d", slot)
			}
		})
	}
}

// TestListsAreLinear bounds the memory that compiling takes for each tensor.
func TestListsAreLinear(t *testing.T) {
	for _, n := range []int{1000, 8000} {
		before, err := ir.Parse(graphs.AdamW(n))
		require.NoError(t, err)
		result := testing.Benchmark(func(b *testing.B) {
			for range b.N {
				compileAdamW(b, before)
			}
		})
		// 14 KiB in November 2026.
		require.Less(t, result.AllocedBytesPerOp()/int64(n), int64(20<<10), "%d tensors", n)
	}
}

// BenchmarkLists measures the compilation of a step of AdamW, by the number of tensors.
func BenchmarkLists(b *testing.B) {
	for _, n := range []int{500, 2000, 5000, 20000} {
		before, err := ir.Parse(graphs.AdamW(n))
		require.NoError(b, err)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				compileAdamW(b, before)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/tensor")
		})
	}
}
