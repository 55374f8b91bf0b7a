// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import (
	_ "embed" // schemas.txt
	"fmt"
	"strings"
	"sync"
)

// Schema is what PyTorch's schema says about the calls of an operator. Torch 2.11 to 2.15 agree about it.
type Schema struct {
	Arguments []Argument
	Results   []bool // by new tensor: it is a list of tensors
}

// Argument is an argument of a schema.
type Argument struct {
	Name                string
	Type                string // Tensor Scalar int float bool str ScalarType Layout Device MemoryFormat Generator
	List, Write         bool
	Optional, OptValues bool // it may be none; the items of the list may be none
}

// String is the argument's type as PyTorch writes it: Tensor?[].
func (a Argument) String() string {
	s := a.Type
	if a.OptValues {
		s += "?"
	}
	if a.List {
		s += "[]"
	}
	if a.Optional {
		s += "?"
	}
	return s
}

//go:embed schemas.txt
var schemasText string

// schemas has the operators of schemas.txt, which the generator of the op table writes from torch. Only the verifier
// and tests read it.
var schemas = sync.OnceValue(func() map[string]*Schema {
	m := map[string]*Schema{}
	for line := range strings.Lines(schemasText) {
		if line[0] == '#' {
			continue
		}
		name, s := parseSchema(strings.TrimSuffix(line, "\n"))
		m["aten::"+name] = s
	}
	return m
})

// FindSchema is the schema of an operator of PyTorch, nil if a program may not call it and the catalogue has no row for
// it, and for operators of other libraries.
func FindSchema(name string) *Schema { return schemas()[name] }

// parseSchema reads "_foreach_add_.List(Tensor[]! self, Tensor[] other, Scalar alpha)".
func parseSchema(line string) (string, *Schema) {
	call, results, _ := strings.Cut(line, " -> ")
	name, arguments, ok := strings.Cut(strings.TrimSuffix(call, ")"), "(")
	s := &Schema{}
	for _, text := range split(arguments) {
		var a Argument
		var spaced bool
		a.Type, a.Name, spaced = strings.Cut(text, " ")
		ok = ok && spaced
		a.Type, a.Write = strings.CutSuffix(a.Type, "!")
		a.Type, a.Optional = strings.CutSuffix(a.Type, "?")
		if a.Type, a.List = strings.CutSuffix(a.Type, "[]"); a.List {
			a.Type, a.OptValues = strings.CutSuffix(a.Type, "?")
		}
		s.Arguments = append(s.Arguments, a)
	}
	for _, r := range split(results) {
		s.Results = append(s.Results, r == "Tensor[]")
	}
	if !ok {
		panic(fmt.Sprintf("BUG: schemas.txt has the line %q", line))
	}
	return name, s
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ", ")
}
