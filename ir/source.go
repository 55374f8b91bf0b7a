// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"fmt"
	"strconv"
)

// source has the positions of statements in the text of a graph.
type source struct {
	nodes, args, items, outputs []position // by node, by index in Args and in ListArgs, by output
}

// position is a line and a column of a text, in bytes from 1.
type position struct{ line, col int }

// none is the number of no argument and no item.
const none = -1

// PlacedError is an error about a statement of a graph that was parsed. Line and Col (in bytes) count from 1. Its text
// is that of the same error about a graph without text.
type PositionError struct {
	Line, Col int
	Err       error
}

func (e *PositionError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the position.
func (e *PositionError) Unwrap() error { return e.Err }

// ErrorAt is an error about a node, a PlacedError if the graph was parsed.
func (g *Graph) ErrorAt(id NodeID, err error) error { return g.errorAt(id, none, none, err) }

// errorAt is ErrorAt for an argument, and for an item of it.
func (g *Graph) errorAt(id NodeID, arg, item int, err error) error {
	err = fmt.Errorf("ir: node %d, %s: %w", id, strconv.Quote(g.NodeString(id)), err)
	s, args := g.source, g.safeArgs(id)
	if s == nil || len(s.nodes) != len(g.Nodes) || len(s.args) != len(g.Args) || len(s.items) != len(g.ListArgs) {
		return err
	}
	at := s.nodes[id]
	if arg >= 0 && arg < len(args) {
		at = s.args[int(g.Nodes[id].ArgLo)+arg]
		if item >= 0 && item < len(g.safeList(args[arg])) {
			at = s.items[int(args[arg].V>>32)+item]
		}
	}
	return at.error(err)
}

func (p position) error(err error) error { return &PositionError{p.line, p.col, err} }
