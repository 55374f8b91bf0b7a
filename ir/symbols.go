// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"fmt"
	"slices"
	"strconv"
)

// Find gives the dim that represents all dims known to be equal to d: a constant if there is one, else the earliest
// symbol.
func (g *Graph) Find(d Dim) Dim {
	for {
		i, ok := d.Sym()
		if !ok || i >= len(g.equal) || g.equal[i] == d {
			return d
		}
		d = g.equal[i]
	}
}

// First is the value that a dim had when the graph was captured.
func (g *Graph) First(d Dim) int64 {
	d = g.Find(d)
	if i, ok := d.Sym(); ok {
		return g.Syms[i].First
	}
	return int64(d)
}

// UnifyDims notes that two dims are equal by an op's meaning. It returns false and notes nothing if they cannot be
// equal: two constants, or a symbol and a constant below 2, which a trace never makes a symbol.
func (g *Graph) UnifyDims(a, b Dim) bool {
	root, other := g.Find(a), g.Find(b)
	if root == other {
		return true
	}
	// The negative dims are symbols, the earliest the largest; so the larger dim is the constant or earlier symbol.
	if root < other {
		root, other = other, root
	}
	if other >= 0 || root == 0 || root == 1 {
		return false
	}
	g.own()
	for i := len(g.equal); i < len(g.Syms); i++ {
		g.equal = append(g.equal, SymDim(i))
	}
	for _, d := range [...]Dim{other, a, b} { // the last two only shorten later searches
		if i, ok := d.Sym(); ok && d != root {
			g.equal[i] = root
		}
	}
	return true
}

// also lists, by the dim that represents a symbol, the further parameter words that must hold its value.
func (g *Graph) also() map[Dim][]uint32 {
	slots := map[Dim][]uint32{}
	for i, s := range g.Syms {
		if len(s.Also) > 0 {
			d := g.Find(SymDim(i))
			slots[d] = append(slots[d], s.Also...)
		}
	}
	return slots
}

// Same reports whether two dims are known to be equal.
func (g *Graph) Same(a, b Dim) bool { return g.Find(a) == g.Find(b) }

// SameDims reports whether two lists of dims are known to be equal.
func (g *Graph) SameDims(a, b []Dim) bool { return slices.EqualFunc(a, b, g.Same) }

// SameType reports whether two types are known to be equal.
func (g *Graph) SameType(a, b Type) bool {
	return a.DType == b.DType && g.SameDims(a.Dims, b.Dims) &&
		(a.Strides == nil) == (b.Strides == nil) && g.SameDims(a.Strides, b.Strides)
}

// Canonicalize replaces each dim by the dim that represents it.
func (g *Graph) Canonicalize() {
	list := func(dims []Dim) []Dim {
		for i, d := range dims {
			if g.Find(d) != d {
				out := slices.Clone(dims)
				for j := i; j < len(out); j++ {
					out[j] = g.Find(out[j])
				}
				return out
			}
		}
		return dims
	}
	for i := range g.Types {
		t := &g.Types[i]
		t.Dims, t.Strides = list(t.Dims), list(t.Strides)
	}
	for i := range g.Nodes {
		g.Nodes[i].Offset = g.Find(g.Nodes[i].Offset)
	}
	var done shared // without a new equality, what is shared stays canonical
	if g.shared != nil {
		done = *g.shared
	}
	for i := done.requires; i < len(g.Requires); i++ {
		r := &g.Requires[i]
		r.Left, r.Right = list(r.Left), list(r.Right)
	}
	for i := done.syms; i < len(g.Syms); i++ {
		if q := g.Syms[i].Quotient; q != nil {
			g.Syms[i].Quotient = &Quotient{list(q.Of), list(q.By)}
		}
	}
	for _, args := range [][]Arg{g.Args, g.ListArgs} {
		for i := range args {
			if args[i].Kind == ArgDim {
				args[i].V = int64(g.Find(Dim(args[i].V)))
			}
		}
	}
}

// Reduce returns two products that are equal exactly if the given ones are. They have no factor 1, no common factor and
// no quotient. No factor that Reduce removes is 0.
func (g *Graph) Reduce(a, b []Dim) (x, y []Dim) {
	over, under := g.Factors(a)
	right, left := g.Factors(b)
	over, under = append(over, left...), append(under, right...)
	for _, d := range over {
		if i := slices.Index(under, d); i >= 0 {
			under = slices.Delete(under, i, i+1)
		} else {
			x = append(x, d)
		}
	}
	return x, under
}

