// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// zeroAllowed are the columns in which 0 is a fact.
var zeroAllowed = []string{"Signed", "Rounds", "Largest"}

// walk checks a table: no cell is missing, and the numbers count up from the first one.
func walk(t *testing.T, table any, consecutive bool) {
	rows := reflect.ValueOf(table)
	for i := range rows.Len() {
		row := rows.Index(i)
		for c := range row.NumField() {
			column := row.Type().Field(c).Name
			missing := row.Field(c).IsZero() && !slices.Contains(zeroAllowed, column)
			if column == "Number" && i == 0 {
				missing = false
			}
			require.False(t, missing, "%s: row %d has no %s", rows.Type(), i, column)
		}
		if number := row.FieldByName("Number"); consecutive && i > 0 {
			before := rows.Index(i - 1).FieldByName("Number")
			require.Equal(t, before.Convert(reflect.TypeFor[int]()).Int()+1, number.Convert(reflect.TypeFor[int]()).Int(),
				"%s: the number of row %d", rows.Type(), i)
		}
	}
}

// different checks that no two rows share a cell of a column.
func different[Row any](t *testing.T, rows []Row, column func(Row) string) {
	seen := map[string]bool{None: false}
	for _, r := range rows {
		name := column(r)
		require.False(t, seen[name], "%T: %q stands in two rows", r, name)
		seen[name] = name != None
	}
}

func TestTablesHaveNoMissingCell(t *testing.T) {
	for _, table := range []any{DTypes, Registers, ArgKinds, NumberKinds, ListKinds, ErrorKinds, Cuts, Steps} {
		walk(t, table, true)
	}
	for _, table := range []any{RecordFlags, TensorFlags, DimClasses, KernelAccess} {
		walk(t, table, false)
	}
}

func TestFlagsAreBits(t *testing.T) {
	for _, table := range [][]Flag{RecordFlags, TensorFlags, KernelAccess} {
		for i, f := range table {
			require.EqualValues(t, 1<<i, f.Number, f.Word)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	for _, column := range []func(DType) string{
		func(d DType) string { return d.Word }, func(d DType) string { return d.Go }, func(d DType) string { return d.Name },
		func(d DType) string { return d.Torch }, func(d DType) string { return d.Memory },
	} {
		different(t, DTypes, column)
	}
	for _, column := range []func(ArgKind) string{
		func(a ArgKind) string { return a.Word }, func(a ArgKind) string { return a.Tag },
		func(a ArgKind) string { return a.IR }, func(a ArgKind) string { return a.Text },
		func(a ArgKind) string { return a.Prefix },
	} {
		different(t, ArgKinds, column)
	}
	different(t, ListKinds, func(l ListKind) string { return l.Name })
	different(t, ErrorKinds, func(e ErrorKind) string { return e.Word })
	different(t, Cuts, func(c Cut) string { return c.Name })
	for _, c := range Cuts {
		require.Equal(t, strings.ToLower(c.Word), c.Name)
	}
}

func TestDTypesAgree(t *testing.T) {
	byName := map[string]DType{}
	for _, d := range DTypes {
		byName[d.Name] = d
	}
	for _, d := range DTypes {
		if d.Pair == None {
			require.NotContains(t, []Class{ClassFloat, ClassComplex}, d.Class, d.Name)
		} else {
			pair := byName[d.Pair]
			require.Equal(t, ClassFloat+ClassComplex, d.Class+pair.Class, d.Name)
			require.True(t, byName[pair.Pair].Pair == d.Pair, d.Name)
		}
		inKernels := d.Register != None
		require.Equal(t, inKernels, d.RegisterOf() != 0, "%s: class %q of registers", d.Name, d.Register)
		require.Equal(t, inKernels, d.Memory != None, d.Name)
		require.Equal(t, inKernels, d.Largest != 0, d.Name)
		require.False(t, d.Rounds && !inKernels, d.Name)
		require.False(t, d.Signed && d.Class != ClassInt, d.Name)
	}
	for _, n := range NumberKinds {
		d := byName[n.DType]
		require.Equal(t, n.Word, d.Word)
		require.Equal(t, max(1, d.Size/8), n.Params, n.Word)
	}
}

func TestArgumentsAgree(t *testing.T) {
	require.EqualValues(t, RecordTag+1, ArgKinds[0].Number)
	words := map[string]bool{}
	for i := range ArgKinds {
		a := &ArgKinds[i]
		words[a.Word] = true
		require.Same(t, a, ArgKindOf(uint64(a.Number)))
		require.Equal(t, a.Head == HeadTensor, a.Payload == PayloadTensor, a.Word)
		require.Equal(t, a.Head == HeadList, a.Payload == PayloadItems, a.Word)
		require.Equal(t, a.Head == HeadLength, a.Payload == PayloadText, a.Word)
		if a.Payload == PayloadHead {
			require.Contains(t, []Head{HeadDType, HeadBool, HeadByte}, a.Head, a.Word)
		}
	}
	require.Nil(t, ArgKindOf(0))
	require.Nil(t, ArgKindOf(RecordTag))
	require.Nil(t, ArgKindOf(NumTags))
	for _, l := range ListKinds {
		for _, item := range l.Items {
			require.True(t, words[item], "list of %s: item %q", l.Name, item)
		}
	}
}

func TestLookupsRefuseUnknownNumbers(t *testing.T) {
	require.Nil(t, DTypeOf(0))
	require.Nil(t, DTypeOf(NumDTypes))
	require.Equal(t, "u64", DTypeOf(NumDTypes-1).Name)
	require.Equal(t, "none", CutOf(NumCuts).Name)
	require.Equal(t, "comm", CutOf(NumCuts-1).Name)
}
