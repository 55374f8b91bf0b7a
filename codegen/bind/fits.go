// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package bind

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/kernel"
)

// times returns a product of numbers that are not negative, or false if it needs more than 63 bits.
func times(a, b int64) (int64, bool) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	return int64(low), high == 0 && low <= math.MaxInt64
}

// fits returns why a kernel must not run on an instance. Its sizes come from a call, unchecked. The rules are those of
// csrc/exec/kernel/Kernel.cpp.
func fits(k *kernel.Kernel, in *cuda.Instance, tensors [][]int64) error {
	spaces := make([][]int64, len(k.Spaces))
	rest := in.Sizes
	points := int64(0)
	for f, rank := range k.Spaces {
		spaces[f], rest = rest[:rank], rest[rank:]
		n, ok := count(spaces[f])
		if !ok {
			return fmt.Errorf("space %d has sizes %v", f, spaces[f])
		}
		if f > 0 && n != points {
			return fmt.Errorf("space %d has %d points, space 0 has %d", f, n, points)
		}
		points = n
	}
	if points > cuda.MaxPoints {
		return fmt.Errorf("it has %d points, a launch has %d at most", points, int64(cuda.MaxPoints))
	}
	for i, o := range k.Operands {
		for d, along := range o.Along {
			want := int64(1)
			switch {
			case along >= 0:
				want = spaces[o.Space][along]
			case along == kernel.Taken:
				want = max(tensors[i][d], 1)
				in.Operands[i].Taken = want
			}
			if tensors[i][d] != want {
				return fmt.Errorf("dim %d of operand %d has size %d, its space has %d", d, i, tensors[i][d], want)
			}
		}
		if !bounded(o, &in.Operands[i], tensors[i]) {
			return fmt.Errorf("operand %d with sizes %v and strides %v is too large", i, tensors[i], in.Operands[i].Strides)
		}
		if o.Access&kernel.Write != 0 && mayOverlap(tensors[i], in.Operands[i].Strides) {
			return fmt.Errorf("operand %d with sizes %v and strides %v would be written an element twice",
				i, tensors[i], in.Operands[i].Strides)
		}
	}
	for _, n := range k.Code {
		if n.Op != kernel.Number || n.B == 0 {
			continue
		}
		if v := in.Numbers[n.A]; !kernel.Holds(uint8(n.B), v.Integral, v.Real, v.Whole) {
			return fmt.Errorf("number %d is %v, none of dtype %d", n.A, v, n.B)
		}
	}
	if kept, _ := count(spaces[0][:k.Spaces[0]-k.Reduced]); points == 0 && kept != 0 {
		for _, n := range k.Code {
			if n.Op == kernel.Max || n.Op == kernel.Min {
				return fmt.Errorf("a maximum or minimum of no elements has no value")
			}
		}
	}
	return nil
}

// count returns the number of points of sizes. It returns false if a size is negative, or if the product of the sizes
// that are not 0 is too large.
func count(sizes []int64) (int64, bool) {
	n, empty := int64(1), false
	for _, s := range sizes {
		ok := s >= 0
		switch {
		case s == 0:
			empty = true
		case ok:
			n, ok = times(n, s)
		}
		if !ok {
			return 0, false
		}
	}
	if empty {
		return 0, true
	}
	return n, true
}

// mayOverlap reports whether two points of a bounded tensor may be the same element. Threads would write it in no fixed
// order.
func mayOverlap(sizes, strides []int64) bool {
	if slices.Contains(sizes, 0) {
		return false
	}
	for d, stride := range strides {
		if sizes[d] == 1 {
			continue
		}
		below := int64(0) // how far dims of smaller strides reach
		for e, s := range strides {
			if s < stride || s == stride && e < d {
				below += (sizes[e] - 1) * s
			}
		}
		if stride <= below {
			return true
		}
	}
	return false
}

// bounded reports whether the byte count of an operand fits in an int64.
func bounded(o kernel.Operand, at *cuda.Operand, sizes []int64) bool {
	reach := int64(1)
	for d, s := range at.Strides {
		if s < 0 {
			return false
		}
		if sizes[d] > 1 {
			far, ok := times(sizes[d]-1, s)
			if !ok || far > math.MaxInt64-reach {
				return false
			}
			reach += far
		}
	}
	_, ok := times(reach, int64(catalogue.DTypeSize(uint64(o.DType))))
	return ok
}
