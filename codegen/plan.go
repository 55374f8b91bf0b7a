// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
)

// location is the memory of a root: a buffer and an offset in elements of the root's dtype. If full, the root fills the
// buffer, so a storage can take the buffer.
type location struct {
	buffer int // -1: nowhere
	offset ir.Dim
	full   bool
}

var nowhere = location{buffer: -1}

// buffer is the planner's state of a buffer at the current node. All residents are windows on its current content.
// Before a content is overwritten, each resident is moved to a copy or evicted.
type buffer struct {
	slot      int32 // binding slot whose storage it is at the start, -1: made by the program
	pinned    bool  // the storage must keep its content: never written
	freed     bool
	windows   uint32 // one more than the number of the first of its windows, 0 for none
	residents []ir.ValueID
}

// slot is the planner's state of a binding slot.
type slot struct {
	input    ir.ValueID // one more than the first used value of its input nodes without a location, 0 for none
	replaced bool       // by an output
	written  bool       // by a record of the trace
	first    int32      // the first such record
	output   int        // one more than the index of its program output, 0 for none
}

// planner walks a graph in order and emits steps.
type planner struct {
	g       *ir.Graph
	u       *uses
	o       Options
	out     *Compiled
	params  params
	at      []location // by root
	buffers []buffer
	room    []ir.ValueID // for one resident of each buffer; most have no more
	slots   ir.BySlot[slot]
	same    map[ir.ValueID]ir.ValueID // by value of slot.input: the next one of the slot
	touched []int                     // buffers that the current node read, wrote or made
	dead    []int                     // see freeDead
	next    []uint32                  // by number of a window: one more than the number of its buffer's next one
	tensors map[string]uint32         // by the window's key; see listed
	key     []byte                    // a buffer for one key
	targets []location                // see call
	kernels map[string]int            // by text: the kernel's number
	record  int32                     // of the current node
	reads   ofGroup[location]         // by value that the group reads: where its operators find it
	used    ofGroup[usedBy]           // by buffer

	versions versions // of the graph
	version  []int32  // by value: one more than the number of its first version, 0 for none
	another  []int32  // by version: the same for the next version of its value
	earliest []int32  // by node: the smallest record of the later operators
}

func newPlanner(given *ir.Graph, o Options) *planner {
	own := *given
	own.Syms = slices.Clip(own.Syms) // the kernels of groups add quotients of sizes
	g := &own
	steps, buffers := 0, 0 // at most, usually
	for i := range g.Nodes {
		switch n := &g.Nodes[i]; {
		case n.Op == ir.OpInput:
			buffers++
		case ir.Info(n.Op).Kind != ir.KindLeaf && n.Op != ir.OpView:
			steps += 2
			buffers += g.NumFresh(ir.NodeID(i))
		}
	}
	p := &planner{
		g: g, u: findUses(g), o: o,
		out: &Compiled{
			Program: &program.Program{Steps: make([]program.Step, 0, steps), Records: make([]uint32, 0, steps)},
		},
		params:  params{quotients: map[int]program.Dim{}},
		at:      make([]location, len(g.Types)),
		buffers: make([]buffer, 0, buffers),
		room:    make([]ir.ValueID, 0, buffers),
		slots:   ir.NewBySlot[slot](g),
		same:    map[ir.ValueID]ir.ValueID{},
		tensors: map[string]uint32{},
		kernels: map[string]int{},
		record:  -1,
	}
	for i := range p.at {
		p.at[i] = nowhere
	}
	p.follow()
	for _, o := range g.Outputs {
		p.slots.At(o.Slot).replaced = true
	}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		if n := &g.Nodes[i]; n.Op == ir.OpInput && len(p.u.at[n.First]) > 0 {
			s := p.slots.At(n.Slot)
			if s.input > 0 {
				p.same[n.First] = s.input - 1
			}
			s.input = n.First + 1
		}
	}
	return p
}

func (p *planner) newBuffer() int {
	p.buffers = append(p.buffers, buffer{slot: -1})
	b := len(p.buffers) - 1
	p.touched = append(p.touched, b)
	return b
}

// put makes root a resident.
func (p *planner) put(root ir.ValueID, at location) {
	p.at[root] = at
	b := &p.buffers[at.buffer]
	if n := len(p.room); b.residents == nil && n < cap(p.room) {
		p.room = p.room[:n+1]
		b.residents = p.room[n : n : n+1]
	}
	b.residents = append(b.residents, root)
	p.touched = append(p.touched, at.buffer)
	p.hold(root, at)
}

