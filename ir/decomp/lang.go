// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package decomp

import (
	"fmt"
	"strings"
)

// expr is a name or a number (args nil), or an op of operands.
type expr struct {
	head string
	args []expr
}

// statement gives names to the values of expressions: one, or without a name the results.
type statement struct {
	name  string
	exprs []expr
}

// rule is a row that has been read.
type rule struct {
	Row
	args    []string
	promote bool
	when    []condition
	body    []statement
}

type condition struct {
	arg, value string
	not        bool
}

// table has the rules of each operator in the order of the rows; nothing changes it after it is made.
var table = func() map[string][]*rule {
	t := map[string][]*rule{}
	for _, row := range rows {
		t[row.Name] = append(t[row.Name], read(row))
	}
	return t
}()

// read reads a row. A row that doesn't read is a mistake of the table.
func read(row Row) *rule {
	r := &rule{Row: row, args: strings.Fields(row.Args)}
	for _, w := range strings.Fields(row.When) {
		if w == "promote" {
			r.promote = true
			continue
		}
		name, value, _ := strings.Cut(w, "=")
		name, not := strings.CutSuffix(name, "!")
		r.when = append(r.when, condition{name, value, not})
	}
	for part := range strings.SplitSeq(row.Body, ";") {
		part = strings.TrimSpace(part)
		if results, ok := strings.CutPrefix(part, "->"); ok {
			var all []expr
			for one := range strings.SplitSeq(results, ",") {
				all = append(all, readExpr(row, one))
			}
			r.body = append(r.body, statement{"", all})
			continue
		}
		name, e, ok := strings.Cut(part, "=")
		if !ok {
			panic(fmt.Sprintf("BUG: %q in the row of %s is no statement", part, row.Name))
		}
		r.body = append(r.body, statement{strings.TrimSpace(name), []expr{readExpr(row, e)}})
	}
	return r
}

func readExpr(row Row, text string) expr {
	words := strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ").Replace(text))
	e, rest := readOp(row, words)
	if len(rest) != 0 {
		panic(fmt.Sprintf("BUG: %q in the row of %s goes on after its end", text, row.Name))
	}
	return e
}

// readOp reads an op with its operands up to a closing parenthesis or the end.
func readOp(row Row, words []string) (expr, []string) {
	if len(words) == 0 || words[0] == "(" || words[0] == ")" {
		panic(fmt.Sprintf("BUG: an op is missing in the row of %s", row.Name))
	}
	e := expr{head: words[0]}
	words = words[1:]
	for len(words) > 0 && words[0] != ")" {
		var a expr
		if words[0] == "(" {
			a, words = readOp(row, words[1:])
			if len(words) == 0 {
				panic(fmt.Sprintf("BUG: a parenthesis is not closed in the row of %s", row.Name))
			}
			words = words[1:]
		} else {
			a, words = expr{head: words[0]}, words[1:]
		}
		e.args = append(e.args, a)
	}
	return e, words
}
