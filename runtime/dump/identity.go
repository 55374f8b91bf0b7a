// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"fmt"
	"strings"

	"github.com/mycelya/mycelya/ir"
)

// identity finds which values of the stages of one program are the same value, although each stage numbers its values
// anew. It uses the graphs only, not the passes. Two values of consecutive stages are the same if
//
//   - their nodes come from the same record of the trace and have the same op, operands, sizes and types; or, if none
//     such is left, the same except for the operands; or only the same op; or only the same types. Each node is matched
//     once, the best matches first, in order; or
//   - one replaces the other: in each statement that stays, the one has taken the place of the other as an operand, and
//     both have the same type. So a value that cse merged, that a rule replaced by an older value, or that was read
//     back from a store, is the same value as its replacement.
//
// The first rule holds because a node keeps its record, and its place in the record, through all passes. The second
// rule holds because a statement that keeps its op, its type and its other words keeps its meaning only if the operand
// does. Where neither holds, a value is new: a click then highlights too few places, never wrong ones.
type identity struct {
	parent []int // of each value that was ever seen; itself if it is the first of its family
	before *outline
	ids    [][]int // of each stage: of each value by its number
}

// outline is the part of a stage that is kept, to compare the next stage with it.
type outline struct {
	statements []statement
	ids        []int    // by value
	types      []string // by value
}

// statement is a line that defines or uses values.
type statement struct {
	record   int32
	head     string // without the numbers of values and the origin
	op       string
	types    string
	results  []int
	operands []operand
	ids      []int // of the operands
}

type operand struct {
	value   int
	written bool
}

// add takes the next stage, whose text has these lines.
func (t *identity) add(lines []line, g *ir.Graph) {
	now := &outline{ids: make([]int, len(g.Types)), types: make([]string, len(g.Types))}
	for v := range now.ids {
		now.ids[v] = -1
	}
	for _, l := range lines {
		if s, ok := l.statement(g, now.types); ok {
			now.statements = append(now.statements, s)
		}
	}
	from := make([]*statement, len(now.statements))
	if t.before != nil {
		from = t.match(now)
	}
	for i := range now.ids {
		if now.ids[i] < 0 {
			now.ids[i] = len(t.parent)
			t.parent = append(t.parent, now.ids[i])
		}
	}
	for i := range now.statements {
		now.statements[i].name(now)
	}
	t.merge(now, from)
	t.before = now
	t.ids = append(t.ids, now.ids)
}

// ways to compare statements, the best first. A statement without a record is compared by all its words only.
var ways = [...]func(s *statement) string{
	func(s *statement) string { return fmt.Sprintf("%d %s %v", s.record, s.head, s.ids) },
	func(s *statement) string { return fmt.Sprintf("%d %s", s.record, s.head) },
	func(s *statement) string {
		if s.record < 0 {
			return s.head
		}
		return fmt.Sprintf("%d %s %d", s.record, s.op, len(s.results))
	},
	func(s *statement) string {
		if s.record < 0 {
			return s.head
		}
		return fmt.Sprintf("%d %s", s.record, s.types)
	},
}

// match finds, for each statement of this stage, the statement of the stage before that it comes from, or nil, and
// gives their results the same ids. Operands come before their uses, so the first two ways are tried together,
// statement by statement. The other ways match the statements that are left.
func (t *identity) match(now *outline) []*statement {
	was := t.before
	taken := make([]bool, len(was.statements))
	from := make([]*statement, len(now.statements))
	for _, group := range [][]func(*statement) string{ways[:2], ways[2:3], ways[3:]} {
		pools := make([]map[string][]int, len(group))
		for w, way := range group {
			pools[w] = map[string][]int{}
			for i := range was.statements {
				if s := &was.statements[i]; !taken[i] {
					pools[w][way(s)] = append(pools[w][way(s)], i)
				}
			}
		}
		for i := range now.statements {
			s := &now.statements[i]
			s.name(now)
			for w := 0; w < len(group) && from[i] == nil; w++ {
				if j := next(pools[w], group[w](s), taken); j >= 0 {
					taken[j], from[i] = true, &was.statements[j]
					for k := range min(len(s.results), len(from[i].results)) {
						now.ids[s.results[k]] = was.ids[from[i].results[k]]
					}
				}
			}
		}
	}
	return from
}

// merge unites each value with the value that now replaces it.
func (t *identity) merge(now *outline, from []*statement) {
	// By value: the value that took its place, or the value itself if a statement has kept it or statements disagree.
	stands := map[int]int{}
	for i, old := range from {
		s := &now.statements[i]
		if old == nil || old.head != s.head {
			continue
		}
		for k, o := range s.operands {
			a, b := old.ids[k], s.ids[k]
			before, known := stands[a]
			if known && before != b || o.written || t.before.types[old.operands[k].value] != now.types[o.value] {
				b = a
			}
			stands[a] = b
		}
	}
	for a, b := range stands {
		if ra, rb := t.family(a), t.family(b); ra != rb {
			t.parent[max(ra, rb)] = min(ra, rb) // the first of a family represents it, in any order of merges
		}
	}
}

// next is the first of a pool that is not matched; -1 if there is none.
func next(pool map[string][]int, key string, taken []bool) int {
	list := pool[key]
	for len(list) > 0 && taken[list[0]] {
		list = list[1:]
	}
	pool[key] = list
	if len(list) == 0 {
		return -1
	}
	return list[0]
}

// name fills in the ids of the operands.
func (s *statement) name(o *outline) {
	s.ids = s.ids[:0]
	for _, v := range s.operands {
		s.ids = append(s.ids, o.ids[v.value])
	}
}

// family is the id that represents all values that are the same as this one.
func (t *identity) family(id int) int {
	for t.parent[id] != id {
		t.parent[id] = t.parent[t.parent[id]]
		id = t.parent[id]
	}
	return id
}

// statement reads a line as a statement about values, and notes their types. It returns false for other lines.
func (l *line) statement(g *ir.Graph, types []string) (statement, bool) {
	s := statement{record: -1}
	var head strings.Builder
	end := 0
	for _, sp := range l.spans {
		if sp.value >= len(types) {
			return s, false
		}
		head.WriteString(l.text[end:sp.lo] + "%")
		end = sp.number
		if sp.binder {
			types[sp.value] = strings.TrimLeft(l.text[sp.number:sp.hi], ": ")
			s.types += types[sp.value] + " "
			s.results = append(s.results, sp.value)
			s.record = g.Nodes[g.Def[sp.value]].Record
		} else {
			s.operands = append(s.operands, operand{sp.value, strings.HasPrefix(l.text[sp.hi:], "!")})
		}
	}
	words := strings.Fields(head.String() + l.text[end:l.comment])
	for i, w := range words {
		if w == "=" && i+1 < len(words) {
			s.op = words[i+1]
			break
		}
	}
	s.head = strings.Join(words, " ")
	return s, len(l.spans) > 0
}