// evict removes a root from its buffer.
func (p *planner) evict(root ir.ValueID) {
	b := &p.buffers[p.at[root].buffer]
	b.residents = slices.DeleteFunc(b.residents, func(v ir.ValueID) bool { return v == root })
	p.at[root] = nowhere
}

func (p *planner) emit(s program.Step) {
	p.out.Program.Steps = append(p.out.Program.Steps, s)
	p.out.Program.Records = append(p.out.Program.Records, uint32(p.record+1))
}

func (p *planner) clone(from int) int {
	if b := &p.buffers[from]; b.slot >= 0 && len(b.residents) > 0 {
		v := b.residents[0] // Peak takes the size of a storage from its windows
		p.tensor(p.at[v], p.g.Types[v])
	}
	to := p.newBuffer()
	p.emit(&program.Clone{To: uint32(to), From: uint32(from)})
	return to
}

// own makes root's buffer writable at a node: content of the buffer that is still needed is copied away first. It
// returns the location where the node writes root; all windows on root that the node writes must lie there. If apart,
// the node also reads root, as the patch of an update, and must see the old content. Otherwise a read of root by the
// node is an alias of what it writes, as in PyTorch.
func (p *planner) own(root ir.ValueID, node ir.NodeID, apart bool) (location, error) {
	from := p.at[root]
	if from.buffer < 0 {
		return nowhere, fmt.Errorf("BUG: the written value %%%d has no buffer", root)
	}
	p.touched = append(p.touched, from.buffer)
	var keep []ir.ValueID
	for _, v := range p.buffers[from.buffer].residents {
		if p.u.after(v, node) || ((v != root || apart) && p.u.reads(v, node)) {
			keep = append(keep, v)
		}
	}
	if p.buffers[from.buffer].pinned || !p.mayOverwrite(from.buffer, node) {
		from.buffer = p.clone(from.buffer)
		return from, nil
	}
	if len(keep) > 0 {
		p.asMade(keep, func() {
			to := p.clone(from.buffer)
			for _, v := range keep {
				at := p.at[v]
				p.evict(v)
				at.buffer = to
				p.put(v, at)
			}
		})
	}
	// The other residents are not needed any more: their content ends here.
	for _, v := range slices.Clone(p.buffers[from.buffer].residents) {
		p.evict(v)
	}
	return from, nil
}

// shift returns the offset in a buffer of a window at an offset in a root, or false if no dim can express it.
func (p *planner) shift(root ir.ValueID, at location, offset ir.Dim, dtype ir.DType) (ir.Dim, bool) {
	base, offset := p.g.Find(at.offset), p.g.Find(offset)
	have, want := int64(p.g.Types[root].DType.Size()), int64(dtype.Size())
	_, baseSym := base.Sym()
	_, offsetSym := offset.Sym()
	switch {
	case base == 0:
		return offset, true
	case have == want && offset == 0:
		return base, true
	case !baseSym && !offsetSym && int64(base)*have%want == 0:
		return ir.Const(int64(base)*have/want + int64(offset)), true
	}
	return 0, false
}

// locate returns the window of a value, root or view. A root is first copied into a buffer of its own if its offset in
// a larger buffer cannot be added to the view's.
func (p *planner) locate(v ir.ValueID) (location, error) {
	root := p.u.root[v]
	at := p.at[root]
	if at.buffer < 0 {
		return nowhere, fmt.Errorf("BUG: the value %%%d has no buffer", root)
	}
	if v == root {
		return at, nil
	}
	offset, ok := p.shift(root, at, p.g.Nodes[p.g.Def[v]].Offset, p.g.Types[v].DType)
	if !ok {
		at = p.materialise(root)
		offset, _ = p.shift(root, at, p.g.Nodes[p.g.Def[v]].Offset, p.g.Types[v].DType)
	}
	return location{buffer: at.buffer, offset: offset}, nil
}

// expressWindows makes every window on the roots of a node expressible, before the node decides which buffers it may
// write.
func (p *planner) expressWindows(node ir.NodeID) error {
	var err error
	p.g.Uses(node, func(v ir.ValueID, _ bool) {
		if err == nil && !p.g.Immediate(v) {
			_, err = p.locate(v)
		}
	})
	return err
}

// materialise moves root into a buffer of its own.
func (p *planner) materialise(root ir.ValueID) location {
	p.touched = append(p.touched, p.at[root].buffer)
	to := location{buffer: p.newBuffer(), full: true}
	p.asMade([]ir.ValueID{root}, func() {
		p.copy(p.tensor(to, p.g.Types[root]), p.tensor(p.at[root], p.g.Types[root]))
		p.evict(root)
		p.put(root, to)
	})
	return to
}

