// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"fmt"
	"math"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/trace"
)

// builder builds the graph of one trace, record by record.
type builder struct {
	t        *trace.Trace
	d        *decoded
	names    *Table
	g        *ir.Graph
	storages []storage // by local number
	ops      []string  // by record
	record   int
	origin   ir.Origin
	guess    []uint64 // see again
	numbers  bool     // numbers in guess are known
	bad      error

	// Of the record being read.
	args    []ir.Arg
	writes  []written // in argument order
	items   []ir.Arg  // of a list
	types   []ir.Type // of the results
	defined []bool    // by result
}

// Build turns a trace into a graph. Its outputs are the storages that the trace made or wrote and that are set in
// wanted. wanted has one entry per local number. Where the parameters in guess, those of t or of another trace of its
// skeleton, have equal sizes of views of one storage, the graph serves only calls in which they are equal again
// (ir.Symbol.Also); nil: no size is guessed. If numbers is set, a param node has the number in guess if that is a
// plain one, on which a pass may rely. If the trace does not follow the grammar, the error names the place.
func (names *Table) Build(t *trace.Trace, wanted []bool, guess []uint64, numbers bool) (*trace.Captured, error) {
	d, err := decode(t)
	if err != nil {
		return nil, fmt.Errorf("decoding a trace: %w", err)
	}
	if len(wanted) != int(d.locals) {
		return nil, fmt.Errorf("building a graph: %d storages, but %d entries say which are wanted", d.locals, len(wanted))
	}
	b := &builder{t: t, d: d, names: names, guess: guess, numbers: numbers,
		g:   ir.NewGraph(names.name(t), catalogue.CutOf(t.Reason).Name),
		ops: make([]string, 0, len(d.records)), storages: make([]storage, 0, d.locals)}
	b.room()
	for i := range d.records {
		b.record = i
		b.origin = names.Origin(t.Origins[2*i], t.Origins[2*i+1])
		err := b.read(&d.records[i])
		if err == nil {
			err = b.bad
		}
		if err != nil {
			return nil, fmt.Errorf("building a graph: record %d, word %d: %w", i, d.records[i].word, err)
		}
	}
	return b.cut(wanted), nil
}

// room makes room for as much as a graph of such records usually has at most. A large graph that outgrows its room is
// copied, which takes longer than building it.
func (b *builder) room() {
	records, numbers, writes, listed := len(b.d.records), 0, 0, 0
	for i := range b.d.items {
		switch it := &b.d.items[i]; it.tag {
		case catalogue.TagNumber, catalogue.TagScalar:
			numbers++
		case catalogue.TagTensor:
			if it.has(catalogue.TensorWrite) {
				writes++
			}
		case catalogue.TagList:
			listed += int(it.n)
		}
	}
	leaves := numbers + int(b.d.locals)
	b.g.Grow(records+max(records, leaves), max(3*records, leaves+writes), len(b.d.items)-listed+numbers,
		len(b.t.Params)-numbers)
	b.g.ListArgs = make([]ir.Arg, 0, listed)
}

func (b *builder) read(r *record) error {
	name, ok := b.names.Op(r.op)
	if !ok {
		return fmt.Errorf("op %#x has no name", r.op)
	}
	b.ops = append(b.ops, name)
	switch name {
	case "mycelya::empty":
		return b.empty(r)
	case "mycelya::resize_storage":
		return b.readResize(r)
	}
	return b.call(r, name)
}

// empty reads mycelya::empty() -> result: a storage without content.
func (b *builder) empty(r *record) error {
	if r.nargs != 0 || r.nres != 1 || b.d.items[r.results].tag != catalogue.TagTensor {
		return fmt.Errorf("mycelya::empty has %d arguments and %d results", r.nargs, r.nres)
	}
	t := b.geometry(&b.d.items[r.results]).typ
	id := b.g.Add(ir.Node{Op: ir.OpEmpty, Record: int32(b.record), Origin: b.origin}, nil, []ir.Type{t})
	b.made(b.g.Nodes[id].First)
	return nil
}

// readResize reads mycelya::resize_storage(tensor!, size) -> nothing.
func (b *builder) readResize(r *record) error {
	if r.nargs != 2 || r.nres != 0 {
		return fmt.Errorf("mycelya::resize_storage has %d arguments and %d results", r.nargs, r.nres)
	}
	old, size := &b.d.items[r.args], &b.d.items[b.d.next(r.args)]
	if old.tag != catalogue.TagTensor || !old.has(catalogue.TensorWrite) || ir.DType(old.sub) != ir.U8 || old.rank != 1 {
		return fmt.Errorf("mycelya::resize_storage needs its storage as u8[bytes], to write")
	}
	switch {
	case size.tag == catalogue.TagSize:
		b.resize(old, b.symbol(size.param))
	case size.tag == catalogue.TagInt && int64(size.v) >= 0:
		b.resize(old, ir.Const(int64(size.v)))
	default:
		return fmt.Errorf("mycelya::resize_storage needs a size")
	}
	return nil
}

// call reads the record of an operator of PyTorch. It becomes an own op with exactly the same meaning if there is one,
// else a call by name.
func (b *builder) call(r *record, name string) error {
	b.args, b.writes = b.args[:0], b.writes[:0]
	i := r.args
	for range r.nargs {
		b.arg(i)
		i = b.d.next(i)
	}
	b.results(r)
	for _, w := range b.writes {
		b.types = append(b.types, w.g.typ)
	}
	v := b.g.Nodes[b.add(r, name, b.types)].First
	for _, made := range b.defined {
		if made {
			b.made(v)
		}
		v++
	}
	for _, w := range b.writes {
		b.write(w, v)
		v++
	}
	return nil
}

