// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/capture/asm"
)

func TestCompare(t *testing.T) {
	const base = "aten::mul.Tensor %0:f32[4,5] %1:f32[5] -> %2:f32[4,5]  # a.py:1\naten::relu %2 -> %3:f32[4,5]  # a.py:2"
	cases := map[string]struct{ here, there, what, line string }{
		"other numbers and sizes": {
			"aten::mul.Tensor %0:f32[6,7] num=2.5 -> %1:f32[6,7]",
			"aten::mul.Tensor %0:f32[2,3] num=7.5 -> %1:f32[2,3]", "", ""},
		"another op": {"aten::mul.Tensor %0:f32[4,5] %1:f32[5] -> %2:f32[4,5]  # a.py:1\n" +
			"aten::exp %2 -> %3:f32[4,5]  # a.py:3", base, "another op", "aten::exp(f32[4,5]) at a.py:3"},
		"it ends": {"aten::mul.Tensor %0:f32[4,5] %1:f32[5] -> %2:f32[4,5]", base, "it ends here", "the end"},
		"it goes on": {base + "\naten::neg %3 -> %4:f32[4,5]", base, "it goes on here",
			"aten::neg(f32[4,5]) at an unknown place"},
		"a dim of 1": {"aten::relu %0:f32[1,5] -> %1:f32[1,5]", "aten::relu %0:f32[16,5] -> %1:f32[16,5]",
			"argument 0 has 1, not 16, as its dim 0: whether a dim is 0, 1 or more is part of a program",
			"aten::relu(f32[1,5]) at an unknown place"},
		"a dtype": {"aten::relu %0:f16[4] -> %1:f16[4]", "aten::relu %0:f32[4] -> %1:f32[4]",
			"argument 0 is f16[4], not f32[4]", ""},
		"a rank": {"aten::relu %0:f32[4,1] -> %1:f32[4,1]", "aten::relu %0:f32[4] -> %1:f32[4]",
			"argument 0 is f32[4,1], not f32[4]", ""},
		"a layout": {"aten::relu %0:f32[4,5]{1,4} -> %1:f32[4,5]", "aten::relu %0:f32[4,5] -> %1:f32[4,5]",
			"argument 0 is laid out as f32[4,5]{1,4}, not as f32[4,5]", ""},
		"an offset": {"aten::relu %0:f32[4]+2=64 -> %1:f32[4]", "aten::relu %0:f32[4]=64 -> %1:f32[4]",
			"argument 0 begins at element 2, not 0, of its storage: whether that is 0 is part of a program", ""},
		"a part": {"aten::relu %0:f32[4]=64 -> %1:f32[4]", "aten::relu %0:f32[4] -> %1:f32[4]",
			"argument 0 is another part of its storage: f32[4], not f32[4]", ""},
		"another tensor": {"aten::exp %0:f32[4] -> %1:f32[4]  # a.py:1\naten::neg %0 -> %2:f32[4]",
			"aten::exp %0:f32[4] -> %1:f32[4]  # a.py:1\naten::neg %1 -> %2:f32[4]",
			"argument 0 is another tensor: one from before, not from aten::exp at a.py:1", ""},
		"a new tensor": {"aten::exp %0:f32[4] -> %1:f32[4]\naten::neg %2:f32[4] -> %3:f32[4]",
			"aten::exp %0:f32[4] -> %1:f32[4]\naten::neg %0 -> %2:f32[4]",
			"argument 0 is another tensor: one from before, not used until now, not one from before", ""},
		"a literal": {"aten::sum.dim_IntList %0:f32[4] ints(0) -> %1:f32[]",
			"aten::sum.dim_IntList %0:f32[4] ints(-1) -> %1:f32[]", "argument 1, item 0, is 0, not -1", ""},
		"a longer list": {"aten::sum.dim_IntList %0:f32[4] ints(0 1) -> %1:f32[]",
			"aten::sum.dim_IntList %0:f32[4] ints(0) -> %1:f32[]", "argument 1 has 2 items, not 1", ""},
		"a string": {`aten::f %0:f32[4] str="none" -> %1:f32[4]`, `aten::f %0:f32[4] str="tanh" -> %1:f32[4]`,
			`argument 1 is "none", not "tanh"`, ""},
		"a kind of number": {"aten::f %0:f32[4] num=2 -> %1:f32[4]", "aten::f %0:f32[4] num=2.5 -> %1:f32[4]",
			"argument 1 is 2, not 2.5", ""},
		"a small size": {"aten::f %0:f32[4] 1 -> %1:f32[4]", "aten::f %0:f32[4] size=8 -> %1:f32[4]",
			"argument 1 is 1, not 8", ""},
		"an absent one": {"aten::f %0:f32[4] none -> %1:f32[4]", "aten::f %0:f32[4] true -> %1:f32[4]",
			"argument 1 is none, not true", ""},
		"an effect": {"aten::f!rng %0:f32[4] -> %1:f32[4]", "aten::f %0:f32[4] -> %1:f32[4]",
			"what it does besides (random numbers, effects)", ""},
		"one operand twice": {"aten::add.Tensor %0:f32[4] %0 1 -> %1:f32[4]",
			"aten::add.Tensor %0:f32[4] %1:f32[4] 1 -> %2:f32[4]",
			"argument 1 is another tensor: one from before, not one from before, not used until now",
			"aten::add.Tensor(f32[4], f32[4], 1) at an unknown place"},
		"a result": {"aten::f %0:f32[4] -> %1:f32[4]", "aten::f %0:f32[4] -> %1:f64[4]",
			"result 0 is f32[4], not f64[4]", ""},
		"a written one": {"aten::f %0:f32[4]! -> %1:f32[4]", "aten::f %0:f32[4] -> %1:f32[4]",
			"argument 0 is written by only one of the two", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			names := capture.NewTable()
			here, err := asm.Parse(c.here, names)
			require.NoError(t, err)
			there, err := asm.Parse(c.there, names)
			require.NoError(t, err)
			d, err := names.Compare(here, there)
			require.NoError(t, err)
			if c.what == "" {
				require.Nil(t, d)
				return
			}
			require.NotNil(t, d)
			require.Equal(t, c.what, d.What)
			if c.line != "" {
				require.Equal(t, c.line, d.Here)
			}
			back, err := names.Compare(there, here)
			require.NoError(t, err)
			require.Equal(t, d.Record, back.Record)
			require.Equal(t, d.There, back.Here)
		})
	}
}

