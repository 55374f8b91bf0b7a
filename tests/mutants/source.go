// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package mutants

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// Mutant is one change of one clause.
type Mutant struct {
	File, Func string
	Line       int
	Clause     string // as in the source
	As         string // what stands in its place
}

// String names a mutant by its function, so that the name stays when lines move.
func (m Mutant) String() string { return m.Func + ": " + m.Clause + " -> " + m.As }

// mutator makes a copy of a source with a call of mutantClause in the place of each clause.
type mutator struct {
	file   string
	source []byte
	skip   []string
	all    []Mutant
	name   string // of the package

	set           *token.FileSet
	function      string
	tags          int
	before, after map[int]string // by offset in the source
}

func (m *mutator) mutate(t *testing.T) []byte {
	m.set, m.before, m.after = token.NewFileSet(), map[int]string{}, map[int]string{}
	parsed, err := parser.ParseFile(m.set, m.file, m.source, parser.SkipObjectResolution)
	must(t, err)
	m.name = parsed.Name.Name
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && !slices.Contains(m.skip, f.Name.Name) {
			m.function = f.Name.Name
			m.body(f.Type, f.Body)
		}
	}
	var out []byte
	for i := range len(m.source) + 1 {
		out = append(out, m.after[i]...)
		out = append(out, m.before[i]...)
		if i < len(m.source) {
			out = append(out, m.source[i])
		}
	}
	return out
}

// body looks for clauses in a function of this type.
func (m *mutator) body(f *ast.FuncType, body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			m.body(n.Type, n.Body)
			return false
		case *ast.IfStmt:
			m.condition(n.Cond)
		case *ast.AssignStmt:
			for _, e := range n.Rhs {
				if isCondition(e) {
					m.condition(e)
				}
			}
		case *ast.ReturnStmt:
			for i, e := range n.Results {
				if isCondition(e) || isBool(f, i, len(n.Results)) {
					m.condition(e)
				}
			}
		case *ast.SwitchStmt:
			m.cases(n)
		}
		return true
	})
}

// isBool reports whether result i of n is a bool.
func isBool(f *ast.FuncType, i, n int) bool {
	if f.Results.NumFields() != n {
		return false
	}
	for _, field := range f.Results.List {
		if i -= max(1, len(field.Names)); i < 0 {
			id, ok := field.Type.(*ast.Ident)
			return ok && id.Name == "bool"
		}
	}
	return false
}

// isCondition reports whether an expression is a bool by its syntax.
func isCondition(e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.UnaryExpr:
		return e.Op == token.NOT
	case *ast.BinaryExpr:
		return e.Op == token.LAND || e.Op == token.LOR || others[e.Op] != token.ILLEGAL
	}
	return false
}

// others are the comparisons that stand in the place of comparisons.
var others = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL,
}

// condition splits a condition into clauses.
func (m *mutator) condition(e ast.Expr) {
	switch inner := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		if inner.Op == token.LAND || inner.Op == token.LOR {
			m.condition(inner.X)
			m.condition(inner.Y)
			return
		}
		if other := others[inner.Op]; other != token.ILLEGAL {
			m.clause(e, "", "true", "false", m.text(inner.X)+" "+other.String()+" "+m.text(inner.Y))
			return
		}
	case *ast.UnaryExpr:
		if _, ok := inner.X.(*ast.ParenExpr); ok && inner.Op == token.NOT {
			m.condition(inner.X)
			return
		}
	case *ast.Ident:
		if is := map[string]string{"true": "false", "false": "true"}[inner.Name]; is != "" {
			m.clause(e, "", is)
			return
		}
	}
	m.clause(e, "", "true", "false")
}

// cases makes a condition of each value of a switch.
func (m *mutator) cases(s *ast.SwitchStmt) {
	prefix := ""
	if s.Tag != nil {
		if s.Init != nil {
			panic(fmt.Sprintf("BUG: %s: a switch with a statement and a value", m.set.Position(s.Pos())))
		}
		m.tags++
		tag := fmt.Sprintf("mutantTag%d", m.tags)
		prefix = tag + " == "
		m.insert(s.Tag, tag+" := ", "; true")
	}
	for _, c := range s.Body.List {
		for _, e := range c.(*ast.CaseClause).List {
			if s.Tag == nil {
				m.condition(e)
			} else {
				m.clause(e, prefix, "true", "false")
			}
		}
	}
}

// clause puts the mutants of a clause into the copy of the source.
func (m *mutator) clause(e ast.Expr, prefix string, as ...string) {
	var later strings.Builder
	first := len(m.all)
	for _, text := range as {
		fmt.Fprintf(&later, ", func() bool { return %s }", text)
		m.all = append(m.all, Mutant{m.file, m.function, m.set.Position(e.Pos()).Line, m.text(e), text})
	}
	m.insert(e, fmt.Sprintf("mutantClause(%d, func() bool { return %s", first, prefix), " }"+later.String()+")")
}

// insert puts texts around an expression, inside those around expressions that hold it.
func (m *mutator) insert(e ast.Expr, before, after string) {
	from, to := m.offset(e.Pos()), m.offset(e.End())
	m.before[from] += before
	m.after[to] = after + m.after[to]
}

func (m *mutator) offset(p token.Pos) int { return m.set.Position(p).Offset }

// text is the source of an expression in one line.
func (m *mutator) text(e ast.Expr) string {
	source := string(m.source[m.offset(e.Pos()):m.offset(e.End())])
	return strings.Join(strings.Fields(source), " ")
}