// add appends the node of a record.
func (b *builder) add(r *record, name string, types []ir.Type) ir.NodeID {
	n := ir.Node{
		Op: ir.OpCall, Name: b.g.Intern(name), Flags: ir.Flags(r.flags), Record: int32(b.record), Origin: b.origin,
	}
	op, own, ok := ir.FromATen(b.g, name, b.args)
	if !ok || len(types) != 1 || len(b.writes) != 0 || n.Flags != 0 || !types[0].DType.Valid() {
		id := b.g.Add(n, b.args, types)
		b.g.InferCall(id)
		return id
	}
	id := b.g.Add(ir.Node{Op: op, Record: n.Record, Origin: n.Origin}, own, types)
	b.g.InferCall(id)
	if b.g.Check(id) != nil { // the own op would give another type than the recorded one, so the call is not that op
		call := &b.g.Nodes[id]
		call.Op, call.Name = ir.OpCall, n.Name
		call.ArgLo = uint32(len(b.g.Args))
		b.g.Args = append(b.g.Args, b.args...)
		call.ArgHi = uint32(len(b.g.Args))
		b.g.InferCall(id)
	}
	return id
}

// results reads the types of a record's fresh tensors, with lists flattened, and which of them are defined.
func (b *builder) results(r *record) {
	b.types, b.defined = b.types[:0], b.defined[:0]
	for i := r.results; i < r.end; i++ {
		it := &b.d.items[i]
		switch it.tag {
		case catalogue.TagTensor:
			b.types, b.defined = append(b.types, b.geometry(it).typ), append(b.defined, true)
		case catalogue.TagNone:
			b.types, b.defined = append(b.types, ir.Type{}), append(b.defined, false)
		}
	}
}

// arg reads the argument at items[i] and appends it to b.args.
func (b *builder) arg(i uint32) {
	it := &b.d.items[i]
	if it.tag != catalogue.TagList {
		b.args = append(b.args, b.single(it))
		return
	}
	b.items = b.items[:0]
	for j := range it.n {
		b.items = append(b.items, b.single(&b.d.items[i+1+j]))
	}
	b.args = append(b.args, b.g.AddList(it.sub, b.items))
}

// single reads an argument that is not a list.
func (b *builder) single(it *item) ir.Arg {
	switch it.tag {
	case catalogue.TagTensor:
		v, g := b.operand(it)
		a := ir.Value(v)
		if it.has(catalogue.TensorWrite) {
			a.Write = true
			s := &b.storages[it.n]
			b.writes = append(b.writes, written{local: it.n, whole: v == s.value, g: g})
		}
		return a
	case catalogue.TagNumber:
		return b.number(ir.OpParam, numberTypes[it.sub], it.param)
	case catalogue.TagScalar:
		return b.number(ir.OpScalar, ir.DType(it.sub), it.param)
	case catalogue.TagSize:
		return ir.Arg{Kind: ir.ArgDim, V: int64(b.symbol(it.param))}
	case catalogue.TagGen:
		return ir.Arg{Kind: ir.ArgGen, V: int64(it.param)}
	case catalogue.TagStr:
		return ir.Arg{Kind: ir.ArgStr, V: int64(b.g.Intern(text(b.t, it)))}
	}
	return ir.Arg{Kind: ir.ArgKind(it.tag), V: int64(it.v)} // a literal
}

// numberTypes are the dtypes of Python numbers by their kind.
var numberTypes = func() []ir.DType {
	types := make([]ir.DType, 1+len(catalogue.NumberKinds))
	for _, n := range catalogue.NumberKinds {
		types[n.Number], _ = ir.ParseDType(n.DType)
	}
	return types
}()

// number makes the value of a number. Each occurrence has its own: two equal numbers may differ in the next call.
func (b *builder) number(op ir.Op, dtype ir.DType, slot uint32) ir.Arg {
	var first []ir.Arg
	if b.numbers && op == ir.OpParam {
		switch bits := b.guess[slot]; {
		case dtype == ir.F64 && plain(math.Float64frombits(bits)):
			first = []ir.Arg{{Kind: ir.ArgFloat, V: int64(bits)}}
		case dtype == ir.I64 && plain(float64(int64(bits))):
			first = []ir.Arg{{Kind: ir.ArgInt, V: int64(bits)}}
		}
	}
	id := b.g.Add(ir.Node{Op: op, Slot: slot, Record: int32(b.record), Origin: b.origin}, first, []ir.Type{{DType: dtype}})
	return ir.Value(b.g.Nodes[id].First)
}

// plain reports whether a number is 0, or a power of 2 or its negative. Rules are about such numbers, and the texts of
// graphs show no others, which may be a user's data.
func plain(v float64) bool {
	fraction, _ := math.Frexp(math.Abs(v))
	return v == 0 || fraction == 0.5
}

// text reads a string, which lies in its words in little-endian order.
func text(t *trace.Trace, it *item) string {
	s := make([]byte, it.n)
	for i := range s {
		s[i] = byte(t.Skeleton[it.v+uint64(i/8)] >> (8 * (i % 8)))
	}
	return string(s)
}
