// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"fmt"
	"strings"

	"github.com/mycelya/mycelya/kernel"
)

// Source is a CUDA C++ text, and its entries in the order in which they are launched.
type Source struct {
	Text    string
	Entries []string
}

// endEntry is the entry that combines the parts of split rows after the last pass.
const endEntry = "end"

// Print returns the text of a variant that Launches has chosen. Equal arguments give equal texts.
func Print(k *kernel.Kernel, v Variant) Source {
	c := analyse(k)
	p := &printer{code: c, v: &v, entries: c.entries(&v), helpers: map[string]bool{"vector": true}, unroll: 1}
	if v.Template != Transpose {
		p.unroll = c.unroll(&v)
	}
	p.index = "int"
	if v.Wide {
		p.index = "long long"
	}
	switch v.Template {
	case Pointwise:
		p.pointwise()
	case Transpose:
		p.transpose()
	default:
		p.reduction()
	}
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSuffix(k.String(), "\n"), "\n") {
		b.WriteString("// " + line + "\n")
	}
	fmt.Fprintf(&b, "// %s\n", &v)
	b.WriteString(preludeOf(p.helpers))
	b.WriteString("struct Args {\n")
	for _, f := range layout(c, &v).fields {
		b.WriteString("  " + f.declared + ";\n")
	}
	b.WriteString("};\n")
	b.WriteString(p.out.String())
	return Source{b.String(), p.entries}
}

// entries are the names of a variant's entries.
func (c *code) entries(v *Variant) []string {
	if !v.Split {
		return []string{v.Template.String()}
	}
	var out []string
	for p := range c.passes {
		out = append(out, fmt.Sprintf("pass%d", p))
	}
	for i := range c.k.Code {
		if c.k.Code[i].Op == kernel.Store && c.level[i] != perPoint {
			return append(out, endEntry)
		}
	}
	return out
}

type printer struct {
	*code
	v       *Variant
	index   string // type of indices
	unroll  int
	entries []string
	helpers map[string]bool
	out     strings.Builder
	depth   int
}

func (p *printer) line(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if strings.HasPrefix(text, "}") {
		p.depth--
	}
	if !strings.HasPrefix(text, "#") {
		p.out.WriteString(strings.Repeat("  ", p.depth))
	}
	p.out.WriteString(text + "\n")
	if strings.HasSuffix(text, "{") {
		p.depth++
	}
}

func (p *printer) helper(name string) string {
	p.helpers[name] = true
	return name
}

// each begins an unrolled loop, so that arrays indexed by its variable stay in registers.
func (p *printer) each(variable string, n int) {
	p.line("#pragma unroll")
	p.line("for (int %s = 0; %s < %d; ++%s) {", variable, variable, n, variable)
}

// begin opens an entry and prints the number of the block within its instance.
func (p *printer) begin(entry string, threads int) {
	if !p.v.Table {
		p.line(`extern "C" __global__ void __launch_bounds__(%d) %s(const __grid_constant__ Args a) {`, threads, entry)
		p.line("const unsigned block = blockIdx.x;")
		return
	}
	p.line(`extern "C" __global__ void __launch_bounds__(%d) %s(const Args* table, const unsigned long long* chunks) {`,
		threads, entry)
	p.line("const unsigned long long chunk = chunks[blockIdx.x];")
	p.line("const Args a = table[(unsigned)chunk];")
	p.line("const unsigned block = (unsigned)(chunk >> 32);")
}

// define prints the definition of an instruction's register.
func (p *printer) define(i int, from func(reg uint64) string) {
	n := &p.k.Code[i]
	p.line("const %s r%d = %s;", register(n.Class), i, p.value(i, from))
}

func plain(reg uint64) string { return fmt.Sprintf("r%d", reg) }