// Quotient is the quotient that a dim is, nil if it is none.
func (g *Graph) Quotient(d Dim) *Quotient {
	if i, ok := g.Find(d).Sym(); ok {
		return g.Syms[i].Quotient
	}
	return nil
}

// Factors writes a product of sizes as one product over another, neither with quotients.
func (g *Graph) Factors(dims []Dim) (over, under []Dim) { return g.flat(dims, nil, nil) }

// flat appends the sizes of a product to x, and the divisors of the quotients among them to y.
func (g *Graph) flat(dims, x, y []Dim) (over, under []Dim) {
	for _, d := range dims {
		d = g.Find(d)
		if q := g.Quotient(d); q != nil {
			x, y = g.flat(q.Of, x, y)
			y, x = g.flat(q.By, y, x)
		} else if d != Const(1) {
			x = append(x, d)
		}
	}
	return x, y
}

// firstProduct is the value that a product of sizes had when the graph was captured.
func (g *Graph) firstProduct(dims []Dim) int64 {
	n := int64(1)
	for _, d := range dims {
		n *= g.First(d)
	}
	return n
}

// NameSymbols gives each symbol in use a name that later changes of the graph keep.
func (g *Graph) NameSymbols() {
	names, _ := g.symbolNames()
	g.own()
	for i, name := range names {
		if name != "" {
			g.Syms[i].Name = name
		}
	}
}

// DimString is a dim as it is printed.
func (g *Graph) DimString(d Dim) string {
	names, _ := g.symbolNames()
	return dimString(names, g.Find(d))
}

func dimString(names []string, d Dim) string {
	i, ok := d.Sym()
	switch {
	case !ok:
		return strconv.FormatInt(int64(d), 10)
	case i >= len(names) || names[i] == "":
		return fmt.Sprintf("?%d", i) // the graph has no such symbol; the verifier refuses it
	}
	return names[i]
}

// symbolNames gives the names of the symbols that represent those in use, "" for all others, and the order in which
// they first occur. A symbol keeps its own name if it is the first to have it.
func (g *Graph) symbolNames() (names []string, order []int) {
	names = make([]string, len(g.Syms))
	seen := make([]bool, len(g.Syms))
	taken := map[string]bool{}
	var see func(d Dim)
	see = func(d Dim) {
		i, ok := g.Find(d).Sym()
		if !ok || i >= len(seen) || seen[i] {
			return
		}
		seen[i] = true
		if q := g.Syms[i].Quotient; q != nil {
			for _, d := range slices.Concat(q.Of, q.By) {
				see(d)
			}
		}
		order = append(order, i)
		if name := g.Syms[i].Name; isIdent(name) && !reserved[name] && !taken[name] {
			names[i], taken[name] = name, true
		}
	}
	g.eachDim(see)
	next := 0
	for _, i := range order {
		for names[i] == "" {
			name := "d" + strconv.Itoa(next)
			if next < 26 {
				name = string(rune('a' + next))
			}
			next++
			if !taken[name] {
				names[i] = name
			}
		}
	}
	return names, order
}

// eachDim calls f with each dim of the graph in the order in which it is printed.
func (g *Graph) eachDim(f func(Dim)) {
	arg := func(a Arg) {
		if a.Kind == ArgDim {
			f(Dim(a.V))
		}
	}
	for id := range g.Nodes {
		n := &g.Nodes[id]
		for v := n.First; v < n.First+ValueID(n.N) && int(v) < len(g.Types); v++ {
			for _, d := range g.Types[v].Dims {
				f(d)
			}
			for _, d := range g.Types[v].Strides {
				f(d)
			}
		}
		if n.Op == OpView || n.Op == OpUpdate {
			f(n.Offset)
		}
		for _, a := range g.safeArgs(NodeID(id)) {
			arg(a)
			for _, item := range g.safeList(a) {
				arg(item)
			}
		}
	}
	for _, r := range g.Requires {
		for _, d := range append(slices.Clone(r.Left), r.Right...) {
			f(d)
		}
	}
}
