// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// enlarge gives every number of a message the value with the longest encoding.
func enlarge(m protoreflect.Message) {
	largest := map[protoreflect.Kind]protoreflect.Value{
		protoreflect.Uint32Kind: protoreflect.ValueOfUint32(math.MaxUint32),
		protoreflect.Uint64Kind: protoreflect.ValueOfUint64(math.MaxUint64),
		protoreflect.Sint64Kind: protoreflect.ValueOfInt64(math.MinInt64),
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch large, isNumber := largest[field.Kind()]; {
		case field.IsList():
			for i := range value.List().Len() {
				if isNumber {
					value.List().Set(i, large)
				} else if field.Kind() == protoreflect.MessageKind {
					enlarge(value.List().Get(i).Message())
				}
			}
		case isNumber:
			m.Set(field, large)
		case field.Kind() == protoreflect.MessageKind:
			enlarge(value.Message())
		}
		return true
	})
}

// TestSizeBound: the bound holds for the largest numbers, and each part of a program counts as often as it occurs.
func TestSizeBound(t *testing.T) {
	for _, p := range []*Program{sample(), fusedSample()} {
		require.GreaterOrEqual(t, SizeBound(p), protobuf.Size(p))
		enlarge(p.ProtoReflect())
		require.GreaterOrEqual(t, SizeBound(p), protobuf.Size(p))
		for range 6 { // so that the constant part of the bound does not matter
			p.Tensors, p.Steps = append(p.Tensors, p.Tensors...), append(p.Steps, p.Steps...)
			p.Kernels = append(p.Kernels, p.Kernels...)
			p.Inputs, p.Outputs = append(p.Inputs, p.Inputs...), append(p.Outputs, p.Outputs...)
			p.Records, p.Versions = append(p.Records, p.Records...), append(p.Versions, p.Versions...)
			require.GreaterOrEqual(t, SizeBound(p), protobuf.Size(p))
		}
		// Each kind of step by itself.
		for _, s := range p.Steps[:len(p.Steps)/64] {
			many := &Program{Steps: make([]*Step, 100)}
			for i := range many.Steps {
				many.Steps[i] = s
			}
			require.GreaterOrEqual(t, SizeBound(many), protobuf.Size(many), "%s", s)
		}
	}
}
