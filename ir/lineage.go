// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

// Lineage knows which values of a graph, and of the graphs that Rewrite and Rebuild make of it, are the same value,
// although each graph numbers its values anew. A value that a pass replaces by another one is the same as that one. One
// goroutine uses the graphs of a lineage.
type Lineage struct {
	parent []int // of each name; itself if it represents its family
}

// Followed returns the graph with a lineage of its own. The two share their memory, so neither may change.
func (g *Graph) Followed() *Graph {
	out := *g
	out.lineage, out.names = &Lineage{}, nil
	return &out
}

// Lineage is nil for a graph that is not followed.
func (g *Graph) Lineage() *Lineage { return g.lineage }

// Names returns the names of the graph's values in its lineage; nil without a lineage.
func (g *Graph) Names() []int {
	if g.lineage == nil {
		return nil
	}
	for len(g.names) < len(g.Types) {
		g.names = append(g.names, len(g.lineage.parent))
		g.lineage.parent = append(g.lineage.parent, len(g.lineage.parent))
	}
	return g.names
}

// Family is the same number for all values that are the same value.
func (l *Lineage) Family(name int) int {
	for l.parent[name] != name {
		l.parent[name] = l.parent[l.parent[name]]
		name = l.parent[name]
	}
	return name
}

func (l *Lineage) unite(a, b int) {
	a, b = l.Family(a), l.Family(b)
	l.parent[max(a, b)] = min(a, b)
}

// follow gives the values of the new graph the names of the values that they replace.
func (c *copier) follow() {
	if c.g.lineage == nil {
		return
	}
	c.out.lineage, c.out.names = c.g.lineage, nil
	old, now := c.g.Names(), c.out.Names()
	for v, name := range old {
		if w := c.to[v]; w != NoValue {
			c.out.lineage.unite(name, now[w])
		}
		if c.via == nil {
			continue
		}
		if w := c.to[c.via[v]]; w != NoValue {
			c.out.lineage.unite(name, now[w])
		}
	}
}
