// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

// Capture holds the facts about an operator that the recorder needs beside its schema. The generator of the op table
// and the C++ table operators.inc read these cells; the recorder resolves them once per operator, not per call.
type Capture struct {
	Handling Handling // set where the registrations of PyTorch's dispatcher do not decide it
	// Infers names the overload whose shape rule also holds for this one, if names and arguments do not determine the
	// overload. If that is the operator itself, it has a rule of its own that sees all arguments, out= ones too.
	Infers string

	Facts    Facts
	Shortcut Shortcut

	// The next cells name C++ functions that csrc/device/record/Special.h declares.
	Kernel      string // the boxed kernel that is registered; "" is record
	Instead     string // runs before the call is recorded, and may do the call in other operators
	OnLazyViews string // the same, where an operand is a conjugate or negative view
	Check       string // refuses arguments that the shape function lets pass; holds for in-place and out= forms too

	// RunningStats is the argument that holds the running mean, with the running variance after it. The operator
	// writes both, though its schema does not say so; if IfTraining is not 0, only where that argument is true.
	RunningStats, IfTraining int
	// SizeArgument is an argument that, if it is given, is the size of the result of a dynamic operator.
	SizeArgument int
	// RecordedAs is the operator that the worker runs, with the classes of its arguments; Rewrites names the C++
	// function that makes its arguments from the original's, "" if they are the same.
	RecordedAs, Rewrites, Classes string
}

// Handling is the way in which an operator is recorded. The zero value leaves the decision to the registrations and the
// patterns.
type Handling uint8

const (
	Hand      Handling = iota + 1 // csrc/device registers a kernel of its own
	Whole                         // one record, though PyTorch's composite kernel would call several operators
	Dynamic                       // one record, but only the worker knows the shapes of the results
	Decompose                     // PyTorch's composite kernel calls other operators
)

// Shortcut is the reason why a call may be simple enough for the recorder's short path.
type Shortcut uint8

const (
	NoShortcut         Shortcut = iota
	ShortElementwise            // takes only tensors and numbers, one shape
	ShortProduct                // a product of two matrices
	ShortBiasedProduct          // the same, with a bias
)

// Facts is a set of facts that the recorder and the inference of shapes read.
type Facts uint32

const (
	TakesCPUIndices Facts = 1 << iota // index tensors may be on the CPU: they are uploaded
	FillsWithNumber                   // the last argument, a number, must fit the dtype of argument 0
	MayOverlap                        // several elements of what it writes may be at one place
	ForbidsOverlap                    // no operand may share memory with what it writes, not even exactly
	CopiesValue                       // it copies a clone of its value, so that the two may share memory
	CopiesLists                       // it copies each tensor of a list into one of another
	SkipsReal                         // it does nothing to a real tensor
	KeepsShape                        // an out= tensor with as many elements as the result keeps its shape
	KeepsDType                        // an out= tensor must have the dtype of the result
	AnyDTypeOut                       // an out= tensor may have any dtype
	TakesDTypeOfOut                   // without a dtype argument it computes in the dtype of its out= tensor
	RealOfComplex                     // for a complex operand it computes a real temporary, and copies it
	ResizesPlainly                    // an out= tensor that is resized becomes contiguous, unless it was empty
	ResizesEmpty                      // the same for one that was empty
	CopiesIntoOut                     // the solver casts its results to the dtypes of its out= tensors
	FloatOut                          // an out= tensor must be of floats
	DrawsInPlace                      // an out= tensor is never resized: the operator draws into it
	MeetsDTypes                       // its operands meet in one dtype, as those of pointwise operators do
	BumpsVersions                     // it writes lists of tensors whose versions PyTorch leaves to the device
	Asserts                           // it may fail by the values, and is kept for that: its record is an effect
	Exact                             // every device computes it to the same bits, if no float becomes an integer
	ExactOnIntegers                   // the same, if all operands and results are integers or booleans
	IgnoresSelf                       // the values of argument 0 do not matter for what it computes or writes
	numFacts        = iota
)

// factNames are the names of the facts by bit, as C++ has them after a k.
var factNames = [numFacts]string{
	"TakesCPUIndices", "FillsWithNumber", "MayOverlap", "ForbidsOverlap", "CopiesValue", "CopiesLists", "SkipsReal",
	"KeepsShape", "KeepsDType", "AnyDTypeOut", "TakesDTypeOfOut", "RealOfComplex", "ResizesPlainly", "ResizesEmpty",
	"CopiesIntoOut", "FloatOut", "DrawsInPlace", "MeetsDTypes", "BumpsVersions",
	"Asserts", "Exact", "ExactOnIntegers", "IgnoresSelf",
}

// Names are the names of the facts in the set.
func (f Facts) Names() (names []string) {
	for i, name := range factNames {
		if f>>i&1 != 0 {
			names = append(names, name)
		}
	}
	return names
}

// AllFacts is the set of all facts.
const AllFacts Facts = 1<<numFacts - 1

// Family has the facts of all operators whose names have a common prefix.
type Family struct {
	Prefix string
	Facts  Facts
}

// Families lists the families.
func Families() []Family { return []Family{{ForeachPrefix, BumpsVersions}} }
