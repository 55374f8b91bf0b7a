// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/tests/emulate"
)

// arena is the address at which the memory of a job begins. This part of the address space is free.
const arena = 0x200000000000

// segment is a piece of the memory of a job.
type segment struct {
	at   uint64
	data []byte
}

// job is a kernel with its instances, as the emulator runs it.
type job struct {
	k         *kernel.Kernel
	instances []cuda.Instance
	bases     [][]uint64 // by instance and operand: added to its address; nil: 0
	sms       int
	segments  []segment
	bytes     uint64 // the size of the memory, from arena
}

// emulator collects jobs, and compiles their texts together.
type emulator struct {
	texts   map[string]int // number of its first entry, by text
	source  bytes.Buffer
	entries []string
	file    bytes.Buffer
	jobs    []*job
}

func newEmulator() *emulator {
	e := &emulator{texts: map[string]int{}}
	e.source.WriteString("#include \"emulate.h\"\n")
	return e
}

func (e *emulator) word(words ...uint64) {
	for _, w := range words {
		_ = binary.Write(&e.file, binary.LittleEndian, w) // never fails
	}
}

// add plans the launches of a job.
func (e *emulator) add(j *job) []cuda.Launch {
	launches := cuda.Launches(j.k, j.instances, cuda.Device{SMs: j.sms})
	e.jobs = append(e.jobs, j)
	scratch, most := (j.bytes+15)/16*16, int64(0)
	for _, l := range launches {
		most = max(most, l.Scratch)
	}
	e.word(arena, scratch+uint64(most)+1, uint64(len(j.segments)))
	for _, s := range j.segments {
		e.word(s.at, uint64(len(s.data)))
		e.file.Write(s.data)
	}
	e.word(uint64(len(launches)))
	for _, l := range launches {
		e.word(uint64(e.entry(j.k, &l)), uint64(l.Grid), uint64(l.Block[0]), uint64(l.Block[1]),
			uint64(len(l.Args)*len(l.Args[0])))
		for i, args := range l.Args {
			args = slices.Clone(args)
			for w, operand := range l.Pointers {
				if j.bases != nil {
					args[w] += j.bases[l.Instances[i]][operand]
				}
			}
			if l.Scratch > 0 {
				args[l.ScratchWord] += arena + scratch
			}
			e.word(args...)
		}
		e.word(uint64(len(l.Chunks)))
		e.word(l.Chunks...)
	}
	return launches
}

// entry returns the number of a launch's function.
func (e *emulator) entry(k *kernel.Kernel, l *cuda.Launch) int {
	source := cuda.Print(k, l.Variant)
	first, ok := e.texts[source.Text]
	if !ok {
		first = len(e.entries)
		e.texts[source.Text] = first
		space := fmt.Sprintf("m%d", first)
		fmt.Fprintf(&e.source, "namespace %s {\n%s", space, strings.ReplaceAll(source.Text, `extern "C" `, "static "))
		for _, name := range source.Entries {
			run := fmt.Sprintf("run_%s", name)
			if l.Variant.Table {
				fmt.Fprintf(&e.source, "static void %s(const uint64_t* args, const uint64_t* chunks) {\n"+
					"  %s((const Args*)args, (const unsigned long long*)chunks);\n}\n", run, name)
			} else {
				fmt.Fprintf(&e.source, "static void %s(const uint64_t* args, const uint64_t*) {\n"+
					"  Args a;\n  memcpy(&a, args, sizeof a);\n  %s(a);\n}\n", run, name)
			}
			alone := !strings.Contains(source.Text, "__syncthreads") && !strings.Contains(source.Text, "__shfl")
			e.entries = append(e.entries, fmt.Sprintf("{%s::%s, sizeof(%s::Args) / 8, %t, %t}", space, run, space,
				l.Variant.Table, alone))
		}
		e.source.WriteString("}\n")
	}
	return first + slices.Index(source.Entries, l.Entry)
}

// run runs all jobs and returns the segments of each job, concatenated.
func (e *emulator) run(t *testing.T) [][]byte {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("running printed kernels needs g++")
	}
	fmt.Fprintf(&e.source, "static const Entry all[] = {%s};\n", strings.Join(e.entries, ", "))
	fmt.Fprintf(&e.source, "int main(int, char** argv) { return Run(all, %d, argv[1], argv[2]); }\n", len(e.entries))
	folder := t.TempDir()
	program, in, out := filepath.Join(folder, "kernels"), filepath.Join(folder, "in"), filepath.Join(folder, "out")
	require.NoError(t, os.WriteFile(in, append(binary.LittleEndian.AppendUint64(nil, uint64(len(e.jobs))),
		e.file.Bytes()...), 0o644))
	require.NoError(t, emulate.Build(e.source.Bytes(), program, "-fsanitize=shift,signed-integer-overflow",
		"-fno-sanitize-recover=all"))
	text, err := exec.Command(program, in, out).CombinedOutput()
	require.NoError(t, err, "%s", text)
	data, err := os.ReadFile(out)
	require.NoError(t, err)
	var all [][]byte
	for _, j := range e.jobs {
		n := 0
		for _, s := range j.segments {
			n += len(s.data)
		}
		require.LessOrEqual(t, n, len(data))
		all = append(all, data[:n])
		data = data[n:]
	}
	require.Empty(t, data)
	return all
}
