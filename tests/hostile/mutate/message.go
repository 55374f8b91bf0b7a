// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package mutate changes messages and bytes of frames at random, for test programs. The same random numbers give the
// same changes.
package mutate

import (
	"math"
	"math/rand/v2"
	"strings"

	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// numbers are values at which limits and signs change.
var numbers = []uint64{
	0, 1, 2, 3, 7, 64, 255, 256, 4096, 1 << 16, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1 << 40, 1 << 62, 1<<63 - 1,
	1 << 63, math.MaxUint64 - 1, math.MaxUint64,
}

// Number is a value near another one, or one of numbers, or any.
func Number(r *rand.Rand, near uint64) uint64 {
	switch r.IntN(5) {
	case 0, 1:
		return near + uint64(r.IntN(5)) - 2
	case 2, 3:
		return numbers[r.IntN(len(numbers))]
	}
	return r.Uint64()
}

// Message changes one field of a message or of a message inside it, which may become invalid.
func Message(r *rand.Rand, m protobuf.Message) {
	all := inside(m.ProtoReflect(), nil)
	// The fields of the message itself count as much as all others.
	at := all[0]
	if r.IntN(2) == 0 {
		at = all[r.IntN(len(all))]
	}
	fields := at.Descriptor().Fields()
	if fields.Len() == 0 {
		return
	}
	f := fields.Get(r.IntN(fields.Len()))
	switch {
	case f.IsList():
		changeList(r, at, f)
	case r.IntN(8) == 0:
		at.Clear(f)
	case f.Message() != nil:
		at.Mutable(f) // an empty message if there was none
	default:
		at.Set(f, scalar(r, f, at.Get(f)))
	}
}

// inside lists a message and all messages inside it.
func inside(m protoreflect.Message, out []protoreflect.Message) []protoreflect.Message {
	out = append(out, m)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				out = inside(v.List().Get(i).Message(), out)
			}
		default:
			out = inside(v.Message(), out)
		}
		return true
	})
	return out
}

// changeList cuts a list, swaps two items, changes one, or adds one that is new or a copy.
func changeList(r *rand.Rand, at protoreflect.Message, f protoreflect.FieldDescriptor) {
	list := at.Mutable(f).List()
	n := list.Len()
	switch what := r.IntN(5); {
	case what == 0 && n > 0:
		list.Truncate(r.IntN(n))
	case what == 1 && n > 1:
		i, j := r.IntN(n), r.IntN(n)
		a, b := list.Get(i), list.Get(j)
		if f.Message() != nil { // two items must not share a message
			a, b = clone(a), clone(b)
		}
		list.Set(i, b)
		list.Set(j, a)
	case what == 2 && n > 0 && f.Message() == nil:
		i := r.IntN(n)
		list.Set(i, scalar(r, f, list.Get(i)))
	case what <= 3 && n > 0:
		v := list.Get(r.IntN(n))
		if f.Message() != nil {
			v = clone(v)
		}
		list.Append(v)
	case f.Message() != nil:
		list.Append(list.NewElement())
	default:
		list.Append(scalar(r, f, list.NewElement()))
	}
}

func clone(v protoreflect.Value) protoreflect.Value {
	return protoreflect.ValueOfMessage(protobuf.Clone(v.Message().Interface()).ProtoReflect())
}

// scalar is a new value of a field that has no message.
func scalar(r *rand.Rand, f protoreflect.FieldDescriptor, old protoreflect.Value) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(r.IntN(2) == 0)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(Number(r, uint64(old.Int()))))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int32(Number(r, uint64(old.Enum())))))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(Number(r, old.Uint())))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		return protoreflect.ValueOfInt64(int64(Number(r, uint64(old.Int()))))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(Number(r, old.Uint()))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(math.Float64frombits(Number(r, math.Float64bits(old.Float()))))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(Text(r, old.String()))
	case protoreflect.BytesKind:
		b := append([]byte{}, old.Bytes()...)
		if len(b) > 0 && r.IntN(3) > 0 {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
			return protoreflect.ValueOfBytes(b)
		}
		return protoreflect.ValueOfBytes(append(b, make([]byte, r.IntN(40))...))
	}
	panic("BUG: mycelya.proto has a field of kind " + f.Kind().String())
}

// operators are names that old texts may become.
var operators = []string{
	"aten::neg", "aten::add.Tensor", "aten::mm", "aten::relu_", "aten::resize_", "aten::as_strided",
	"aten::set_.source_Storage", "aten::_foreach_add.List",
	"prim::PythonOp", "aten::from_file", "mycelya::manual_seed", "aten::",
}

// Text is another text: a part, a longer one, control characters, or the name of an operator.
func Text(r *rand.Rand, old string) string {
	switch r.IntN(6) {
	case 0:
		return old[:len(old)/2]
	case 1:
		return old + "\x1b[2J\x00\r\n" + old
	case 2:
		return strings.Repeat("x", r.IntN(1<<r.IntN(18)))
	case 3:
		return ""
	}
	return operators[r.IntN(len(operators))]
}
