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

// form is the kind of an expression.
type form uint8

const (
	formName   form = iota // a name
	formNumber             // a literal
	formNone
	formOwn    // an own elementwise op
	formReduce // an own reduction
	formTo     // a cast to a named dtype
	formCast
	formAs
	formFlat
	formUnsqueeze
	formChannels
	formSingle
	formIota
	formTake
	formWithin
	formGroups
	formDraw
)

// forms are the words of expressions that are not own ops.
var forms = map[string]form{
	"f32": formTo, "f64": formTo, "cast": formCast, "as": formAs, "flat": formFlat, "unsq": formUnsqueeze,
	"chan": formChannels, "single": formSingle, "iota": formIota, "take": formTake, "within": formWithin,
	"groups": formGroups, "draw": formDraw,
}

// expr is a parsed expression.
type expr struct {
	form     form
	args     []expr
	name     int      // formName: the number of the name; formGroups, formWithin: of the argument, -1 for none
	number   ir.Arg   // formNumber
	op       ir.Op    // formOwn, formReduce
	optional bool     // formOwn: the value is the other operand where one is absent
	keep     bool     // formReduce: reduced dims stay as 1
	dims     dims     // formReduce
	dtype    ir.DType // formTo
	dim      dim      // formIota, formTake, formWithin, formSingle, formUnsqueeze
}

// dim is a dim of an operand, from the end if it is negative.
type dim struct {
	name int // the argument that holds it, -1: it is a literal
	at   int64
}

// dims are the dims of a reduction.
type dims struct {
	which rangeOfDims
	name  int // dimsIn: the argument that lists them; dimsLast, dimsLead: the argument that has as many items
	one   dim // dimsOne
}

type rangeOfDims uint8

const (
	dimsOne      rangeOfDims = iota
	dimsAll                  // all there are
	dimsChannels             // all but dim 1
	dimsIn                   // those of a list, all for an empty list or none
	dimsLast                 // as many as the argument has
	dimsLead                 // all other dims
)

// statement names the value of an expression, or lists the results.
type statement struct {
	name  int // -1: results
	exprs []expr
}

// rule is a parsed case. Its names are numbered: the arguments first, then the statements.
type rule struct {
	operator string // its name
	args     int    // how many arguments
	names    []string
	promote  bool
	exact    bool
	narrow   bool
	classes  ir.Classes // the dtypes that the case is for
	when     []condition
	alike    [][2]int // pairs of arguments that must have the same dtype
	single   [][2]int // tensors that must have one element along a dim, an argument, and operand 0's sizes elsewhere
	body     []statement
}

// condition is a literal that an argument must be, or must not be.
type condition struct {
	arg    int
	text   string
	number float64 // NaN: none
	not    bool
}

// read parses a case. A case that does not parse is a mistake of the catalogue.
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
		case "narrow":
			r.narrow = true
			continue
		case "ints":
			r.classes |= ir.Ints
			continue
		case "integers":
			r.classes = ir.Ints
			continue
		case "truth":
			r.classes |= ir.Bools
			continue
		}
		if a, b, ok := strings.Cut(w, "~"); ok {
			r.alike = append(r.alike, [2]int{r.known(a), r.known(b)})
			continue
		}
		if a, b, ok := strings.Cut(w, ":"); ok {
			r.single = append(r.single, [2]int{r.known(a), r.known(b)})
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
		r.must(ok, part, "is not a statement")
		value := r.expression(e) // the expression must not use the new name
		r.body = append(r.body, statement{len(r.names), []expr{value}})
		r.names = append(r.names, strings.TrimSpace(name))
	}
	r.must(len(r.body) > 0 && r.body[len(r.body)-1].name < 0, c.Body, "has no results")
	return r
}

func (r *rule) must(ok bool, text, what string) {
	if !ok {
		panic(fmt.Sprintf("BUG: %q in a case of %s %s", text, r.operator, what))
	}
}

// known is the number of a name. A later name hides an earlier one.
func (r *rule) known(name string) int {
	for i, n := range slices.Backward(r.names) {
		if n == name {
			return i
		}
	}
	r.must(false, name, "is not a name")
	return -1
}

func (r *rule) expression(text string) expr {
	words := strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ").Replace(text))
	e, rest := r.readOp(words)
	r.must(len(rest) == 0, text, "continues after its end")
	return e
}

// readOp reads an op with its operands up to a closing parenthesis or the end.
func (r *rule) readOp(words []string) (expr, []string) {
	r.must(len(words) > 0 && words[0] != "(" && words[0] != ")", strings.Join(words, " "), "has no op")
	head, rest := words[0], words[1:]
	if len(rest) == 0 || rest[0] == ")" {
		return r.atom(head), rest
	}
	e, plain := r.head(head) // plain: the form whose second word is not an expression
	for i := 0; len(rest) > 0 && rest[0] != ")"; i++ {
		switch {
		case i == 1 && plain == formReduce:
			e.dims, rest = r.dims(rest[0]), rest[1:]
		case i == 1 && (plain == formIota || plain == formUnsqueeze),
			i == 2 && (plain == formTake || plain == formWithin || plain == formSingle):
			e.dim, rest = r.dim(rest[0]), rest[1:]
		case i == 3 && plain == formWithin:
			e.name, rest = r.known(rest[0]), rest[1:]
		case i == 1 && plain == formGroups:
			e.name, rest = r.known(rest[0]), rest[1:]
		case rest[0] == "(":
			var a expr
			a, rest = r.readOp(rest[1:])
			r.must(len(rest) > 0, head, "has an open parenthesis")
			e.args, rest = append(e.args, a), rest[1:]
		default:
			e.args, rest = append(e.args, r.atom(rest[0])), rest[1:]
		}
	}
	return e, rest
}

// head reads the first word of an expression with operands.
func (r *rule) head(word string) (e expr, plain form) {
	if f, ok := forms[word]; ok {
		e.form, e.name = f, -1
		if f == formTo {
			e.dtype, _ = ir.ParseDType(word)
		}
		return e, f
	}
	op, ok := ir.ByName(strings.TrimRight(word, "?_"))
	r.must(ok && op.Own(), word, "is not an own op")
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
	case "in":
		return dims{which: dimsIn, name: r.known(name)}
	case "last":
		return dims{which: dimsLast, name: r.known(name)}
	case "lead":
		return dims{which: dimsLead, name: r.known(name)}
	}
	return dims{which: dimsOne, one: r.dim(word)}
}

// dim reads a literal, or the name of an argument.
func (r *rule) dim(word string) dim {
	if d, err := strconv.ParseInt(word, 10, 64); err == nil {
		return dim{-1, d}
	}
	return dim{name: r.known(word)}
}
