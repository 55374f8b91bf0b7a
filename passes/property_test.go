// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/graphs"
)

// TestPassesKeepMeaning runs random graphs of own ops before and after the passes, one by one and all in a row, and
// compares every byte of the outputs.
func TestPassesKeepMeaning(t *testing.T) {
	ran, changed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := graphs.Own(t)
		want, err := eval.Run(p.Graph, p.Params, p.Inputs)
		if err != nil {
			return // an integer division by zero, say: a pass may drop it
		}
		ran++
		try := [][]string{nil}
		for _, pass := range passes.Pipeline() {
			try = append(try, []string{pass.Name})
		}
		for _, only := range try {
			out, err := passes.Run(p.Graph, passes.Options{Check: 3, Only: only})
			if err != nil {
				t.Fatalf("%v: %v\n%s", only, err, p.Graph)
			}
			if len(out.Nodes) < len(p.Graph.Nodes) {
				changed++
			}
			got, err := eval.Run(out, p.Params, p.Inputs)
			if err != nil {
				t.Fatalf("%v: %v\n%s\nbecomes\n%s", only, err, p.Graph, out)
			}
			if len(got) != len(want) {
				t.Fatalf("%v: %d outputs, not %d", only, len(got), len(want))
			}
			for _, o := range p.Graph.Outputs {
				slot, data := o.Slot, want[o.Slot]
				if !same(p.Graph.Types[o.Value].DType, got[slot], data) {
					t.Fatalf("%v: slot %d is %v, not %v\n%s\nbecomes\n%s", only, slot, got[slot], data, p.Graph, out)
				}
			}
		}
	})
	if ran < 50 || changed < 50 {
		t.Errorf("only %d graphs ran, and passes changed %d", ran, changed)
	}
}

// same says whether two storages hold the same elements. A NaN is a NaN: IEEE arithmetic leaves its sign and payload
// open.
func same(d ir.DType, a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	if d.Is(ir.Complexes) {
		d = d.Real()
	}
	for i := 0; i < len(a); i += d.Size() {
		x, y := a[i:i+d.Size()], b[i:i+d.Size()]
		if !bytes.Equal(x, y) && !(isNaN(d, x) && isNaN(d, y)) {
			return false
		}
	}
	return true
}

func isNaN(d ir.DType, bits []byte) bool {
	switch d {
	case ir.F64:
		return math.IsNaN(math.Float64frombits(binary.LittleEndian.Uint64(bits)))
	case ir.F32:
		return math.IsNaN(float64(math.Float32frombits(binary.LittleEndian.Uint32(bits))))
	case ir.F16:
		return binary.LittleEndian.Uint16(bits)&0x7fff > 0x7c00
	case ir.BF16:
		return binary.LittleEndian.Uint16(bits)&0x7fff > 0x7f80
	}
	return false
}

// TestPassesOnCalls: graphs with calls stay valid, and what has flags stays in order.
func TestPassesOnCalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := graphs.Any(t)
		out, err := passes.Run(g, passes.Options{Check: 3})
		if err != nil {
			t.Fatalf("%v\n%s", err, g)
		}
		if a, b := flagged(g), flagged(out); a != b {
			t.Fatalf("flagged nodes\n%s\nbecome\n%s", a, b)
		}
	})
}

// flagged lists the names and flags of nodes with flags.
func flagged(g *ir.Graph) string {
	var b bytes.Buffer
	for id := range g.Nodes {
		if n := &g.Nodes[id]; n.Flags != 0 {
			b.WriteString(g.CallName(ir.NodeID(id)))
			b.WriteByte('0' + byte(n.Flags))
			b.WriteByte('\n')
		}
	}
	return b.String()
}
