// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/worker/kernels"
)

// architectures are the architectures of torch's binaries.
var architectures = []string{"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}

// nvrtc loads the NVRTC of torch's packages, or skips the test.
func nvrtc(t *testing.T) *kernels.NVRTC {
	python := filepath.Join("..", "..", ".venv", "bin", "python")
	const script = "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
	out, err := exec.Command(python, "-c", script).Output()
	if err != nil {
		t.Skipf("%s has no torch (%v)", python, err)
	}
	path := kernels.Find(filepath.Join(strings.TrimSpace(string(out)), "lib"))
	if path == "" {
		t.Skip("this torch has no NVRTC")
	}
	n, err := kernels.Open(path)
	require.NoError(t, err)
	return n
}

// text is a printed kernel.
type text struct {
	name    string
	k       *kernel.Kernel
	variant cuda.Variant
	source  cuda.Source
}

// texts prints the variants of kernels that are launched, each text once.
func texts(all []bindable, sms int) (out []text) {
	seen := map[string]bool{}
	for _, b := range all {
		for _, l := range cuda.Launches(b.k, b.instances, cuda.Device{SMs: sms}) {
			s := cuda.Print(b.k, l.Variant)
			if !seen[s.Text] {
				seen[s.Text] = true
				out = append(out, text{b.graph, b.k, l.Variant, s})
			}
		}
	}
	return out
}

// compiled has the resources of an entry on an architecture.
type compiled struct {
	text
	arch, entry string
	resources
}

// compileAll compiles texts for architectures, two at a time.
func compileAll(t *testing.T, all []text, archs []string) []compiled {
	n := nvrtc(t)
	var out []compiled
	var lock sync.Mutex
	var group sync.WaitGroup
	work := make(chan func())
	for range 2 {
		group.Go(func() {
			for f := range work {
				f()
			}
		})
	}
	start := time.Now()
	for _, x := range all {
		for _, arch := range archs {
			work <- func() {
				cubin, log, err := n.Compile(x.source.Text, arch, cuda.Options[:])
				if !assert.NoError(t, err, "%s\n%s", arch, x.source.Text) {
					return
				}
				assert.Empty(t, log, "%s: %s\n%s", x.name, arch, x.source.Text)
				found, err := readCubin(cubin)
				if !assert.NoError(t, err) {
					return
				}
				lock.Lock()
				defer lock.Unlock()
				for _, entry := range x.source.Entries {
					r, ok := found[entry]
					assert.True(t, ok, "%s is not in the cubin", entry)
					out = append(out, compiled{x, arch, entry, r})
				}
			}
		}
	}
	close(work)
	group.Wait()
	t.Logf("%d texts, %d cubins with %s in %v", len(all), len(all)*len(archs), n.Version(),
		time.Since(start).Round(time.Millisecond))
	return out
}

// TestKnownKernelsCompile compiles the kernels of all graphs of the tests and limits their resources: each for one
// architecture, and in `make soak` for all of them, which takes minutes.
func TestKnownKernelsCompile(t *testing.T) {
	all := texts(collect(t), 132)
	require.Greater(t, len(all), 50)
	some := make([][]text, len(architectures))
	for i, x := range all {
		some[i%len(architectures)] = append(some[i%len(architectures)], x)
	}
	for i, arch := range architectures {
		if os.Getenv("MYCELYA_SOAK") != "" {
			some[i] = all
		}
		budget(t, compileAll(t, some[i], []string{arch}), func(t cuda.Template) int { return budgets[t] }, someConditions)
	}
}

// TestCacheWithNVRTC checks that a worker's cache stores cubins, and the log of a kernel that does not compile.
func TestCacheWithNVRTC(t *testing.T) {
	folder := t.TempDir()
	n := nvrtc(t)
	open := func() (kernels.Compiler, error) { return n, nil }
	c, err := kernels.New(kernels.Config{Compiler: open, Arch: "sm_80", Options: cuda.Options[:], Folder: folder,
		Disk: 1 << 20, Memory: 1 << 20, Threads: 2})
	require.NoError(t, err)
	defer c.Close()
	k := sum(2, 1, 0, 1)
	l := cuda.Launches(k, []cuda.Instance{{Sizes: []int64{9, 7},
		Operands: []cuda.Operand{{Strides: []int64{7, 1}}, {Strides: []int64{1}}}}}, cuda.Device{SMs: 108})
	require.Len(t, l, 1)
	made, _ := c.Want(kernels.ID{1}, func() cuda.Source { return cuda.Print(k, l[0].Variant) })
	require.Equal(t, kernels.Ready, made.Wait())
	found, err := readCubin(made.Code().([]byte))
	require.NoError(t, err)
	require.Contains(t, found, l[0].Entry)
	wrong, _ := c.Want(kernels.ID{2}, func() cuda.Source { return cuda.Source{Text: "no kernel"} })
	require.Equal(t, kernels.Failed, wrong.Wait())
	logs, err := filepath.Glob(filepath.Join(folder, "*.log"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	words, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	require.Contains(t, string(words), "NVRTC_ERROR_COMPILATION")
	require.Contains(t, string(words), "error:")
}

// budgets are the most registers per thread. With 64 registers, an SM runs half of its threads. A block of reductions
// has 512 threads, which may have 128 registers each.
var budgets = map[cuda.Template]int{cuda.Pointwise: 64, cuda.Transpose: 64, cuda.Column: 64, cuda.Looped: 96,
	cuda.Persistent: 96}

// A fusion of the gradients of GELU and layer norm has a condition for each of four elements and each interval of erf.
// They need one word more than the registers for conditions have. That word is on the stack, with padding to align it.
const someConditions = 8

// Limits for random kernels, which have f64 functions and other rare ops. A thread has seven registers for conditions.
// If each of sixteen elements has a live condition, ptxas keeps some on the stack.
const mostRegisters, mostConditions = 128, 16

// TestReadCubin checks that readCubin finds the known resources of a kernel.
func TestReadCubin(t *testing.T) {
	n := nvrtc(t)
	for _, arch := range architectures {
		cubin, _, err := n.Compile(`extern "C" __global__ void plain(float* a) { a[threadIdx.x] = 1; }
extern "C" __global__ void __launch_bounds__(1024) large(float* a, const int* at) {
  __shared__ float shared[1000];
  float own[64];
  for (int i = 0; i < 64; ++i) own[at[i]] = a[i];
  shared[threadIdx.x] = own[at[64]];
  __syncthreads();
  a[threadIdx.x] = shared[at[65]];
}`, arch, nil)
		require.NoError(t, err)
		found, err := readCubin(cubin)
		require.NoError(t, err)
		require.Len(t, found, 2)
		require.Equal(t, 0, found["plain"].stack, arch)
		require.Less(t, found["plain"].shared, 2000, arch)
		require.Greater(t, found["plain"].registers, 1, arch)
		require.GreaterOrEqual(t, found["large"].stack, 256, arch)
		require.GreaterOrEqual(t, found["large"].shared, 4000, arch)
		require.LessOrEqual(t, found["large"].registers, 64, arch)
		_, err = readCubin(cubin[:len(cubin)/2])
		require.Error(t, err)
	}
}

// budget limits the resources of entries. The stack has spilled registers, and a few words for sin and cos of large
// numbers.
func budget(t *testing.T, all []compiled, registers func(t cuda.Template) int, conditions int) {
	most := map[string]resources{}
	for _, c := range all {
		name := fmt.Sprintf("%-10s %-6s", c.variant.Template, c.arch)
		m := most[name]
		most[name] = resources{max(m.registers, c.registers), max(m.stack, c.stack), max(m.shared, c.shared)}
		stack := conditions
		if slices.ContainsFunc(c.k.Code, func(n kernel.Instr) bool { return n.Op == kernel.Sin || n.Op == kernel.Cos }) {
			stack += 64
		}
		assert.LessOrEqual(t, c.registers, registers(c.variant.Template), "registers of %s of %s: %s\n%s", c.entry,
			c.name, c.arch, c.source.Text)
		assert.LessOrEqual(t, c.stack, stack, "bytes of stack of %s of %s: %s\n%s", c.entry, c.name, c.arch, c.source.Text)
		assert.LessOrEqual(t, c.shared, 48<<10, "bytes of shared memory of %s of %s: %s\n%s", c.entry, c.name, c.arch,
			c.source.Text)
	}
	for _, name := range slices.Sorted(maps.Keys(most)) {
		t.Logf("%s %+v", name, most[name])
	}
}

// TestRandomKernelsCompile compiles random kernels and the kernels of random graphs, for one architecture each.
func TestRandomKernelsCompile(t *testing.T) {
	all := drawn(t, 150)
	for i := range 60 {
		d := &drawer{Rand: rand.New(rand.NewPCG(*seed, uint64(i)))}
		k := d.kernel()
		var buffers [][]byte
		b := newJob(k, []*bound{d.bind(k, 40000, &buffers)}, buffers, 132)
		all = append(all, bindable{fmt.Sprintf("kernel %d", i), k, b.instances})
	}
	list := texts(all, 132)
	for i, arch := range architectures {
		var some []text
		for j := i; j < len(list); j += len(architectures) {
			some = append(some, list[j])
		}
		budget(t, compileAll(t, some, []string{arch}), func(cuda.Template) int { return mostRegisters }, mostConditions)
	}
}