// value returns the expression of an instruction; from gives the text of a register that it reads.
func (p *printer) value(i int, from func(reg uint64) string) string {
	n := &p.k.Code[i]
	switch n.Op {
	case kernel.Number:
		switch n.Class {
		case kernel.F32:
			return fmt.Sprintf("__uint_as_float((unsigned)a.c%d)", i)
		case kernel.F64:
			return fmt.Sprintf("__longlong_as_double((long long)a.c%d)", i)
		case kernel.B8:
			return fmt.Sprintf("a.c%d != 0", i)
		}
		return fmt.Sprintf("(long long)a.c%d", i)
	case kernel.Const:
		return constant(n.Class, n.A)
	case kernel.Count:
		return fmt.Sprintf("(%s)a.n", register(n.Class))
	}
	var args []string
	used := registers(n)
	for _, r := range used {
		args = append(args, from(r))
	}
	return expression(n, p.k.Code[used[len(used)-1]].Class, args, p.helper)
}

// loaded returns an element converted to the register of LOAD i.
func (p *printer) loaded(i int, element string) string {
	return fmt.Sprintf("%s<%s>(%s)", p.helper("load_of"), register(p.k.Code[i].Class), element)
}

// stored returns a register converted to an element of an operand.
func (p *printer) stored(operand uint64, value string) string {
	return fmt.Sprintf("%s<%s>(%s)", p.helper("store_of"), memory(p.k.Operands[operand].DType), value)
}

// uniforms prints the registers that have one value.
func (p *printer) uniforms() {
	for i := range p.k.Code {
		n := &p.k.Code[i]
		switch {
		case !p.needed[i] || p.level[i] != uniform || n.Op == kernel.Store:
		case n.Op == kernel.Load:
			p.line("const %s r%d = %s;", register(n.Class), i, p.loaded(i, p.at(int(n.A), fmt.Sprintf("a.a%d", n.A))))
		case n.Op == kernel.Take:
			p.line("const %s r%d = %s;", register(n.Class), i, p.loaded(i, p.take(i, "0", plain(n.B))))
		default:
			p.define(i, plain)
		}
	}
}

// walkIndex prints the index arithmetic of a walk at a point, and calls set with the offset of each way of the walk
// that wants accepts.
func (p *printer) walkIndex(w int, point string, wants func(way int) bool, set func(way int, offset string)) {
	shape := &p.v.Walks[w]
	var terms []string // by dim: the index along it
	runs := make([]bool, shape.Rank)
	for i, letters := range shape.Ways {
		for d := range shape.Rank {
			runs[d] = runs[d] || letters != "-" && wants(i) && letters[d] != '0'
		}
	}
	outer := -1
	for d := range runs {
		if runs[d] {
			outer = d
			break
		}
	}
	terms = make([]string, shape.Rank)
	rest := point
	for d := shape.Rank - 1; outer >= 0 && d >= outer; d-- {
		if d == 0 {
			terms[0] = rest
			break
		}
		q := fmt.Sprintf("q%d", d)
		if p.v.Wide {
			p.line("const long long %s = %s / a.n%d_%d;", q, rest, w, d)
		} else {
			p.line("const int %s = %s(%s, a.m%d_%d);", q, p.helper("over"), rest, w, d)
		}
		terms[d] = fmt.Sprintf("(%s - %s * (%s)a.n%d_%d)", rest, q, p.index, w, d)
		rest = q
	}
	for i, letters := range shape.Ways {
		if letters == "-" || !wants(i) {
			continue
		}
		var sum []string
		for d := range shape.Rank {
			switch letters[d] {
			case '1':
				sum = append(sum, terms[d])
			case 's':
				sum = append(sum, fmt.Sprintf("%s * (%s)a.s%d_%d_%d", terms[d], p.index, i, w, d))
			}
		}
		if len(sum) == 0 {
			sum = []string{"0"}
		}
		set(i, strings.Join(sum, " + "))
	}
}

// dtype is the memory type of an operand.
func (p *printer) dtype(way int) string { return memory(p.k.Operands[way].DType) }

// reads and writes report whether the code loads or stores an operand at points. Several LOADs of an operand are one
// load.
func (p *printer) reads(way int) bool  { return p.takes(kernel.Load, way) }
func (p *printer) writes(way int) bool { return p.takes(kernel.Store, way) }

func (p *printer) takes(op kernel.Op, way int) bool {
	for i := range p.k.Code {
		if n := &p.k.Code[i]; n.Op == op && int(n.A) == way && p.needed[i] && p.level[i] == perPoint {
			return true
		}
	}
	return false
}

