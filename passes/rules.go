// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import "github.com/mycelya/mycelya/ir"

// Rule is one way of making a node better, under a name by which it can be expected and switched off. It holds for all
// sizes and numbers: a rule sees the ops and types of a graph, never a value.
type Rule struct {
	Name  string
	Doc   string // what becomes what
	Op    ir.Op  // of the node that it looks at; rules of one name may differ in it
	apply func(c *candidate) bool
}

// Firing is a rule that has changed a graph, and where the node came from.
type Firing struct {
	Rule   string
	Origin ir.Origin
}

// rules are those of a pass that are switched on, and what they did.
type rules struct {
	byOp    map[ir.Op][]*Rule
	fired   []Firing
	explain bool // whether refused is wanted
	refused []Refusal
}

func newRules(p Pass, spec *Spec) *rules {
	r := &rules{byOp: map[ir.Op][]*Rule{}}
	for i := range p.Rules {
		if rule := &p.Rules[i]; spec == nil || !spec.off[rule.Name] {
			r.byOp[rule.Op] = append(r.byOp[rule.Op], rule)
		}
	}
	return r
}

// candidate is a node that is about to be added to a graph, with a single result. A rule may change op, args and offset, or say
// that an older value is the result.
type candidate struct {
	g        *ir.Graph // what has been made so far
	node     ir.Node
	args     []ir.Arg
	t        ir.Type
	written  []bool  // by value of g: a call writes it in place, or a window on it
	storages []int32 // by value of g: how many nodes have it, or a window on it, as operand, and outputs
	is       ir.ValueID
	found    bool
	try      bool // whether a rule applies is all that is asked: g is not to be changed
}

// rewrite gives each node of a graph to the rules of its op, again for as long as one applies, in order: a rule sees operands
// that are as good as the rules make them. Results that a call writes in place stay what they are, and are not put in the
// place of others: two contents are two buffers as soon as one is written.
func rewrite(g *ir.Graph, r *rules) *ir.Graph {
	if len(r.byOp) == 0 {
		return g
	}
	written := writtenRoots(g)
	uses := rootUses(g)
	if !r.any(g, written, uses) {
		return g
	}
	c := candidate{written: make([]bool, 0, len(g.Types)), storages: make([]int32, 0, len(g.Types))}
	out := g.Rebuild(func(out *ir.Graph, old *ir.Node, node *ir.Node, args []ir.Arg, results []ir.Type) ([]ir.Arg, ir.ValueID, bool) {
		for len(c.written) < len(out.Types) {
			c.written, c.storages = append(c.written, false), append(c.storages, 0)
		}
		if node.N == 1 && node.Flags == 0 && !written[g.Root(old.First)] {
			c.g, c.node, c.args, c.t, c.found = out, *node, args, results[0], false
			for !c.found && r.apply(&c) {
			}
			if c.found {
				return nil, c.is, true
			}
			*node, args = c.node, c.args
		}
		for len(c.written) < len(out.Types) { // what a rule has made
			c.written, c.storages = append(c.written, false), append(c.storages, 0)
		}
		c.written = append(c.written, written[old.First:old.First+ir.ValueID(old.N)]...)
		c.storages = append(c.storages, uses[old.First:old.First+ir.ValueID(old.N)]...)
		return args, 0, false
	})
	return out
}

// any says whether a rule would apply to a graph: mostly none does, and then nothing has to be made.
func (r *rules) any(g *ir.Graph, written []bool, uses []int32) bool {
	c := candidate{g: g, written: written, storages: uses, try: true}
	for id := range g.Nodes {
		n := &g.Nodes[id]
		rules := r.byOp[n.Op]
		if len(rules) == 0 || n.N != 1 || n.Flags != 0 || written[g.Root(n.First)] {
			continue
		}
		c.t, c.found = g.Types[n.First], false
		for _, rule := range rules {
			c.node, c.args = *n, g.NodeArgs(ir.NodeID(id))
			if rule.apply(&c) {
				return true
			}
		}
	}
	return false
}

// rootUses counts by value the operands that it, or a window on it, is, and the outputs.
func rootUses(g *ir.Graph) []int32 {
	uses := make([]int32, len(g.Types))
	for id := range g.Nodes {
		if g.Nodes[id].Op != ir.OpView {
			for _, v := range g.Operands(ir.NodeID(id)) {
				uses[g.Root(v)]++
			}
		}
	}
	for _, o := range g.Outputs {
		uses[g.Root(o.Value)]++
	}
	return uses
}

// apply tries the rules of the candidate's op until one applies.
func (r *rules) apply(c *candidate) bool {
	for _, rule := range r.byOp[c.node.Op] {
		if rule.apply(c) {
			r.fired = append(r.fired, Firing{rule.Name, c.node.Origin})
			return true
		}
	}
	return false
}

// value is operand i.
func (c *candidate) value(i int) ir.ValueID { return ir.ValueID(c.args[i].V) }

func (c *candidate) typeOf(v ir.ValueID) ir.Type { return c.g.Types[v] }

// made is the node of a value if it is this op, else nil.
func (c *candidate) made(v ir.ValueID, op ir.Op) *ir.Node {
	if n := &c.g.Nodes[c.g.Def[v]]; n.Op == op {
		return n
	}
	return nil
}

// operandOf is operand i of a node.
func (c *candidate) operandOf(n *ir.Node, i int) ir.ValueID {
	return ir.ValueID(c.g.Args[int(n.ArgLo)+i].V)
}

// becomes says that the result is an older value. It is one only of the same type, layout included, that no call writes; and of
// what fills a storage, only one that does too.
func (c *candidate) becomes(v ir.ValueID) bool {
	if c.written[c.g.Root(v)] || c.g.Immediate(v) || !c.g.SameType(c.t, c.typeOf(v)) {
		return false
	}
	if c.made(v, ir.OpView) != nil && c.node.Op != ir.OpView {
		return false
	}
	if ir.Info(c.node.Op).Kind != ir.KindMemory && c.anyByte(v) {
		return false
	}
	c.is, c.found = v, true
	return true
}

// anyByte says whether a value is a b8 that may hold other bytes than 0 and 1, as one does that is a view of a u8. What computes
// or copies makes 0 and 1 of them; memory ops don't.
func (c *candidate) anyByte(v ir.ValueID) bool {
	return c.typeOf(v).DType == ir.Bool && ir.Info(c.g.Nodes[c.g.Def[v]].Op).Kind != ir.KindElementwise
}

// turns makes the candidate another op of these operands.
func (c *candidate) turns(op ir.Op, operands ...ir.ValueID) bool {
	c.node.Op, c.node.Name = op, 0
	c.args = make([]ir.Arg, 0, len(operands))
	for _, v := range operands {
		c.args = append(c.args, ir.Value(v))
	}
	return true
}
