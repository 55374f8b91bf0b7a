// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"errors"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// Verify checks the groups of a verified graph: of each node in a group, kernels can compute at least one primitive.
func Verify(g *ir.Graph) error {
	if len(g.Groups) == 0 {
		return nil
	}
	f := newFinder(decomp.Expand(g, nil), g, Options{})
	in := make([]bool, len(g.Nodes)) // a part of the node can be in a group
	for i, o := range f.obstacles {
		id := f.of[i]
		n := &g.Nodes[id]
		in[id] = in[id] || n.Group == 0 || o.loops() || o == idle || o == drawn || o == checked ||
			o == memory && n.Op == ir.OpCall // of an empty result
	}
	for i, o := range f.obstacles {
		if id := f.of[i]; !in[id] {
			return g.ErrorAt(id, errors.New(f.text(ir.NodeID(i), o)))
		}
	}
	return nil
}
