// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import "github.com/mycelya/mycelya/kernel"

// walk is a row-major index space with the strides of each way in it. A way that does not run in it has strides 0.
type walk struct {
	sizes   []int64
	strides [][]int64 // by way and dim
	points  int64
}

func (w *walk) rank() int { return len(w.sizes) }

// strides returns the strides of all ways along the dims of an index space.
func (c *code) strides(at *Instance, space int) [][]int64 {
	out := make([][]int64, c.ways())
	for i := range out {
		out[i] = make([]int64, c.k.Spaces[space])
	}
	for i, o := range c.k.Operands {
		if o.Space != space {
			continue
		}
		for d, along := range o.Along {
			if along >= 0 {
				out[i][along] = at.Operands[i].Strides[d]
			}
		}
	}
	for i, d := range c.index {
		if space == 0 {
			out[len(c.k.Operands)+i][d] = 1
		}
	}
	return out
}

// walk makes a walk over dims in this order, and merges neighbouring dims where the strides of every way allow it.
func (c *code) walk(sizes []int64, strides [][]int64, dims []int) *walk {
	w := &walk{strides: make([][]int64, c.ways()), points: 1}
	var lead []int // by merged dim: the innermost of its dims
	for _, d := range dims {
		w.points *= sizes[d]
		if sizes[d] == 1 {
			continue
		}
		merges := len(lead) > 0
		for i := 0; merges && i < len(strides); i++ {
			merges = strides[i][lead[len(lead)-1]] == strides[i][d]*sizes[d]
		}
		if merges {
			w.sizes[len(w.sizes)-1] *= sizes[d]
			lead[len(lead)-1] = d
		} else {
			w.sizes = append(w.sizes, sizes[d])
			lead = append(lead, d)
		}
	}
	for i := range strides {
		for _, d := range lead {
			w.strides[i] = append(w.strides[i], strides[i][d])
		}
	}
	return w
}

// sort puts dims with large strides first. Strides of written operands come before those of read ones, so that
// neighbouring threads write neighbouring elements.
func (c *code) sort(strides [][]int64, dims []int) {
	outer := func(a, b int) bool {
		for _, write := range []bool{true, false} {
			for i, o := range c.k.Operands {
				if x, y := strides[i][a], strides[i][b]; (o.Access&kernel.Write != 0) == write && x != 0 && y != 0 && x != y {
					return x > y
				}
			}
		}
		return a < b
	}
	// outer is not a strict order, since operands have no stride along some dims. Insertion sort ends all the same.
	for i := 1; i < len(dims); i++ {
		for j := i; j > 0 && outer(dims[j], dims[j-1]); j-- {
			dims[j], dims[j-1] = dims[j-1], dims[j]
		}
	}
}

// walks returns the walks of an instance. A map has one per index space. A reduction has one over the rows and one over
// the points of a row.
func (c *code) walks(at *Instance) []*walk {
	k := c.k
	var out []*walk
	sizes := at.Sizes
	for f, rank := range k.Spaces {
		strides := c.strides(at, f)
		spans := [][2]int{{0, rank}}
		if k.Reduced > 0 {
			spans = [][2]int{{0, rank - k.Reduced}, {rank - k.Reduced, rank}}
		}
		for _, s := range spans {
			var dims []int
			empty := false
			for d := s[0]; d < s[1]; d++ {
				empty = empty || sizes[d] == 0
				if sizes[d] != 1 {
					dims = append(dims, d)
				}
			}
			if empty {
				out = append(out, &walk{strides: make([][]int64, c.ways())})
				continue
			}
			if len(k.Spaces) == 1 { // all of several index spaces must be walked in the same order
				c.sort(strides, dims)
			}
			out = append(out, c.walk(sizes[:rank], strides, dims))
		}
		sizes = sizes[rank:]
	}
	return out
}

// small reports whether 32 bits hold all point numbers and offsets. The last block also computes some beyond the end:
// fewer than 2^16 points or, if a block has a square, less than the square's side along each dim. Rows of a reduction
// have no points beyond the end.
func (c *code) small(at *Instance, walks []*walk) bool {
	const most, beyond, side = 1<<31 - 1<<16, 1 << 16, 64
	for _, w := range walks {
		if w.points > most {
			return false
		}
	}
	for i := range walks[0].strides {
		reach := int64(1)
		if c.taken(i) {
			o := &at.Operands[i]
			if reach += (o.Taken - 1) * o.Strides[c.k.Operands[i].Takes()]; reach > most {
				return false
			}
		}
		for j, w := range walks {
			for d, s := range w.strides[i] {
				last := w.sizes[d] - 1
				if c.k.Reduced == 0 || j > 0 {
					last += side
					if d == 0 {
						last += beyond / (w.points / w.sizes[0])
					}
				}
				if s > most { // or the product might not fit 64 bits
					return false
				}
				if reach += last * s; reach > most {
					return false
				}
			}
		}
	}
	return true
}
