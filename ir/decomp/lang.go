// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package decomp

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// form is what an expression is.
type form uint8

const (
	formName   form = iota // the term of a name
	formNumber             // a literal
	formNone
	formOwn    // an own elementwise op
	formReduce // an own reduction
	formTo     // in a dtype
	formCast
	formAs
	formFlat
	formUnsqueeze
	formChannels
	formGather
	formGroups
	formDraw
)

// forms are the words that are no own ops.
var forms = map[string]form{"f32": formTo, "f64": formTo, "cast": formCast, "as": formAs, "flat": formFlat, "unsq": formUnsqueeze,
	"chan": formChannels, "gather": formGather, "groups": formGroups, "draw": formDraw}

// expr is an expression, its words looked up.
type expr struct {
	form     form
	args     []expr
	name     int      // formName: the number of the name; formGroups: of the argument
	number   ir.Arg   // formNumber
	op       ir.Op    // formOwn, formReduce
	optional bool     // formOwn: the other operand where one is absent
	keep     bool     // formReduce: folded dims stay as 1
	dims     dims     // formReduce
	dtype    ir.DType // formTo
	dim      int64    // formGather
}

// dims are those that a reduction folds.
type dims struct {
	which rangeOfDims
	name  int // of the argument that holds them, or as many as they are
}

type rangeOfDims uint8

const (
	dimsNamed    rangeOfDims = iota
	dimsAll                  // all there are
	dimsChannels             // all but dim 1
	dimsLast                 // as many as the argument has
	dimsLead                 // the others
	dimsEnd                  // the last one
)

// statement gives a name to the value of an expression, or says what the results are.
type statement struct {
	name  int // -1: results
	exprs []expr
}

// rule is a row that has been read. Its names have numbers: those of the arguments, then those of the statements.
type rule struct {
	operator string // its name
	args     int    // how many arguments
	names    []string
	promote  bool
	exact    bool
	classes  ir.Classes // of dtypes that it is for
	when     []condition
	alike    [][2]int // arguments that have the same dtype
	body     []statement
}

// condition is what an argument has to be as a literal, or not to be.
type condition struct {
	arg    int
	text   string
	number float64 // NaN: none
	not    bool
}

// read reads a case. One that doesn't parse is a mistake of the catalogue.
func read(row *catalogue.ATen, c catalogue.Case) *rule {
	r := &rule{operator: row.Name, names: strings.Fields(row.Args), classes: ir.Floats}
	r.args = len(r.names)
	for _, w := range strings.Fields(c.When) {
		switch w {
		case "promote":
			r.promote = true
			continue
		case "exact":
			r.exact = true
			continue
		case "ints":
			r.classes |= ir.Ints
			continue
		case "truth":
			r.classes |= ir.Bools
			continue
		}
		if a, b, ok := strings.Cut(w, "~"); ok {
			r.alike = append(r.alike, [2]int{r.known(a), r.known(b)})
			continue
		}
		name, value, _ := strings.Cut(w, "=")
		name, not := strings.CutSuffix(name, "!")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			number = math.NaN()
		}
		r.when = append(r.when, condition{r.known(name), value, number, not})
	}
	for part := range strings.SplitSeq(c.Body, ";") {
		part = strings.TrimSpace(part)
		if results, ok := strings.CutPrefix(part, "->"); ok {
			s := statement{name: -1}
			for one := range strings.SplitSeq(results, ",") {
				s.exprs = append(s.exprs, r.expression(one))
			}
			r.body = append(r.body, s)
			continue
		}
		name, e, ok := strings.Cut(part, "=")
		r.must(ok, part, "is no statement")
		value := r.expression(e) // before there is the name
		r.body = append(r.body, statement{len(r.names), []expr{value}})
		r.names = append(r.names, strings.TrimSpace(name))
	}
	r.must(len(r.body) > 0 && r.body[len(r.body)-1].name < 0, c.Body, "has no results")
	return r
}

func (r *rule) must(ok bool, text, what string) {
	if !ok {
		panic(fmt.Sprintf("BUG: %q in the row of %s %s", text, r.operator, what))
	}
}

// known is the number of a name: of the last one that is called so.
func (r *rule) known(name string) int {
	for i, n := range slices.Backward(r.names) {
		if n == name {
			return i
		}
	}
	r.must(false, name, "is no name")
	return -1
}

func (r *rule) expression(text string) expr {
	words := strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ").Replace(text))
	e, rest := r.readOp(words)
	r.must(len(rest) == 0, text, "goes on after its end")
	return e
}

// readOp reads an op with its operands up to a closing parenthesis or the end.
func (r *rule) readOp(words []string) (expr, []string) {
	r.must(len(words) > 0 && words[0] != "(" && words[0] != ")", strings.Join(words, " "), "has no op")
	head, rest := words[0], words[1:]
	if len(rest) == 0 || rest[0] == ")" {
		return r.atom(head), rest
	}
	e, plain := r.head(head) // plain: how many of its words are no expressions, and what the first of them is
	for i := 0; len(rest) > 0 && rest[0] != ")"; i++ {
		switch {
		case i == 1 && plain == formReduce:
			e.dims, rest = r.dims(rest[0]), rest[1:]
		case i == 1 && plain == formGather:
			d, err := strconv.ParseInt(rest[0], 10, 64)
			r.must(err == nil, rest[0], "is no dim")
			e.dim, rest = d, rest[1:]
		case i == 1 && plain == formGroups:
			e.name, rest = r.known(rest[0]), rest[1:]
		case rest[0] == "(":
			var a expr
			a, rest = r.readOp(rest[1:])
			r.must(len(rest) > 0, head, "has a parenthesis that is not closed")
			e.args, rest = append(e.args, a), rest[1:]
		default:
			e.args, rest = append(e.args, r.atom(rest[0])), rest[1:]
		}
	}
	return e, rest
}

// head reads the word that says what an expression with operands is.
func (r *rule) head(word string) (e expr, plain form) {
	if f, ok := forms[word]; ok {
		e.form = f
		if f == formTo {
			e.dtype, _ = ir.ParseDType(word)
		}
		return e, f
	}
	op, ok := ir.ByName(strings.TrimRight(word, "?_"))
	r.must(ok && op.Own(), word, "is no own op")
	e.op = op
	if ir.Info(op).Kind == ir.KindReduce {
		e.form, e.keep = formReduce, !strings.HasSuffix(word, "_")
		return e, formReduce
	}
	e.form, e.optional = formOwn, strings.HasSuffix(word, "?")
	return e, formOwn
}

// atom reads a name, a number, or none.
func (r *rule) atom(word string) expr {
	if word == "none" {
		return expr{form: formNone}
	}
	if v, err := strconv.ParseInt(word, 10, 64); err == nil {
		return expr{form: formNumber, number: ir.Arg{Kind: ir.ArgInt, V: v}}
	}
	if v, err := strconv.ParseFloat(word, 64); err == nil {
		return expr{form: formNumber, number: ir.Arg{Kind: ir.ArgFloat, V: int64(math.Float64bits(v))}}
	}
	return expr{form: formName, name: r.known(word)}
}

func (r *rule) dims(word string) dims {
	which, name, _ := strings.Cut(word, ":")
	switch which {
	case "all":
		return dims{which: dimsAll}
	case "chan":
		return dims{which: dimsChannels}
	case "end":
		return dims{which: dimsEnd}
	case "last":
		return dims{dimsLast, r.known(name)}
	case "lead":
		return dims{dimsLead, r.known(name)}
	}
	return dims{dimsNamed, r.known(which)}
}
