// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import (
	"math"
	"slices"
)

// The words of the ABI: every number that the recorder, the compiler, the wire and the executor share. This is a table
// file. catalogue/gen writes csrc/abi/words.h and the Go constants from it. Numbers are never reused: they are on the
// wire. In a column of names "-" means that the row has none; an empty cell fails the test.

// ABIVersion is MYCELYA_ABI_VERSION. Both ends compare it when a library is loaded. A change of csrc/abi raises it.
const ABIVersion = 24

// None is the cell of a row that has no such name.
const None = "-"

// Class is the kind of a dtype. Promotion goes from a lower class to a higher one.
type Class uint8

// The classes of dtypes.
const (
	ClassBool Class = iota + 1
	ClassInt
	ClassFloat
	ClassComplex
	ClassFloat8 // storage only: no arithmetic
)

// DType is the type of one element.
type DType struct {
	Word     string // MYC_<Word>
	Number   uint8
	Go       string // constant of package ir
	Name     string // in IR text
	Size     int    // bytes
	Class    Class
	Signed   bool   // an integer dtype with a sign
	Pair     string // float: the complex dtype that it becomes beside complex numbers; complex: the dtype of its parts
	Torch    string // c10::ScalarType::<Torch>
	Register string // Word of the class of kernel registers that hold it; "-": kernels refuse the dtype
	Rounds   bool   // a kernel register that holds it needs a ROUND after arithmetic
	Memory   string // CUDA type of an element in memory
	Largest  float64
}

// DTypes has one row for each dtype, in the order of their numbers from 1. Largest is the largest finite number of a
// dtype that kernels compute in, as a float64; 0 for the others.
var DTypes = []DType{
	{"U8", 1, "U8", "u8", 1, ClassInt, false, None, "Byte", "I64", true, "unsigned char", math.MaxUint8},
	{"I8", 2, "I8", "i8", 1, ClassInt, true, None, "Char", "I64", true, "signed char", math.MaxInt8},
	{"I16", 3, "I16", "i16", 2, ClassInt, true, None, "Short", "I64", true, "short", math.MaxInt16},
	{"I32", 4, "I32", "i32", 4, ClassInt, true, None, "Int", "I64", true, "int", math.MaxInt32},
	{"I64", 5, "I64", "i64", 8, ClassInt, true, None, "Long", "I64", false, "long long", math.MaxInt64},
	{"F16", 6, "F16", "f16", 2, ClassFloat, false, "c32", "Half", "F32", true, "half", 65504},
	{"F32", 7, "F32", "f32", 4, ClassFloat, false, "c64", "Float", "F32", false, "float", math.MaxFloat32},
	{"F64", 8, "F64", "f64", 8, ClassFloat, false, "c128", "Double", "F64", false, "double", math.MaxFloat64},
	{"C32", 9, "C32", "c32", 4, ClassComplex, false, "f16", "ComplexHalf", None, false, None, 0},
	{"C64", 10, "C64", "c64", 8, ClassComplex, false, "f32", "ComplexFloat", None, false, None, 0},
	{"C128", 11, "C128", "c128", 16, ClassComplex, false, "f64", "ComplexDouble", None, false, None, 0},
	{"BOOL", 12, "Bool", "b8", 1, ClassBool, false, None, "Bool", "B8", false, "truth", 1},
	// A complex dtype as wide as bf16 does not exist.
	{"BF16", 13, "BF16", "bf16", 2, ClassFloat, false, "c64", "BFloat16", "F32", true, "brain", 0x1.fep127},
	{"F8E5M2", 14, "F8E5M2", "f8e5m2", 1, ClassFloat8, false, None, "Float8_e5m2", None, false, None, 0},
	{"F8E4M3FN", 15, "F8E4M3FN", "f8e4m3fn", 1, ClassFloat8, false, None, "Float8_e4m3fn", None, false, None, 0},
	{"F8E5M2FNUZ", 16, "F8E5M2FNUZ", "f8e5m2fnuz", 1, ClassFloat8, false, None, "Float8_e5m2fnuz", None, false, None, 0},
	{"F8E4M3FNUZ", 17, "F8E4M3FNUZ", "f8e4m3fnuz", 1, ClassFloat8, false, None, "Float8_e4m3fnuz", None, false, None, 0},
	{"U16", 18, "U16", "u16", 2, ClassInt, false, None, "UInt16", "I64", true, "unsigned short", math.MaxUint16},
	{"U32", 19, "U32", "u32", 4, ClassInt, false, None, "UInt32", "I64", true, "unsigned", math.MaxUint32},
	{"U64", 20, "U64", "u64", 8, ClassInt, false, None, "UInt64", None, false, None, 0},
}

// Register is a class of kernel registers.
type Register struct {
	Word   string // MYC_K_<Word>, and the constant of package kernel
	Number uint8
	Name   string // in kernel text
	Memory string // CUDA type of a register
}

