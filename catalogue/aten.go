// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import (
	"fmt"
	"slices"
	"strings"
)

// ATen is the row of one operator of PyTorch: all facts about it that the compiler and the recorder use. A zero cell
// means that the fact is unknown, and then nothing is assumed.
type ATen struct {
	Name string // with its overload: "aten::add.Tensor"

	// Dims states which sizes are equal by the operator's meaning. It has one pattern per argument of the schema, then one
	// per result; patterns that are left out are free. In a pattern
	//
	//	n m k …   one dim; the same letter is the same size
	//	X Y …     any number of dims; the same letter is the same sizes (one per pattern, or +)
	//	?         one dim, free
	//	+         any number of dims, free
	//	|         at the end: the tensor may have no dims instead
	//
	// Three patterns stand alone: _ is free, * broadcasts to result 0, # is a list of the sizes of result 0. The
	// verifier refuses a tensor whose rank does not fit its pattern.
	Dims string

	// Elementwise operators compute each element of their one result from one element of each operand.
	Elementwise bool
	// InPlace names the operator that computes the same and overwrites operand 0, Out the one that writes to a last
	// argument. Both run the same kernel on the same operands, so the result has the same bits. The cells are empty
	// where PyTorch has no such operator, where it computes elsewhere and copies, and where nothing needs it. Out is
	// empty for unary operators and for a tensor with a number: operand 0 is all that they could overwrite.
	InPlace, Out string

	Args  string // the names of the leading arguments, for Cases
	Cases []Case // the decompositions; the first case that fits a call holds
	Whole string // why the operator stays a call though a kernel could compute it
	Point Point  // how an operator that stays a call in a kernel reads its operands
	Alpha int    // the argument that scales operand 1; operators over lists may leave it out, and then it is 1

	Uninitialised bool // the content of the result is undefined
	Overwrites    bool // the operator replaces all that it writes and reads none of it
	Fills         Fill // each element of operand 0 becomes one number
	Power         bool // the result is operand 0 to the power of argument 1

	Capture Capture // what the recorder does with the operator
}

// Case is one decomposition of an operator into own ops. When has the conditions on the arguments, as words:
//
//	name=value, name!=value  the argument is this literal, or is not; none is an absent argument
//	ints, truth              the case also holds for integers, and for bools; a case without them is for floats only
//	integers                 the case holds for integers only
//	a~b                      two tensors have the same dtype
//	i:d                      i has one element along dim d, and operand 0's sizes along all others in the first call
//	exact                    a result of a 16-bit float dtype holds the literals exactly
//	promote                  no condition: the operands meet in one dtype first
//	narrow                   no condition: the body does not compute in f32 where the operands are f16 or bf16
//
// Body is statements "name = expr" with ; between them, and at the end "-> expr, …": the results in the schema's
// order, then the new contents of written operands. An expr is a name, a number, or an op with operands, in
// parentheses where it is itself an operand:
//
//	add x y …                own elementwise ops; after a ? the value is the other operand where one is absent
//	sum x dims …             own reductions, which keep the reduced dims as 1; after a _ they drop them
//	fill x n                 n everywhere, in the sizes of x
//	f32 x, f64 x, cast x y   x in that dtype, or in y's dtype
//	as x y                   x, which has y's sizes, in y's dtype and in memory of its own
//	flat x y                 x in y's sizes, which differ in dims of 1 or hold as many elements of row-major memory
//	groups x g               x of sizes [n,c,…] as [n,g,…]: g groups of channels, each group in one dim
//	iota x d                 the position of each element of x along dim d, an i64
//	take x i d               the elements of x at positions i along dim d of x; i and x broadcast along the other dims
//	within i x d             i, whose elements are positions along dim d of x: a call before the kernels checks that. A
//	                         fourth word is an argument that elements of i may also be
//	draw p x                 true for each element of x but with probability p, from PyTorch's random numbers
//	single y x d             y, which has one element along dim d and x's sizes along all others, in these sizes
//	unsq x d                 x with one more dim of size 1, which is dim d
//	chan w x                 w, one element per channel, as it broadcasts to x: [c] as [c,1,1] for [n,c,h,w]
//
// A dim is a literal, or the name of an argument that holds one; -1 is the last. The dims of a reduction are a dim, the
// words all, in:name (the dims in a list, all of them if it is empty or none), last:name and lead:name (as many dims as
// the list has, and the other ones), chan (all but dim 1). A result may have dims of 1 that the operator drops.
//
// A body computes in f32 where the operands are f16 or bf16, and rounds its results once, as ATen does. With promote,
// all operands are of the dtype in which they meet: f64 beside bf16 is f64.
//
// The formulas are those of ATen's own kernels, and those for the CPU where the two devices differ (addcdiv). Where
// ATen has two formulas that differ in the last place (lerp, by its weight), the case has both. A product and a sum
// that compilers contract into one instruction are one op here, fma.
type Case struct {
	When, Body string
}

// Point is the way in which a kernel finds the elements of an operator's operands, if no Case of the operator says so.
type Point uint8

const (
	NoPoint      Point = iota // no kernel computes the operator
	SamePlace                 // each element of the result needs only the elements at its place, and perhaps the place
	Concatenated              // it puts its operands side by side along one dim (concatenate in ir/decomp)
	Stacked                   // the same along a new dim
)

// Fill is the number that an operator writes to each element of its operand.
type Fill uint8

const (
	NoFill     Fill = iota
	FillZero        // 0
	FillNumber      // argument 1, which is a number
)

// Lists reports whether an operator computes the i-th result from the i-th tensor of each of its lists.
func Lists(name string) bool {
	return strings.HasPrefix(name, ForeachPrefix) || strings.HasPrefix(name, "aten::_fused_")
}

// atenRows are the rows of all families; atenByName is their index. Nothing changes them after they are made.
var (
	atenRows   = slices.Concat(elementwiseRows, linearRows, networkRows, memoryRows, reductionRows, listRows)
	atenByName = indexATen()
)

func indexATen() map[string]*ATen {
	index := make(map[string]*ATen, len(atenRows))
	for i := range atenRows {
		r := &atenRows[i]
		if index[r.Name] != nil {
			panic(fmt.Sprintf("BUG: %s has two rows", r.Name))
		}
		index[r.Name] = r
	}
	return index
}

// ATenRows are the rows of all operators in the order of the tables. The caller must not change them.
func ATenRows() []ATen { return atenRows }

// Emitted are the operators of PyTorch that a program may call though no record names them, in order: the forms of own
// ops, the operators that overwrite an operand, and those that the compiler and the recorder write by name.
func Emitted() []string {
	names := []string{"aten::copy_", "aten::zero_"}
	for _, op := range OwnOps {
		for _, f := range op.ATen {
			names = append(names, f.Name)
		}
	}
	for i := range atenRows {
		r := &atenRows[i]
		for _, name := range []string{r.InPlace, r.Out, r.Capture.RecordedAs} {
			if name != "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// FindATen is the row of an operator, nil if nothing is known about it.
func FindATen(name string) *ATen { return atenByName[name] }
