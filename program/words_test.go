// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/kernel"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestWords compares words and bytes with those of the wire's version, and the text of the program.
func TestWords(t *testing.T) {
	for name, p := range map[string]*Program{"program": sample(), "fused": fusedSample()} {
		words := p.Words()
		var s strings.Builder
		for _, w := range words {
			fmt.Fprintf(&s, "%016x\n", w)
		}
		fmt.Fprintf(&s, "packed %x\n\n%s", Pack(words), p)
		path := filepath.Join("testdata", name+".words")
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(s.String()), 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), s.String(), "a changed encoding is a new version of the wire")
		again, err := Unpack(Pack(words))
		require.NoError(t, err)
		require.Equal(t, words, again)
		got, err := Parse(words)
		require.NoError(t, err)
		require.Equal(t, p, got)
	}
}

// TestTakenDim: the dim that a TAKE positions has a number of its own.
func TestTakenDim(t *testing.T) {
	k := &kernel.Kernel{Spaces: []int{1}, Operands: []kernel.Operand{
		{DType: 7, Access: kernel.Read, Along: []int8{kernel.Taken, 0, -1}}}, Code: []kernel.Instr{}}
	p := &Program{Kernels: []*kernel.Kernel{k}}
	got, err := Decode(p.Words())
	require.NoError(t, err)
	require.Equal(t, k, got.Kernels[0])
}

// TestNoPrefixIsAProgram: neither words nor bytes may end early or go on.
func TestNoPrefixIsAProgram(t *testing.T) {
	for _, p := range []*Program{sample(), fusedSample()} {
		words := p.Words()
		for n := range words {
			_, err := Parse(words[:n])
			require.Error(t, err, "%d words", n)
		}
		_, err := Parse(append(words, 0))
		require.ErrorContains(t, err, "it has 1 words too many")
	}
}

// TestDecodeRefuses: numbers that do not fit their fields, and counts that the words cannot hold.
func TestDecodeRefuses(t *testing.T) {
	const most = math.MaxUint64
	for name, c := range map[string]struct {
		want  string
		words []uint64
	}{
		"params":    {"word 1: parameters of 4194305, at most 4194304", []uint64{MaxParams + 1}},
		"buffers":   {"buffers of -1, at most 1048576", []uint64{0, most}},
		"inputs":    {"5 inputs in 1 words", []uint64{0, 0, 5, 0}},
		"buffer":    {"inputs of 4294967296", []uint64{0, 0, 1, 1 << 32}},
		"operators": {"a text of 9 bytes in 1 words", []uint64{0, 0, 0, 0, 1, 9, 0}},
		"name":      {"bytes of a text of 1025", []uint64{0, 0, 0, 0, 1, MaxOpName + 1}},
		"tensors":   {"9 tensors in 5 words", []uint64{0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0}},
		"dtype":     {"a dtype of 263", []uint64{0, 0, 0, 0, 0, 1, 0, 263, 0, 0, 0}},
		"rank":      {"dims of 256", []uint64{0, 0, 0, 0, 0, 1, 0, 7, 256, 0, 0}},
		"contig":    {"whether strides follow of 2", []uint64{0, 0, 0, 0, 0, 1, 0, 7, 0, 2, 0}},
		"dim":       {"a parameter of 9223372036854775807", []uint64{0, 0, 0, 0, 0, 1, 0, 7, 0, 1, 1 << 63}},
		"step":      {"a step of kind 99", []uint64{0, 0, 0, 0, 0, 0, 0, 1, 99, 0, 0}},
		"record":    {"a record of 4294967296", []uint64{0, 0, 0, 0, 0, 0, 0, 1, 5, 1 << 32, 0}},
		"operator":  {"operator 0 of 0", []uint64{0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0}},
		"kernel":    {"kernel 0 of 0", []uint64{0, 0, 0, 0, 0, 0, 0, 1, 8, 0, 0}},
		"reduced":   {"reduced dims of 4294967295", []uint64{0, 0, 0, 0, 0, 0, 1, 0, 1<<32 - 1, 0, 0, 0}},
		"spaces":    {"index spaces of 9", []uint64{0, 0, 0, 0, 0, 0, 1, 9, 0, 0, 0, 0}},
		"instr":     {"the head of an instruction of 65536", []uint64{0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1 << 16, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(c.words)
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := Unpack(make([]byte, MaxBytes+1))
	require.ErrorContains(t, err, "at most 16777216 are allowed")
	_, err = Unpack([]byte{0x80})
	require.ErrorContains(t, err, "its bytes end within word 0")
}

// FuzzParse: no bytes cause a panic, and a program that is accepted has its words.
func FuzzParse(f *testing.F) {
	for _, p := range []*Program{sample(), fusedSample()} {
		f.Add(Pack(p.Words()))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		words, err := Unpack(b)
		if err != nil {
			return
		}
		p, err := Parse(words)
		if err != nil {
			return
		}
		again, err := Parse(p.Words())
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}