// apart reports whether nothing writes an operand's memory during the launch.
func (p *printer) apart(way int) bool { return p.v.Apart && p.k.Operands[way].Access&kernel.Write == 0 }

// at is the element at an address of an operand.
func (p *printer) at(way int, address string) string {
	return fmt.Sprintf("%s<%t>(%s)", p.helper("at"), p.apart(way), address)
}

// take is the element of TAKE i at an offset and a position.
func (p *printer) take(i int, offset, position string) string {
	return p.at(p.way(i), p.addressOf(i, offset, position))
}

// takeIf is the element of TAKE i if a condition holds; otherwise nothing is read.
func (p *printer) takeIf(condition string, i int, offset, position string) string {
	address := p.addressOf(i, offset, position)
	return fmt.Sprintf("%s<%t>(%s, %s)", p.helper("at_if"), p.apart(p.way(i)), condition, address)
}

func (p *printer) addressOf(i int, offset, position string) string {
	way := p.way(i)
	return fmt.Sprintf("a.a%d + %s + (%s)%s(%s, a.t%d) * (%s)a.p%d",
		way, offset, p.index, p.helper("within"), position, way, p.index, way)
}

// access prints the load of a way's vector at offset `at` into x<way>[u].
func (p *printer) access(shape *Pattern, w, way int, at string) {
	name := fmt.Sprintf("x%d[u]", way)
	switch {
	case shape.inner(way) == '0':
		p.line("%s = load<1, %t>(a.a%d + %s, left[u]);", name, p.apart(way), way, at)
	case shape.inner(way) == '1' || p.v.Vector == 1:
		p.line("%s = load<%d, %t>(a.a%d + %s, left[u]);", name, p.v.Vector, p.apart(way), way, at)
	default:
		p.line("%s = gather<%d, %t>(a.a%d + %s, (%s)a.s%d_%d_%d, left[u]);",
			name, p.v.Vector, p.apart(way), way, at, p.index, way, w, shape.Rank-1)
	}
}

// declare prints the vectors x<way> of an operand that is read.
func (p *printer) declare(shape *Pattern, way int) {
	v := p.v.Vector
	if shape.inner(way) == '0' {
		v = 1
	}
	p.line("vector<%d, %s> x%d[%d];", v, p.dtype(way), way, p.unroll)
}

// element returns the text of LOAD, TAKE or INDEX i for element k of vector u; from gives the text of a register.
func (p *printer) element(shape *Pattern, w, i int, from func(reg uint64) string) string {
	way := p.way(i)
	n := &p.k.Code[i]
	if n.Op == kernel.Index || n.Op == kernel.Take {
		offset := p.across(shape, w, way, fmt.Sprintf("o%d[u]", way))
		if n.Op == kernel.Index {
			return offset
		}
		return p.loaded(i, p.takeIf("k < left[u]", i, offset, from(n.B)))
	}
	if shape.inner(way) == '0' {
		return p.loaded(i, fmt.Sprintf("x%d[u].get(0)", way))
	}
	return p.loaded(i, fmt.Sprintf("x%d[u].get(k)", way))
}

// across is the offset of element k of a vector that begins at an offset.
func (p *printer) across(shape *Pattern, w, way int, offset string) string {
	switch shape.inner(way) {
	case '1':
		return offset + " + k"
	case 's':
		return fmt.Sprintf("%s + k * (%s)a.s%d_%d_%d", offset, p.index, way, w, shape.Rank-1)
	}
	return offset
}

// put prints the store of vector y<way>.
func (p *printer) put(shape *Pattern, w, way int) {
	if p.v.Vector == 1 || shape.inner(way) == '1' {
		p.line("store<%d>(a.a%d + o%d[u], y%d, left[u]);", p.v.Vector, way, way, way)
		return
	}
	p.line("scatter<%d>(a.a%d + o%d[u], y%d, (%s)a.s%d_%d_%d, left[u]);",
		p.v.Vector, way, way, way, p.index, way, w, shape.Rank-1)
}
