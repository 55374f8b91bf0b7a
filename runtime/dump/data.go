// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/mycelya/mycelya/ir"
)

// numbers lists the parameters of a graph with the values of the trace that the graph was made for: number, dtype,
// value, origin. The graph itself has the sizes.
func numbers(g *ir.Graph, params []uint64) string {
	var b strings.Builder
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Op != ir.OpParam && n.Op != ir.OpScalar {
			continue
		}
		d := g.Types[n.First].DType
		words := params[min(int(n.Slot), len(params)):]
		kind := "number"
		if n.Op == ir.OpScalar {
			kind = "0-dim tensor"
		}
		fmt.Fprintf(&b, "param %-5d %-13s %-5s %-24s # %s\n", n.Slot, kind, d, number(d, words), place(n.Origin))
	}
	return b.String()
}

// number is the value of a parameter as text, or its bits for dtypes that Go has no type for.
func number(d ir.DType, words []uint64) string {
	if d == ir.C128 && len(words) > 1 {
		return fmt.Sprintf("(%s, %s)", number(ir.F64, words), number(ir.F64, words[1:]))
	}
	if len(words) == 0 {
		return "?"
	}
	v := words[0]
	switch {
	case d == ir.Bool:
		return strconv.FormatBool(v&1 != 0)
	case d == ir.F64:
		return strconv.FormatFloat(math.Float64frombits(v), 'g', -1, 64)
	case d == ir.F32:
		return strconv.FormatFloat(float64(math.Float32frombits(uint32(v))), 'g', -1, 32)
	case d == ir.BF16:
		return strconv.FormatFloat(float64(math.Float32frombits(uint32(v)<<16)), 'g', 4, 32)
	case d.Is(ir.Ints) && d.Signed():
		shift := 64 - 8*d.Size()
		return strconv.FormatInt(int64(v)<<shift>>shift, 10)
	case d.Is(ir.Ints):
		return strconv.FormatUint(v, 10)
	}
	bits := make([]byte, d.Size())
	for i := range bits {
		bits[i] = byte(v >> (8 * (len(bits) - 1 - i)))
	}
	return "bits " + hex.EncodeToString(bits)
}
