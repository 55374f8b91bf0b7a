// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import "github.com/mycelya/mycelya/ir"

// Rule is a named rewrite of one node: a pattern, a guard and a replacement. A rule sees ops and types, never the
// values of sizes and numbers, and so it holds for all of them. No rule applies to a result that a call writes in
// place.
type Rule struct {
	Name string
	Doc  string // the node before and after
	Op   ir.Op  // of the node; rules of one name may differ in it

	match   func(c *candidate) bool // the pattern: which ops make the operands. It may bind x, y, at and inner.
	guard   func(c *candidate) bool // whether the replacement is valid and costs no copy; nil: it always is
	replace func(c *candidate)
}

// Firing is a rule that has changed a graph, and where the node came from.
type Firing struct {
	Rule   string
	Origin ir.Origin
}

// rules are the rules of a pass that are switched on, and what they did.
type rules struct {
	pass      string
	spec      *Spec
	byOp      [ir.NumOps][]*Rule
	unguarded string // see Options.unguarded
	fired     []Firing
	explain   bool // whether the observer reads refused
	refused   []Refusal
}

func newRules(p Pass, opt Options) *rules {
	r := &rules{pass: p.Name, spec: opt.Spec, unguarded: opt.unguarded}
	for i := range p.Rules {
		if rule := &p.Rules[i]; opt.Spec == nil || !opt.Spec.off[rule.Name] {
			r.byOp[rule.Op] = append(r.byOp[rule.Op], rule)
		}
	}
	return r
}

// candidate is a node with a single result that is about to be added to a graph. A replacement changes op, args and
// offset, or makes an older value the result.
type candidate struct {
	g           *ir.Graph // the nodes so far
	node        ir.Node
	args        []ir.Arg
	t           ir.Type
	overwritten bool    // a call writes the result in place
	written     []bool  // by value of g: a call writes it, or a window on it, in place
	storages    []int32 // by value of g: how many nodes and outputs use it, or a window on it

	// A pattern binds these.
	x, y  ir.ValueID
	at    int // an operand's index
	inner *ir.Node

	is    ir.ValueID // the older value, if found
	found bool
}

// rewrite applies the rules of its op to each node of a graph until none applies. Nodes come in order, so a rule sees
// rewritten operands. A result that a call writes in place stays: two contents are two buffers as soon as one of them
// is written.
func rewrite(g *ir.Graph, r *rules) *ir.Graph {
	written := writtenRoots(g)
	uses := rootUses(g)
	if !r.any(g, written, uses) {
		return g
	}
	c := candidate{written: make([]bool, 0, len(g.Types)), storages: make([]int32, 0, len(g.Types))}
	grow := func(n int) {
		for len(c.written) < n {
			c.written, c.storages = append(c.written, false), append(c.storages, 0)
		}
	}
	edit := func(out *ir.Graph, old, node *ir.Node, args []ir.Arg, results []ir.Type) ([]ir.Arg, ir.ValueID, bool) {
		grow(len(out.Types))
		if tries(node) {
			c.g, c.node, c.args, c.t, c.found = out, *node, args, results[0], false
			c.overwritten = written[g.Root(old.First)]
			for !c.found && r.apply(&c) {
			}
			if c.found {
				return nil, c.is, true
			}
			*node, args = c.node, c.args
		}
		grow(len(out.Types)) // a replacement may have added nodes
		c.written = append(c.written, written[old.First:old.First+ir.ValueID(old.N)]...)
		c.storages = append(c.storages, uses[old.First:old.First+ir.ValueID(old.N)]...)
		return args, 0, false
	}
	return g.Rebuild(edit)
}

