// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package graphs

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mycelya/mycelya/ir"
)

// TestValues: some values of f16 and i16 by their bits, and no value twice.
func TestValues(t *testing.T) {
	for d, want := range map[ir.DType][]string{
		ir.F16: {"\x00\x00", "\x00\x80", "\x01\x00", "\xff\x03", "\x00\x04", "\x00\x38", "\x00\x3c", "\x00\xbc", "\x00\x3e",
			"\xff\x7b", "\x00\x7c", "\x00\xfc", "\x00\x7e"},
		ir.BF16: {"\x80\x3f", "\x80\x7f", "\xc0\x7f"},
		ir.I16:  {"\x00\x00", "\x01\x00", "\xff\xff", "\xff\x7f", "\x00\x80"},
		ir.Bool: {"\x00", "\x01"},
	} {
		var got []string
		for _, v := range Values(d) {
			got = append(got, string(v))
		}
		assert.Subset(t, got, want, "%v", d)
	}
	for _, d := range Computed() {
		seen := map[string]bool{}
		for _, v := range Values(d) {
			assert.Len(t, v, d.Size())
			seen[string(v)] = true
		}
		assert.GreaterOrEqual(t, len(seen), len(Values(d))-2, "%v", d) // u8 has 255 as its last and as all bits
	}
}
