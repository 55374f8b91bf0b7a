// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
)

// This is the part of the verifier about calls of PyTorch's operators: their schemas, and the sizes that their meaning
// makes equal. It knows nothing about operators of other libraries.

// aten checks a call of an operator of PyTorch.
func (c *checker) aten(id NodeID) error {
	name := c.g.CallName(id)
	if !strings.HasPrefix(name, "aten::") {
		return nil
	}
	s := catalogue.FindSchema(name)
	if s == nil {
		return fmt.Errorf("PyTorch has no operator %s that a program can call", name)
	}
	args := c.g.NodeArgs(id)
	if err := c.arity(name, s, args); err != nil {
		return err
	}
	for i, a := range args {
		if err := c.argument(name, s, i, a); err != nil {
			return err
		}
	}
	if err := c.results(id, name, s); err != nil {
		return err
	}
	return c.meaning(id, name, s)
}

// arity checks the number of arguments. A record has all of them, also those with the default value.
func (c *checker) arity(name string, s *catalogue.Schema, args []Arg) error {
	if len(args) < len(s.Arguments) {
		a := s.Arguments[len(args)]
		return fmt.Errorf("%s takes %d arguments, not %d: %s %s is missing", name, len(s.Arguments), len(args), a, a.Name)
	}
	if len(args) > len(s.Arguments) {
		c.arg = len(s.Arguments)
		return fmt.Errorf("%s takes %d arguments, not %d", name, len(s.Arguments), len(args))
	}
	return nil
}

// accepted are the arguments that are of one type: the kinds of arguments that are not values, and the dtypes of
// numbers, as bits. The executor accepts the same.
type accepted struct{ kinds, numbers uint32 }

var acceptedBy = func() map[string]accepted {
	set := func(bits ...uint8) (s uint32) {
		for _, b := range bits {
			s |= 1 << b
		}
		return s
	}
	kinds := func(kinds ...ArgKind) (s uint32) {
		for _, k := range kinds {
			s |= 1 << k
		}
		return s
	}
	real := set(uint8(F64), uint8(I64), uint8(Bool))
	return map[string]accepted{
		"Tensor":       {}, // any value
		"Scalar":       {kinds(ArgInt, ArgFloat, ArgBool, ArgDim), real | set(uint8(C128))},
		"int":          {kinds(ArgInt, ArgDim), set(uint8(I64), uint8(Bool))},
		"float":        {kinds(ArgFloat, ArgInt, ArgDim), real},
		"bool":         {kinds(ArgBool), set(uint8(Bool))},
		"str":          {kinds(ArgStr), 0},
		"ScalarType":   {kinds(ArgDType), 0},
		"Layout":       {kinds(ArgLayout), 0},
		"Device":       {kinds(ArgDevice), 0},
		"MemoryFormat": {kinds(ArgMemFmt), 0},
		"Generator":    {kinds(ArgGen), 0},
	}
}()

// fits reports whether an argument that is no list is of a type of schemas.
func (c *checker) fits(typ string, a Arg) bool {
	if typ == "Tensor" {
		return a.Kind == ArgValue
	}
	by := acceptedBy[typ]
	if a.Kind == ArgValue {
		return c.g.IsNumber(a) && by.numbers>>c.g.Types[a.V].DType&1 != 0
	}
	return by.kinds>>a.Kind&1 != 0
}

// listKinds are the kinds of lists by the type of their items.
var listKinds = map[string]uint8{
	"Tensor": ListTensors, "int": ListInts, "float": ListFloats, "bool": ListBools, "Scalar": ListScalars,
}

// argument checks the kind of an argument, and whether it is written.
func (c *checker) argument(name string, s *catalogue.Schema, i int, a Arg) error {
	c.arg = i
	to := s.Arguments[i]
	refuse := func(a Arg) error {
		return fmt.Errorf("argument %s of %s takes %s, not %s", to.Name, name, to, c.given(a))
	}
	if a.Kind == ArgNone && to.Optional {
		return nil
	}
	items := []Arg{a}
	if to.List {
		want := listKinds[to.Type]
		if to.OptValues && a.Sub != ListTensors { // a list without an absent tensor shows no more than that
			want = ListOptTensors
		}
		if a.Kind != ArgList || a.Sub != want {
			return refuse(a)
		}
		items = c.g.List(a)
	}
	for j, item := range items {
		if to.List {
			c.item = j
		}
		switch {
		case item.Kind == ArgNone && to.OptValues:
		case !c.fits(to.Type, item):
			return refuse(item)
		case item.Write && !to.Write && !c.runningStats(name, i):
			return fmt.Errorf("%s does not write its argument %s", name, to.Name)
		case !item.Write && to.Write:
			return fmt.Errorf("%s writes its argument %s: expected %%%d! here", name, to.Name, item.V)
		}
	}
	c.item = none
	return nil
}

