// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import "github.com/mycelya/mycelya/ir"

// viewsRules make chains of views, writes through views and reads of written windows shorter.
func viewsRules() []Rule {
	return []Rule{
		{"ViewOfView", "view (view x) -> view x", ir.OpView, viewOfView, nil, viewOfRoot},
		{"ViewOfAll", "view x -> x, of the same sizes and layout", ir.OpView, firstOperand, wholeStorage, becomeX},
		{"LoadOfStore", "view (update x y) -> y, of the window that y went to", ir.OpView,
			loadOfStore, sameWindow, becomeX},
		{"StoreOfLoad", "update x (view x) -> x, of one window", ir.OpUpdate, storeOfLoad, sameWindow, becomeX},
		{"StoreOfAll", "update x y -> y, of the same sizes and layout", ir.OpUpdate, storeOfAll, wholeStorage, becomeX},
		{"StoreOverStore", "update (update x y) z -> update x z, of one window", ir.OpUpdate,
			storeOverStore, coversStore, dropStore},
		{"CopyOfSame", "copy x -> x, of the same layout", ir.OpCopy, firstOperand, twin, becomeX},
	}
}

// ViewOfView is valid for all views, because a view states its place in the storage and not in its operand. The near
// miss is a view that a call writes through.
func viewOfView(c *candidate) bool { return c.made(c.value(0), ir.OpView) != nil }

func viewOfRoot(c *candidate) { c.become(ir.OpView, c.g.Root(c.value(0))) }

// wholeStorage is the guard of ViewOfAll and StoreOfAll: the window is all of the storage, in the storage's layout. The
// near misses have the same sizes, but another offset or other strides.
func wholeStorage(c *candidate) bool { return c.g.Same(c.node.Offset, ir.Const(0)) && twin(c) }

// LoadOfStore binds x to the content that went to the storage.
func loadOfStore(c *candidate) bool {
	if c.inner = c.made(c.value(0), ir.OpUpdate); c.inner == nil {
		return false
	}
	c.x = c.operandOf(c.inner, 1)
	return true
}

// StoreOfLoad binds x to the storage that the window was read from.
func storeOfLoad(c *candidate) bool {
	c.x = c.value(0)
	c.inner = c.made(c.value(1), ir.OpView)
	return c.inner != nil && c.operandOf(c.inner, 0) == c.x
}

// sameWindow is the guard of LoadOfStore and StoreOfLoad. Equal offsets make one window, because the window has the
// type of the content, layout included. The near misses are another offset and another dtype, which reads the same
// bytes as other numbers.
func sameWindow(c *candidate) bool { return c.g.Same(c.inner.Offset, c.node.Offset) && twin(c) }

// StoreOfAll binds x to the content that fills the storage.
func storeOfAll(c *candidate) bool {
	c.x = c.value(1)
	return true
}

func storeOverStore(c *candidate) bool {
	c.inner = c.made(c.value(0), ir.OpUpdate)
	return c.inner != nil
}

// coversStore is the guard of StoreOverStore: the second write covers each element of the first one. The near misses
// are a second window that is smaller, and one at another offset.
func coversStore(c *candidate) bool {
	return c.g.Same(c.inner.Offset, c.node.Offset) && c.readable(c.inner, 1) &&
		c.g.SameType(c.typeOf(c.operandOf(c.inner, 1)), c.typeOf(c.value(1)))
}

func dropStore(c *candidate) { c.become(ir.OpUpdate, c.operandOf(c.inner, 0), c.value(1)) }
