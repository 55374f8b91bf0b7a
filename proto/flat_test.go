// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/mycelya/mycelya/catalogue"
)

// TestSchemaHasTheCataloguesWords compares the oneofs of mycelya.proto with the tables: as many cases, the same names,
// and the numbers that the tables imply.
func TestSchemaHasTheCataloguesWords(t *testing.T) {
	args := new(Arg).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	require.Equal(t, len(catalogue.ArgKinds), args.Len())
	for _, kind := range catalogue.ArgKinds {
		field := args.ByName(protoreflect.Name(kind.Proto))
		require.NotNil(t, field, kind.Word)
		require.EqualValues(t, kind.Number-1, field.Number(), kind.Word)
	}
	steps := new(Step).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	require.Equal(t, len(catalogue.Steps), steps.Len())
	for _, step := range catalogue.Steps {
		require.NotNil(t, steps.ByNumber(protoreflect.FieldNumber(step.Number)), step.Word)
	}
}

// TestFlatRoundTrip takes each row of the table through the oneof and back.
func TestFlatRoundTrip(t *testing.T) {
	for _, kind := range catalogue.ArgKinds {
		f := Flat{Tag: uint64(kind.Number)}
		if kind.HasHead() {
			f.Head = 2
		}
		switch kind.Payload {
		case catalogue.PayloadTensor, catalogue.PayloadParam:
			f.Value = 7
		case catalogue.PayloadWord:
			f.Value = math.Float64bits(-2.5)
		case catalogue.PayloadHead:
			f.Value = 1
		case catalogue.PayloadText:
			f.Text = "mean"
		case catalogue.PayloadItems:
			f.Items = []*Arg{NewArg(Flat{Tag: catalogue.TagInt, Value: 3})}
		}
		if kind.Number == catalogue.TagDevice {
			f.Value = 0
		}
		a := NewArg(f)
		require.Equal(t, f, a.Flat(), kind.Word)
		field := a.ProtoReflect().WhichOneof(a.ProtoReflect().Descriptor().Oneofs().ByName("kind"))
		require.EqualValues(t, kind.Proto, field.Name())
		bytes, err := protobuf.Marshal(a)
		require.NoError(t, err)
		back := new(Arg)
		require.NoError(t, protobuf.Unmarshal(bytes, back))
		require.True(t, protobuf.Equal(a, back), kind.Word)
	}
	require.Zero(t, new(Arg).Flat())
	require.Zero(t, (*Arg)(nil).Flat())
	require.Panics(t, func() { NewArg(Flat{Tag: catalogue.NumTags}) })
}
