// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestOwnOps walks every row: no cell that each row needs is empty, and no name is there twice.
func TestOwnOps(t *testing.T) {
	names, constants := map[string]bool{}, map[string]bool{}
	for i := range OwnOps {
		o := &OwnOps[i]
		assert.True(t, o.Name != "" && o.Kind != 0 && o.Args != "" && o.Takes != 0 && o.DType != 0 && o.Shape != 0 &&
			o.Pure != 0 && o.ATen != nil, "%s has an empty cell", o.Name)
		assert.False(t, names[o.Name] || constants[o.GoName()], "%s is there twice", o.Name)
		names[o.Name], constants[o.GoName()] = true, true
		assert.True(t, o.OnBool == nil || o.Kernel != nil, o.Name)
		if o.Kernel != nil && o.Kind == KindElementwise {
			assert.Equal(t, o.Arity(), o.Kernel.Operands, o.Name)
			assert.Equal(t, o.DType == DTypeBool, o.Kernel.Truth || o.Logical, o.Name)
		}
		if o.Kind == KindElementwise {
			assert.True(t, o.hasMeaning(), "%s has no reference", o.Name)
		}
	}
}

// hasMeaning reports whether the row has references for its number of operands. The meanings of these few ops depend on
// more than their operands' values; ir/eval has them.
func (o *Own) hasMeaning() bool {
	m := &o.Meaning
	switch o.Name {
	case "isnan", "logical_not", "cast", "fma", "where":
		return true
	}
	if o.Arity() == 1 {
		return m.Float != nil || m.Int != nil
	}
	return m.Float2 != nil || m.Int2 != nil || m.Order != nil || m.Logic != nil
}

// TestInstrs walks every instruction: no cell is missing, and numbers and names are there once.
func TestInstrs(t *testing.T) {
	numbers, names := map[uint8]bool{}, map[string]bool{}
	for _, i := range Instrs() {
		assert.True(t, i.Name != "" && i.Number != 0 && i.Group != 0 && i.Cost != 0, "%s has an empty cell", i.Name)
		assert.False(t, numbers[i.Number] || names[i.GoName()], "%s is there twice", i.Name)
		numbers[i.Number], names[i.GoName()] = true, true
		assert.Equal(t, i.Operands > 0, i.Takes != 0, i.Name)
		assert.Equal(t, i.Group == GroupReduce, i.Combine != "", i.Name)
		assert.Equal(t, i.Group == GroupReduce, i.Start != 0, i.Name)
		assert.NotEqual(t, i.Group == GroupCompute, i.CPU == CPU{}, i.Name)
		for _, class := range []RegisterSet{RegF32, RegF64, RegI64, RegB8} {
			if i.Group != GroupCompute || i.Takes&class == 0 {
				continue
			}
			assert.NotEmpty(t, i.CUDA.Of(class), i.Name)
			vec := i.CPU.Vec != "" && class&FloatRegs != 0
			assert.True(t, i.CPU.Loops != "" || vec || i.CPU.Loop.Of(class) != "", i.Name)
		}
		if i.Combine != "" {
			assert.Equal(t, 2, InstrNamed(i.Combine).Operands, i.Name)
			assert.Equal(t, i.Takes, i.Takes&InstrNamed(i.Combine).Takes, i.Name)
		}
		assert.Equal(t, i.Group == GroupCompute || i.Group == GroupReduce || i.Name == "cast", i.MeaningOf() != nil, i.Name)
	}
	assert.Panics(t, func() { InstrNamed("nothing") })
}
