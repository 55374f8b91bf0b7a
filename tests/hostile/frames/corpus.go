// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/tests/graphs"
	"github.com/mycelya/mycelya/tests/hostile/words"
)

// example is a program with the parameters and the inputs of a call that runs.
type example struct {
	name    string
	key     []byte
	program *program.Program
	params  []uint64
	inputs  [][]byte
}

const (
	// ownExamples is the number of random graphs of own ops.
	ownExamples = 200
	// fuzzExamples is the number of programs of the operator fuzzer.
	fuzzExamples = 4000
	// maxInputs bounds the bytes of a program's inputs. A program with larger inputs gets inputs that are too small.
	maxInputs = 256 << 10
)

// newCorpus makes the examples: random graphs of own ops, the graphs of tests/replay, and the programs of the operator
// fuzzer if its path is not empty.
func newCorpus(replay, fuzz string, seed uint64) (out []example, err error) {
	generator := rapid.Custom(graphs.Own)
	for i := range ownExamples {
		p := generator.Example(int(seed)*1000 + i)
		e, err := compiled(fmt.Sprintf("own %d", i), p.Graph, i%2 == 0, p.Params)
		if err != nil {
			return nil, err
		}
		for _, slot := range e.slots {
			e.inputs = append(e.inputs, p.Inputs[slot])
		}
		out = append(out, e.example)
	}
	files, err := filepath.Glob(filepath.Join(replay, "*", "*.ir"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("there are no graphs in %s: %w", replay, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		g, err := ir.Parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s:%w", file, err)
		}
		e, err := compiled(strings.TrimSuffix(filepath.Base(file), ".ir"), g, true, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		e.inputs = inputsOf(e.program, e.params)
		out = append(out, e.example)
	}
	if fuzz != "" {
		more, err := fuzzed(fuzz, seed)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	for i := range out {
		out[i].key = binary.BigEndian.AppendUint32(make([]byte, proto.KeyBytes-4), uint32(i)+1)
		if err := out[i].program.Validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", out[i].name, err)
		}
	}
	return out, nil
}

// withSlots is an example with the slots of its inputs.
type withSlots struct {
	example
	slots []uint32
}

// compiled compiles a graph as the client does. params nil: those that the graph was captured with.
func compiled(name string, g *ir.Graph, kernels bool, params []uint64) (*withSlots, error) {
	g, err := passes.Run(g, passes.Options{})
	if err != nil {
		return nil, err
	}
	const slots = 1 << 16 // more than any graph has
	c, err := codegen.Compile(g, codegen.Options{Scratch: make([]bool, slots), Kernels: kernels})
	if err != nil {
		return nil, err
	}
	var words []uint64
	if params == nil {
		words, err = c.FirstSeen(g)
	} else {
		words, err = c.Params(params)
	}
	return &withSlots{example{name: name, program: c.Program, params: words}, c.Inputs}, err
}

// inputsOf makes inputs of zeros that hold all windows of the program, if they are not too large.
func inputsOf(p *program.Program, params []uint64) [][]byte {
	need := make([]uint64, p.Buffers)
	for i := range p.Tensors {
		t := &p.Tensors[i]
		need[t.Buffer] = max(need[t.Buffer], endOf(t, params))
	}
	out := make([][]byte, len(p.Inputs))
	total := uint64(0)
	for _, b := range p.Inputs {
		total += min(need[b], maxInputs+1)
	}
	for i, b := range p.Inputs {
		out[i] = make([]byte, 64)
		if total <= maxInputs {
			out[i] = make([]byte, need[b])
		}
	}
	return out
}

// endOf is the number of bytes up to a window's last element.
func endOf(t *program.Tensor, params []uint64) uint64 {
	last, stride := uint64(t.Offset.At(params)), uint64(1)
	for i, d := range slices.Backward(t.Sizes) {
		size := uint64(d.At(params))
		if size == 0 {
			return 0
		}
		if t.Strides != nil {
			stride = uint64(t.Strides[i].At(params))
		}
		last += (size - 1) * stride
		if t.Strides == nil {
			stride *= size
		}
	}
	return (last + 1) * uint64(catalogue.DTypeSize(uint64(t.DType)))
}

// fuzzed are programs with hostile arguments of one operator each.
func fuzzed(path string, seed uint64) (out []example, err error) {
	cmd := exec.Command(path, "--words", "--count", fmt.Sprint(fuzzExamples), "--seed", fmt.Sprint(seed))
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(pipe, 1<<20)
	contents, err := words.Contents(in)
	if err != nil {
		return nil, err
	}
	for range fuzzExamples {
		p, text, err := words.Program(in)
		if err != nil {
			return nil, err
		}
		e := example{name: text, program: p}
		used := usedBuffers(p)
		for b := range p.Buffers {
			switch {
			case int(b) >= len(contents):
				p.Outputs = append(p.Outputs, b)
			case used[b]:
				p.Inputs = append(p.Inputs, b)
				e.inputs = append(e.inputs, contents[b])
			}
		}
		if p.Validate() == nil {
			out = append(out, e)
		}
	}
	return out, cmd.Wait()
}

// usedBuffers are the buffers that the operands of a program's calls lie in.
func usedBuffers(p *program.Program) map[uint32]bool {
	out := map[uint32]bool{}
	var note func(args []program.Arg)
	note = func(args []program.Arg) {
		for _, a := range args {
			if a.Tag == catalogue.TagTensor && a.Value < uint64(len(p.Tensors)) {
				out[p.Tensors[a.Value].Buffer] = true
			}
			note(a.Items)
		}
	}
	for _, s := range p.Steps {
		if c, ok := s.(*program.Call); ok {
			note(c.Args)
		}
	}
	return out
}

// pick is an example: a small one more often than a large one.
func pick(corpus []example, r *rand.Rand) example {
	e := corpus[r.IntN(len(corpus))]
	if len(e.program.Words()) > largeProgram && r.IntN(8) != 0 {
		return corpus[r.IntN(ownExamples)]
	}
	return e
}

// largeProgram is the size from which on a program is large, in words.
const largeProgram = 8 << 10