// Registers has one row for each class of kernel registers.
var Registers = []Register{
	{"F32", 1, "f32", "float"},
	{"F64", 2, "f64", "double"},
	{"I64", 3, "i64", "long long"},
	{"B8", 4, "b8", "bool"},
}

// Head is the content of bits 8 to 15 of an argument's word in a trace. In a program for the executor the same number
// is a separate word.
type Head uint8

// The contents of an argument's head.
const (
	HeadNothing Head = iota + 1
	HeadNumber       // a number kind
	HeadDType        // a dtype
	HeadList         // a list kind
	HeadBool         // 0 or 1
	HeadByte         // any number of 8 bits
	HeadTensor       // the fields of a tensor: see the grammar in csrc/abi/mycelya.h
	HeadLength       // a length in bytes, 32 bits
)

// Payload is the content that follows the head of an argument.
type Payload uint8

// The payloads of an argument.
const (
	PayloadNothing Payload = iota + 1
	PayloadTensor          // trace: a geometry; program: an index of a tensor
	PayloadParam           // trace: one parameter, or two for complex numbers; program: the index of the first one
	PayloadWord            // one literal word
	PayloadHead            // nothing more: the value is what the head holds
	PayloadText            // the bytes of a string, padded to whole words
	PayloadItems           // the items of a list
)

// ArgKind is the kind of an argument of a call, in the trace, in the graph, in the program and in the executor.
type ArgKind struct {
	Word    string // MYC_W_<Word>
	Number  uint8
	Tag     string // constant catalogue.Tag<Tag>
	IR      string // constant ir.Arg<IR>; "-" if the graph has a value of a node in its place
	Text    string // in messages: "argument self takes int, not <Text>"
	Prefix  string // in IR text, before a colon
	Head    Head
	Payload Payload
}

// ArgKinds has one row for each kind of argument, in the order of their numbers. Number 1 begins a record.
var ArgKinds = []ArgKind{
	{"NONE", 2, "None", "None", "none", None, HeadNothing, PayloadNothing},
	{"TENSOR", 3, "Tensor", "Value", "a tensor", None, HeadTensor, PayloadTensor},
	{"NUMBER", 4, "Number", None, "a number", None, HeadNumber, PayloadParam},
	{"SCALAR", 5, "Scalar", None, "a 0-dim tensor", None, HeadDType, PayloadParam},
	{"SIZE", 6, "Size", "Dim", "a size", "dim", HeadNothing, PayloadParam},
	{"INT", 7, "Int", "Int", "an int", None, HeadNothing, PayloadWord},
	{"FLOAT", 8, "Float", "Float", "a float", None, HeadNothing, PayloadWord},
	{"BOOL", 9, "Bool", "Bool", "a bool", None, HeadBool, PayloadHead},
	{"DTYPE", 10, "DType", "DType", "a dtype", None, HeadDType, PayloadHead},
	{"LAYOUT", 11, "Layout", "Layout", "a layout", "layout", HeadByte, PayloadHead},
	{"DEVICE", 12, "Device", "Device", "a device", "device", HeadByte, PayloadHead},
	{"MEMFMT", 13, "MemFmt", "MemFmt", "a memory format", "memfmt", HeadByte, PayloadHead},
	{"STR", 14, "Str", "Str", "a string", None, HeadLength, PayloadText},
	{"GEN", 15, "Gen", "Gen", "a generator", "gen", HeadNothing, PayloadParam},
	{"LIST", 16, "List", "List", "a list", None, HeadList, PayloadItems},
}

// RecordTag is MYC_W_RECORD: the tag of the head of a record.
const RecordTag = 1

// NumberKind is the kind of a Python number.
type NumberKind struct {
	Word   string // MYC_N_<Word>
	Number uint8
	Go     string // constant catalogue.Number<Go>
	DType  string // Name of the dtype of its value
	Params int    // parameters that hold it
}

// NumberKinds has one row for each kind of Python number, in the order of their numbers from 1.
var NumberKinds = []NumberKind{
	{"F64", 1, "F64", "f64", 1},
	{"I64", 2, "I64", "i64", 1},
	{"BOOL", 3, "Bool", "b8", 1},
	{"C128", 4, "C128", "c128", 2},
}

// ListKind is the kind of a list's items.
type ListKind struct {
	Word   string // MYC_L_<Word>
	Number uint8
	Go     string   // constants catalogue.List<Go> and ir.List<Go>
	Name   string   // in IR text
	Items  []string // Words of the argument kinds that an item of it may be
}