// asMade emits steps that only move contents. They belong to the first record that has made one of these values: after
// a failure, steps of earlier records may still read the values.
func (p *planner) asMade(values []ir.ValueID, emit func()) {
	current := p.record
	for i, v := range values {
		if r := p.g.Nodes[p.g.Def[v]].Record; i == 0 || r < p.record {
			p.record = r
		}
	}
	emit()
	p.record = current
}

func (p *planner) copy(dst, src uint32) {
	p.emit(&program.Copy{Dst: dst, Src: src})
}

// listed is the number of a buffer's windows that are found by looking at each. Later ones have a key.
const listed = 8

// tensor returns the program's number for a window. Equal windows have one number.
func (p *planner) tensor(at location, t ir.Type) uint32 {
	g := p.g
	offset := g.Find(at.offset)
	last, count := &p.buffers[at.buffer].windows, 0
	for ; *last > 0 && count < listed; count++ {
		if i := *last - 1; p.isWindow(&p.out.Program.Tensors[i], offset, t) {
			return i
		}
		last = &p.next[*last-1]
	}
	i := uint32(len(p.out.Program.Tensors))
	if count < listed {
		*last = i + 1
	} else {
		key := p.windowKey(at.buffer, offset, t)
		if i, ok := p.tensors[string(key)]; ok {
			return i
		}
		p.tensors[string(key)] = i
	}
	w := program.Tensor{Buffer: uint32(at.buffer), DType: uint8(t.DType), Sizes: p.params.dims(g, t.Dims)}
	if t.Strides != nil {
		w.Strides = p.params.dims(g, t.Strides)
	}
	w.Offset = p.params.dim(g, offset)
	p.out.Program.Tensors, p.next = append(p.out.Program.Tensors, w), append(p.next, 0)
	return i
}

// windowKey returns a key that equal windows of a buffer share.
func (p *planner) windowKey(buffer int, offset ir.Dim, t ir.Type) []byte {
	key := binary.AppendUvarint(p.key[:0], uint64(buffer))
	key = binary.AppendVarint(append(key, byte(t.DType), byte(len(t.Dims)), byte(len(t.Strides))), int64(offset))
	for _, list := range [2][]ir.Dim{t.Dims, t.Strides} {
		for _, d := range list {
			key = binary.AppendVarint(key, int64(p.g.Find(d)))
		}
	}
	if t.Strides != nil {
		key = append(key, 's')
	}
	p.key = key
	return key
}

// isWindow reports whether a window has an offset and a geometry.
func (p *planner) isWindow(w *program.Tensor, offset ir.Dim, t ir.Type) bool {
	equal := func(have []program.Dim, want []ir.Dim) bool {
		return slices.EqualFunc(have, want, func(x program.Dim, d ir.Dim) bool { return x == p.params.dim(p.g, d) })
	}
	return w.DType == uint8(t.DType) && (w.Strides == nil) == (t.Strides == nil) &&
		equal(w.Sizes, t.Dims) && equal(w.Strides, t.Strides) && w.Offset == p.params.dim(p.g, offset)
}

// freeDead frees the buffers that no later node reads.
func (p *planner) freeDead(node ir.NodeID) {
	for _, root := range p.u.kept[node] {
		if at := p.at[root]; at.buffer >= 0 {
			p.touched = append(p.touched, at.buffer)
		}
	}
	p.dead = p.dead[:0]
	for _, i := range p.touched {
		b := &p.buffers[i]
		if b.slot >= 0 || b.freed || slices.ContainsFunc(b.residents, func(v ir.ValueID) bool { return p.u.after(v, node) }) {
			continue
		}
		p.dead = append(p.dead, i)
	}
	slices.Sort(p.dead)
	for _, i := range slices.Compact(p.dead) {
		b := &p.buffers[i]
		b.freed = true
		for _, v := range b.residents {
			p.at[v] = nowhere
		}
		b.residents = nil
		p.emit(&program.Free{Buffer: uint32(i)})
	}
	p.touched = p.touched[:0]
}

func (p *planner) title(id ir.NodeID) string {
	n := &p.g.Nodes[id]
	s := n.Op.String()
	if n.Op == ir.OpCall {
		s = p.g.CallName(id)
	}
	if n.Origin.File != "" {
		s += fmt.Sprintf(", recorded at %s:%d", n.Origin.File[strings.LastIndexByte(n.Origin.File, '/')+1:], n.Origin.Line)
	}
	return s
}
