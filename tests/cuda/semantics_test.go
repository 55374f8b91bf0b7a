// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
)

var (
	seed  = flag.Uint64("seed", 1, "of random kernels")
	count = flag.Int("count", 150, "number of random kernels")
)

// tried is a job with the expected contents of its buffers.
type tried struct {
	job   *job
	want  [][]byte
	exact bool
	at    []*bound
	name  string
}

// try binds a kernel and adds the job to an emulator. It returns nil if the kernel has no meaning on that data.
func try(t *testing.T, e *emulator, d *drawer, k *kernel.Kernel, name string, most int64, instances int,
	templates map[string]int) *tried {
	var buffers [][]byte
	var at []*bound
	for range instances {
		at = append(at, d.bind(k, most, &buffers))
	}
	want, ok := meaning(t, k, at, buffers)
	if !ok {
		return nil
	}
	j := newJob(k, at, buffers, oneOf(d, 1, 4, 132))
	for _, l := range e.add(j) {
		text := fmt.Sprintf("%s vectors %t split %t table %t", l.Variant.Template, l.Variant.Vector > 1, l.Variant.Split,
			l.Variant.Table)
		templates[text]++
	}
	return &tried{j, want, !slices.Contains(d.inexact, true), at, name}
}

// check compares the buffers of the emulator with the expected buffers.
func check(t *testing.T, all []*tried, results [][]byte) {
	t.Helper()
	for n, x := range all {
		got, untouched := buffersOf(x.job, results[n])
		k := x.job.k
		show := func() string {
			text := fmt.Sprintf("%s\n%s", x.name, k)
			for _, l := range cuda.Launches(k, x.job.instances, cuda.Device{SMs: x.job.sms}) {
				text += fmt.Sprintf("%s: %s, %d blocks of %v, %v\n", l.Entry, &l.Variant, l.Grid, l.Block, l.Args)
			}
			for _, b := range x.at {
				text += fmt.Sprintf("sizes %v tensors %v numbers %v\n", b.sizes, b.tensors, b.numbers)
			}
			return text
		}
		require.True(t, untouched, "memory around buffers was written\n%s", show())
		for _, b := range x.at {
			for i, on := range b.tensors {
				dtype := k.Operands[i].DType
				size := ir.DType(dtype).Size()
				w, g := x.want[on.buffer], got[on.buffer]
				exact := x.exact || k.Operands[i].Access == kernel.Read &&
					!slices.ContainsFunc(b.tensors[i+1:], func(o tensor) bool { return o.buffer == on.buffer })
				for at := 0; at+size <= len(w); at += size {
					if !near(dtype, w[at:at+size], g[at:at+size], exact) {
						t.Fatalf("operand %d, element %d is %x (%g), not %x (%g)\n%s", i, at/size, g[at:at+size],
							number(dtype, g[at:at+size]), w[at:at+size], number(dtype, w[at:at+size]), show())
					}
				}
			}
		}
	}
}

// TestRandomKernels runs random kernels with all ops, classes and kinds of shapes. Their printed text is compiled for
// this CPU. It compares the buffers with ir/eval. The bits must be equal unless they depend on a library or on the
// order of a sum.
func TestRandomKernels(t *testing.T) {
	templates := map[string]int{}
	e := newEmulator()
	var all []*tried
	for i := range *count {
		d := &drawer{Rand: rand.New(rand.NewPCG(*seed, uint64(i)))}
		k := d.kernel()
		if err := k.Verify(); err != nil {
			require.NoError(t, err, "%s", k)
		}
		instances := 1
		if d.chance(0.15) {
			instances = 2 + d.pick(5)
		}
		if x := try(t, e, d, k, fmt.Sprintf("kernel %d", i), 40000, instances, templates); x != nil {
			all = append(all, x)
		}
	}
	t.Log(templates)
	check(t, all, e.run(t))
}

// TestKnownKernels runs the kernels of all graphs of the tests, and of random graphs, in all kinds of shapes.
func TestKnownKernels(t *testing.T) {
	templates, seen := map[string]int{}, map[string]bool{}
	e := newEmulator()
	var all []*tried
	for i, b := range append(collect(t), drawn(t, 150)...) {
		inexact, steady := taint(b.k)
		if seen[b.k.String()] || !steady {
			continue
		}
		seen[b.k.String()] = true
		d := &drawer{Rand: rand.New(rand.NewPCG(*seed, uint64(i))), inexact: inexact}
		if x := try(t, e, d, b.k, b.graph, 20000, 1+d.pick(2), templates); x != nil {
			all = append(all, x)
		}
	}
	t.Log(templates)
	require.Greater(t, len(all), 50)
	check(t, all, e.run(t))
}