// ListKinds has one row for each kind of list, in the order of their numbers from 1. An item of a list of numbers or
// tensors may be the element of a 0-dim CPU tensor, so it may be a SCALAR.
var ListKinds = []ListKind{
	{"TENSORS", 1, "Tensors", "tensors", []string{"TENSOR", "NUMBER", "SCALAR"}},
	{"OPT_TENSORS", 2, "OptTensors", "opts", []string{"TENSOR", "NUMBER", "SCALAR", "NONE"}},
	{"INTS", 3, "Ints", "ints", []string{"SIZE", "INT"}},
	{"FLOATS", 4, "Floats", "floats", []string{"FLOAT", "NUMBER", "SCALAR", "SIZE", "INT"}},
	{"BOOLS", 5, "Bools", "bools", []string{"BOOL"}},
	{"SCALARS", 6, "Scalars", "scalars", []string{"NUMBER", "SCALAR", "SIZE", "INT", "FLOAT", "BOOL"}},
}

// Flag is one bit, or one number, of a small set.
type Flag struct {
	Word    string // after the prefix of its table
	Number  uint8
	Go      string // after the prefix of its table
	Meaning string
}

// Limit is a bound that Go and C++ check.
type Limit struct {
	Word string // after the prefix of its table
	Go   string
	Most int
	Of   string
}

// KernelLimits bound the parts of a kernel: MYC_K_MAX_*, kernel.Max*.
var KernelLimits = []Limit{
	{"MAX_RANK", "MaxRank", 16, "dims of an index space"},
	{"MAX_SPACES", "MaxSpaces", 8, "index spaces"},
	{"MAX_OPERANDS", "MaxOperands", 1024, "operands"},
	{"MAX_NUMBERS", "MaxNumbers", 1024, "numbers"},
	{"MAX_INSTRS", "MaxInstrs", 4096, "instructions"},
}

// UploadLimits are the sizes in bytes that decide how an upload travels: MYC_UPLOAD_*, catalogue.Upload*.
var UploadLimits = []Limit{
	{"SMALL", "Small", 64 << 10, "copied bytes that are sent with the submission that uses them"},
	{"SMALL_ALL", "SmallAll", 1 << 20, "copied bytes of all uploads that wait for such a submission"},
	{"WHOLE", "Whole", 1 << 20, "bytes that are sent in one frame; more are sent in pieces"},
	{"COPIED", "Copied", 32 << 20, "bytes that are copied, so that the caller goes on; it waits until more are sent"},
	{"UNDER_WAY", "UnderWay", 256 << 20, "bytes of all uploads for which no caller waits"},
}

// RecordFlags are the bits MYC_R_*, of records, nodes and calls alike: catalogue.Record<Go>, ir.Flag<Go>.
var RecordFlags = []Flag{
	{"RNG", 1, "RNG", "draws random numbers: never merged, dropped, or reordered against others"},
	{"EFFECT", 2, "Effect", "must be kept, in order"},
	{"DYNAMIC", 4, "Dynamic", "the shapes of its results are only known to the worker"},
}

// TensorFlags are the bits MYC_T_* of a tensor in a trace: catalogue.Tensor<Go>.
var TensorFlags = []Flag{
	{"FIRST", 1, "First", "first sight of this storage in this trace"},
	{"SAME", 2, "Same", "the storage's defining geometry; no geometry follows"},
	{"CONTIG", 4, "Contig", "strides are row-major contiguous for the sizes"},
	{"OFF0", 8, "Off0", "storage offset 0"},
	{"WHOLE", 16, "Whole", "offset 0, dense, not overlapping, numel * itemsize == storage bytes"},
	{"WRITE", 32, "Write", "the record writes this operand (it may read it too)"},
}

// DimClasses are the classes MYC_D_* of one size or stride in a trace: catalogue.Dim<Go>.
var DimClasses = []Flag{
	{"ZERO", 0, "Zero", "it is 0"},
	{"ONE", 1, "One", "it is 1"},
	{"OTHER", 2, "Other", "it is a parameter"},
}

// Steps are the kinds MYC_S_* of steps of a program: catalogue.Step<Go>.
var Steps = []Flag{
	{"CALL", 1, "Call", "calls an operator of PyTorch"},
	{"COPY", 2, "Copy", "copies a tensor, element by element"},
	{"ALLOC", 3, "Alloc", "makes a buffer without content"},
	{"CLONE", 4, "Clone", "makes a copy of a buffer"},
	{"FREE", 5, "Free", "ends a buffer"},
	{"RESIZE", 6, "Resize", "changes the size of a buffer and keeps the common prefix"},
	{"FUSED", 7, "Fused", "begins steps with kernels, and the operators that do the same"},
	{"KERNEL", 8, "Kernel", "runs a kernel"},
}

// KernelAccess are the bits MYC_K_* of a kernel's operand: kernel.<Go>.
var KernelAccess = []Flag{
	{"READ", 1, "Read", "the kernel reads the operand"},
	{"WRITE", 2, "Write", "the kernel writes the operand"},
}