func TestMaker(t *testing.T) {
	names := capture.NewTable()
	tr, err := asm.Parse("aten::exp %0:f32[4] -> %1:f32[4]  # a.py:1\naten::neg_ %1!  # a.py:2\n"+
		"aten::abs %1 -> %2:f32[4]  # a.py:3", names)
	require.NoError(t, err)
	require.Equal(t, "the result of aten::neg_ at a.py:2", names.Maker(tr, 1))
	require.Equal(t, "a tensor", names.Maker(tr, 0))
	require.Equal(t, "a tensor", names.Maker(tr, 9))
}

// FuzzCompare compares traces of any words. The result is an error or a difference, and there is never a panic.
func FuzzCompare(f *testing.F) {
	names := capture.NewTable()
	tr, err := asm.Parse("aten::exp %0:f32[4,1]{1,4}+2 -> %1:f32[4,1]\n"+
		"aten::cat tensors(%0 %1) 0 str=\"abc\" -> %2:f32[8]\n"+
		"mycelya::resize_storage %2:u8[32]! size=64", names)
	require.NoError(f, err)
	f.Add(uint16(2), uint64(7), uint16(9))
	f.Add(uint16(0), uint64(0), uint16(0))
	f.Fuzz(func(t *testing.T, at uint16, word uint64, length uint16) {
		other := *tr
		other.Skeleton = append([]uint64(nil), tr.Skeleton...)
		other.Skeleton[int(at)%len(other.Skeleton)] ^= word
		other.Skeleton = other.Skeleton[:len(other.Skeleton)-int(length)%len(other.Skeleton)]
		_, _ = names.Compare(&other, tr)
		_, _ = names.Compare(tr, &other)
		_ = names.Maker(&other, 1)
	})
}
