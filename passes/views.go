// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import "github.com/mycelya/mycelya/ir"

// viewsRules make chains of views, writes through them and reads of what was written shorter.
func viewsRules() []Rule {
	return []Rule{
		{"ViewOfView", "view (view x) -> view x: a view says its place in the storage, not in its operand", ir.OpView, viewOfView},
		{"ViewOfAll", "view x -> x, of the same sizes and layout", ir.OpView, viewOfAll},
		{"LoadOfStore", "view (update x y) -> y, of the region that y went to", ir.OpView, loadOfStore},
		{"StoreOfLoad", "update x (view x) -> x, of one region", ir.OpUpdate, storeOfLoad},
		{"StoreOfAll", "update x y -> y, of the same sizes and layout", ir.OpUpdate, storeOfAll},
		{"StoreOverStore", "update (update x y) z -> update x z, of one region", ir.OpUpdate, storeOverStore},
		{"CopyOfSame", "copy x -> x, of the same layout", ir.OpCopy, copyOfSame},
	}
}

func viewOfView(c *candidate) bool {
	inner := c.made(c.value(0), ir.OpView)
	return inner != nil && c.turns(ir.OpView, c.g.Root(c.value(0)))
}

// Near miss: the same sizes at another offset, or with other strides.
func viewOfAll(c *candidate) bool {
	return c.g.Same(c.node.Offset, ir.Const(0)) && c.becomes(c.value(0))
}

// Valid because the region has y's type, layout included. Near misses: the same sizes at another offset; another dtype, which
// reads the same bytes as other numbers.
func loadOfStore(c *candidate) bool {
	store := c.made(c.value(0), ir.OpUpdate)
	return store != nil && c.g.Same(store.Offset, c.node.Offset) && c.becomes(c.operandOf(store, 1))
}

func storeOfLoad(c *candidate) bool {
	x, y := c.value(0), c.value(1)
	load := c.made(y, ir.OpView)
	return load != nil && c.operandOf(load, 0) == x && c.g.Same(load.Offset, c.node.Offset) && c.becomes(x)
}

func storeOfAll(c *candidate) bool {
	return c.g.Same(c.node.Offset, ir.Const(0)) && c.becomes(c.value(1))
}

// Near miss: a larger region before a smaller one.
func storeOverStore(c *candidate) bool {
	first := c.made(c.value(0), ir.OpUpdate)
	if first == nil || !c.g.Same(first.Offset, c.node.Offset) || !c.readable(first, 1) {
		return false
	}
	if !c.g.SameType(c.typeOf(c.operandOf(first, 1)), c.typeOf(c.value(1))) {
		return false
	}
	return c.turns(ir.OpUpdate, c.operandOf(first, 0), c.value(1))
}

// Near miss: another layout, which is why somebody asked for the copy.
func copyOfSame(c *candidate) bool { return c.becomes(c.value(0)) }