// any reports whether a rule applies to a graph. Mostly none does, and then no graph has to be built.
func (r *rules) any(g *ir.Graph, written []bool, uses []int32) bool {
	c := candidate{g: g, written: written, storages: uses}
	for id := range g.Nodes {
		n := &g.Nodes[id]
		if !tries(n) {
			continue
		}
		c.node, c.args, c.t = *n, g.NodeArgs(ir.NodeID(id)), g.Types[n.First]
		c.overwritten = written[g.Root(n.First)]
		for _, rule := range r.byOp[n.Op] {
			if r.applies(rule, &c) {
				return true
			}
		}
	}
	return false
}

// tries reports whether rules are tried on a node: it has a single result and no effect.
func tries(n *ir.Node) bool { return n.N == 1 && n.Flags == 0 }

func (r *rules) applies(rule *Rule, c *candidate) bool {
	if !rule.match(c) {
		return false
	}
	return rule.Name == r.unguarded || !c.overwritten && (rule.guard == nil || rule.guard(c))
}

// apply tries the rules of the candidate's op until one applies.
func (r *rules) apply(c *candidate) bool {
	for _, rule := range r.byOp[c.node.Op] {
		if r.applies(rule, c) && r.spec.allows(r.pass, rule.Name, c.node.Origin) {
			rule.replace(c)
			r.fired = append(r.fired, Firing{rule.Name, c.node.Origin})
			return true
		}
	}
	return false
}

// rootUses counts by storage, named by its root value, the operands and outputs that are the root or a window on it. A
// view counts as a use, whether it is read or not.
func rootUses(g *ir.Graph) []int32 {
	uses := make([]int32, len(g.Types))
	for id := range g.Nodes {
		g.Uses(ir.NodeID(id), func(v ir.ValueID, _ bool) { uses[g.Root(v)]++ })
	}
	for _, o := range g.Outputs {
		uses[g.Root(o.Value)]++
	}
	return uses
}

// value is operand i.
func (c *candidate) value(i int) ir.ValueID { return ir.ValueID(c.args[i].V) }

func (c *candidate) typeOf(v ir.ValueID) ir.Type { return c.g.Types[v] }

// made returns the node of a value if it is this op, else nil.
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

// firstOperand is the pattern of every node. It binds x to the first operand.
func firstOperand(c *candidate) bool {
	c.x = c.value(0)
	return true
}

// twin is the guard of becomeX.
func twin(c *candidate) bool { return c.isTwin(c.x) }

// isTwin reports whether an older value may stand for the result: it has the same type, layout included, and no call
// writes it. A view stands for views only. A b8 that may hold bytes other than 0 and 1 stands for the results of memory
// ops only, since all other ops return 0 and 1.
func (c *candidate) isTwin(v ir.ValueID) bool {
	if c.written[c.g.Root(v)] || c.g.Immediate(v) || !c.g.SameType(c.t, c.typeOf(v)) {
		return false
	}
	if c.made(v, ir.OpView) != nil && c.node.Op != ir.OpView {
		return false
	}
	return ir.Info(c.node.Op).Kind == ir.KindMemory || !c.anyByte(v)
}

// anyByte reports whether a value is a b8 that may hold bytes other than 0 and 1, as a view of a u8 does.
func (c *candidate) anyByte(v ir.ValueID) bool {
	return c.typeOf(v).DType == ir.Bool && ir.Info(c.g.Nodes[c.g.Def[v]].Op).Kind != ir.KindElementwise
}

// readable reports whether no call writes the first n operands of a node. A later read of an operand that is written
// would need a copy of the old content.
func (c *candidate) readable(node *ir.Node, n int) bool {
	for i := range n {
		if c.written[c.g.Root(c.operandOf(node, i))] {
			return false
		}
	}
	return true
}

// becomeX makes x the result.
func becomeX(c *candidate) { c.is, c.found = c.x, true }

// become makes the candidate another op of these operands.
func (c *candidate) become(op ir.Op, operands ...ir.ValueID) {
	c.node.Op, c.node.Name = op, 0
	c.args = make([]ir.Arg, 0, len(operands))
	for _, v := range operands {
		c.args = append(c.args, ir.Value(v))
	}
}