// runningStats reports whether an argument holds running statistics, which an operator writes without saying so.
func (c *checker) runningStats(name string, i int) bool {
	r := catalogue.FindATen(name)
	return r != nil && r.Capture.RunningStats != 0 &&
		(i == r.Capture.RunningStats || i == r.Capture.RunningStats+1)
}

// given says what an argument is.
func (c *checker) given(a Arg) string {
	switch {
	case a.Kind == ArgList:
		return "a list of " + listNames[a.Sub]
	case a.Kind != ArgValue:
		return catalogue.ArgKindOf(uint64(a.Kind)).Text
	case c.g.IsNumber(a):
		return "a number of dtype " + c.g.Types[a.V].DType.String()
	case c.g.Immediate(ValueID(a.V)):
		return "a 0-dim tensor"
	}
	return "a tensor"
}

// results checks the number of new tensors.
func (c *checker) results(id NodeID, name string, s *catalogue.Schema) error {
	c.arg = none
	g, n := c.g, &c.g.Nodes[id]
	fresh := g.NumFresh(id)
	if n.Flags&FlagDynamic != 0 {
		fresh-- // the shapes of the others
	}
	want := len(s.Results)
	if slices.Contains(s.Results, true) {
		i := slices.IndexFunc(s.Arguments, func(a catalogue.Argument) bool { return a.List })
		if !catalogue.Lists(name) || i < 0 {
			return nil
		}
		want *= len(g.List(g.NodeArgs(id)[i]))
	}
	if fresh != want {
		return fmt.Errorf("%s makes %d new tensors, not %d", name, want, fresh)
	}
	return nil
}

// meaning checks the sizes of operands and results, dims, and the dtype of a result that an argument names.
func (c *checker) meaning(id NodeID, name string, s *catalogue.Schema) error {
	g, args := c.g, c.g.NodeArgs(id)
	for i, to := range s.Arguments {
		c.arg = i
		switch {
		case to.Name == "dim" || to.Name == "dims":
			if err := c.dims(name, to.Name, args[i], rankOf(g, name, args[0])); err != nil {
				return err
			}
		case to.Name == "dtype" && args[i].Kind == ArgDType && len(s.Results) == 1 && !s.Results[0]:
			// Where a complex dtype is given, a norm is real.
			d := DType(args[i].V)
			if t := g.Types[g.Nodes[id].First].DType; t != d && !d.Is(catalogue.Complexes) {
				return fmt.Errorf("argument dtype of %s is %s, but the result is %s", name, d, t)
			}
		}
	}
	c.arg = none
	return c.sizes(id, name, s)
}

// rankOf is the number of dims among which an operator chooses one.
func rankOf(g *Graph, name string, of Arg) int {
	rank := 0
	items := []Arg{of}
	if of.Kind == ArgList {
		items = g.List(of)
	}
	for _, a := range items {
		if a.Kind == ArgValue {
			rank = max(rank, len(g.Types[a.V].Dims))
		}
	}
	if strings.HasPrefix(name, "aten::stack") {
		return rank + 1
	}
	return max(rank, 1)
}

// dims checks that dims exist.
func (c *checker) dims(name, argument string, a Arg, rank int) error {
	items := []Arg{a}
	if a.Kind == ArgList {
		items = c.g.List(a)
	}
	for i, d := range items {
		if d.Kind == ArgInt && (d.V < int64(-rank) || d.V >= int64(rank)) {
			if a.Kind == ArgList {
				c.item = i
			}
			return fmt.Errorf("argument %s of %s is %d: expected %d to %d", argument, name, d.V, -rank, rank-1)
		}
	}
	return nil
}

// sizes checks the sizes that are equal by the operator's meaning.
func (c *checker) sizes(id NodeID, name string, s *catalogue.Schema) error {
	g := c.g
	var bad error
	rule := ""
	if r := g.Row(id); r.Dims != "" {
		rule = ": " + r.Dims
	}
	note := func(arg int, format string, values ...any) {
		if bad != nil {
			return
		}
		what := "a result"
		if c.arg = arg; arg >= 0 {
			what = "argument " + s.Arguments[arg].Name
		}
		bad = fmt.Errorf("%s of %s has "+format+"%s", slices.Concat([]any{what, name}, values, []any{rule})...)
	}
	m := meaning{g: g, id: id,
		equal: func(arg int, a, b Dim) {
			// An operator may leave a result empty, which its gradient then takes.
			if !g.Same(a, b) && g.Find(b) != Const(0) {
				note(arg, "size %s where %s is expected", g.DimString(b), g.DimString(a))
			}
		},
		rank: func(arg int, dims []Dim) { note(arg, "%d dims", len(dims)) },
	}
	m.node()
	return bad
}