// ErrorKind is the Python exception that an error becomes.
type ErrorKind struct {
	Word   string // MYC_E_<Word>
	Number int
	Go     string // constants catalogue.Err<Go>, proto.Err<Go>, runtime.Kind<Go>
	C10    string // c10::<C10>, which PyTorch turns into the exception
	Python string // exception that the user sees
}

// ErrorKinds has one row for each kind of error, in the order of their numbers from 1. 0 is MYC_OK.
var ErrorKinds = []ErrorKind{
	{"RUNTIME", 1, "Runtime", "Error", "RuntimeError"},
	{"INDEX", 2, "Index", "IndexError", "IndexError"},
	{"VALUE", 3, "Value", "ValueError", "ValueError"},
	{"TYPE", 4, "Type", "TypeError", "TypeError"},
	{"NOT_IMPLEMENTED", 5, "NotImplemented", "NotImplementedError", "NotImplementedError"},
	{"MEMORY", 6, "Memory", "OutOfMemoryError", "torch.OutOfMemoryError"},
	{"LOST", 7, "Lost", "Error", "mycelya_torch.errors.DeviceLostError"}, // the worker or its connection is gone
	{"LINALG", 8, "Linalg", "LinAlgError", "torch.linalg.LinAlgError"},
	{"STOPPED", 9, "Stopped", "Error", "mycelya_torch.errors.MachineStoppedError"}, // its owner has stopped the machine
}

// Pending is MYC_PENDING: no error, but not ready yet.
const Pending = 100

// Cut is a reason why a trace was closed.
type Cut struct {
	Word   string // MYC_CUT_<Word>
	Number int
	Name   string // in dumps, metrics and the header of a graph
	Why    string // continues "Cut because "
}

// Cuts has one row for each reason, in the order of their numbers from 0.
var Cuts = []Cut{
	{"NONE", 0, "none", "no reason was given"},
	{"READ", 1, "read", "a value was read"},
	{"SYNC", 2, "sync", "the device was waited for"},
	{"STEP", 3, "step", "an optimizer's step ended"},
	{"UPLOAD", 4, "upload", "a line that had uploaded data did so again"},
	{"SIZE", 5, "size", "it was as long as a program may be"},
	{"FLUSH", 6, "flush", "flush() was called"},
	{"EXIT", 7, "exit", "the process ended"},
	{"SHAPE", 8, "shape", "data decides a shape"},
	{"EVENT", 9, "event", "an event was recorded"},
	{"REPEAT", 10, "repeat", "a round of a loop ended"},
	{"EARLY", 11, "early", "a loop waits for each of its rounds, and the worker began with this one"},
	{"LIST", 12, "list", "an operator on a long list of tensors began"},
	{"COMM", 13, "comm", "the program waited for another rank, which may wait for this one's device"},
}

// CutOf is the row of a reason by its number. A number that no row has is the reason "none".
func CutOf(number uint32) Cut {
	if uint64(number) >= uint64(len(Cuts)) {
		number = 0
	}
	return Cuts[number]
}

// ArgKindOf is the row of an argument kind by its number, nil if there is none.
func ArgKindOf(number uint64) *ArgKind {
	if first := uint64(ArgKinds[0].Number); number >= first && number-first < uint64(len(ArgKinds)) {
		return &ArgKinds[number-first]
	}
	return nil
}

// HasHead reports whether an argument of a program has its head as a word of its own, between the tag and the payload.
func (a *ArgKind) HasHead() bool {
	return a.Payload != PayloadHead && (a.Head == HeadNumber || a.Head == HeadDType || a.Head == HeadList)
}

// DTypeOf is the row of a dtype by its number, nil if there is none.
func DTypeOf(number uint64) *DType {
	if number == 0 || number > uint64(len(DTypes)) {
		return nil
	}
	return &DTypes[number-1]
}

// DTypeSize is the number of bytes of one element of a dtype, or 0 if there is none with this number.
func DTypeSize(number uint64) int {
	row := DTypeOf(number)
	if row == nil {
		return 0
	}
	return row.Size
}

// RegisterOf is the number of the class of kernel registers that hold a dtype, 0 if kernels refuse it.
func (d *DType) RegisterOf() uint8 {
	for _, r := range Registers {
		if r.Word == d.Register {
			return r.Number
		}
	}
	return 0
}

// Tags are the argument kinds that an item of the list may be: bit n is the kind of number n.
func (l *ListKind) Tags() uint32 { return listTags[l.Number] }

var listTags = func() []uint32 {
	tags := make([]uint32, 1+len(ListKinds))
	for _, l := range ListKinds {
		for _, a := range ArgKinds {
			if slices.Contains(l.Items, a.Word) {
				tags[l.Number] |= 1 << a.Number
			}
		}
	}
	return tags
}()
