// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package codegen turns a graph into a program. It gives values buffers, writes operands in place where the old content
// is dead, frees each buffer right after its last use, binds the loops of fused groups to memory, and collects the
// parameter words that the program needs. It never changes the meaning of a graph, and never reads the value of a size.
// It does not depend on storages, connections or devices. The same graph always gives the same program.
package codegen

import (
	"fmt"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
)

// Options holds the facts that a graph does not contain.
type Options struct {
	// Scratch has an entry per binding slot: the content of the storage after the program does not matter unless an
	// output names it. A storage that the trace writes is scratch: it is an output, or it is not read again. All other
	// inputs keep their content. Nil: none.
	Scratch []bool
	// Kernels makes kernels for groups, in addition to their operators.
	Kernels bool
	// Undrawn makes no kernels for a group that draws random numbers: the worker's own operators draw other numbers than
	// the masks of kernels.
	Undrawn bool
	// Copies is that of fusion.Options.
	Copies bool
}

// Compiled is a program, with the data that is needed to fill in a call.
type Compiled struct {
	Program  *program.Program
	Slots    []uint32    // trace parameter slot of each of the program's parameters, or Computed
	Derived  []Derived   // the parameters that are computed from trace parameters, in order
	Inputs   []uint32    // binding slot of each program input
	Outputs  []uint32    // binding slot of each program output
	Requires []Require   // equalities that the sizes of a trace must fulfil
	Numbers  []ir.Number // numbers that a trace must have
	Unfused  []Unfused   // groups that run as operators, at least in part
}

// Compile makes the program of a verified graph. An error is a mistake of an earlier stage, or a use of memory that no
// program can express.
func Compile(g *ir.Graph, o Options) (*Compiled, error) {
	p := newPlanner(g, o)
	var groups []*fusion.Group
	if o.Kernels && len(g.Groups) > 0 {
		fused := fusion.Loops(p.g, fusion.Options{NoDraws: o.Undrawn, Copies: o.Copies})
		groups, p.g.Syms = fused.Groups, fused.Syms
	}
	for i := 0; i < len(g.Nodes); {
		id := ir.NodeID(i)
		if len(groups) > 0 && groups[0].Nodes[0] == id {
			if err := p.fuse(groups[0]); err != nil {
				return nil, err
			}
			i += len(groups[0].Nodes)
			groups = groups[1:]
			continue
		}
		if err := p.emitNode(id); err != nil {
			return nil, err
		}
		i++
	}
	if err := p.outputs(); err != nil {
		return nil, fmt.Errorf("codegen: %w", err)
	}
	return p.finish(), nil
}

// emitNode emits the steps of a node, and frees the buffers that end there.
func (p *planner) emitNode(id ir.NodeID) error {
	if err := p.node(id); err != nil {
		return fmt.Errorf("codegen: node %d (%s): %w", id, p.title(id), err)
	}
	p.freeDead(id)
	return nil
}

// Params returns the parameter words of a call from those of its trace.
func (c *Compiled) Params(trace []uint64) ([]uint64, error) {
	out, derived := make([]uint64, len(c.Slots)), c.Derived
	for i, s := range c.Slots {
		if s == Computed {
			v, err := derived[0].Bytes(trace)
			if err != nil {
				return nil, err
			}
			out[i], derived = v, derived[1:]
			continue
		}
		if int(s) >= len(trace) {
			return nil, fmt.Errorf("the program needs parameter %d of %d", s, len(trace))
		}
		out[i] = trace[s]
	}
	return out, nil
}
