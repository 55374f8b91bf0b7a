// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package graphs

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mycelya/mycelya/ir"
)

func TestSame(t *testing.T) {
	for _, test := range []struct {
		d    ir.DType
		a, b string
		want bool
	}{
		{ir.F16, "\x01\x7c", "\x00\xfe", true},  // two NaNs
		{ir.F16, "\x00\x7c", "\x01\x7c", false}, // infinity and a NaN
		{ir.BF16, "\xc0\x7f", "\x81\xff", true},
		{ir.F32, "\x00\x00\xc0\x7f", "\x01\x00\x80\xff", true},
		{ir.F32, "\x00\x00\x80\x7f", "\x00\x00\x80\xff", false}, // infinities
		{ir.C64, "\x00\x00\xc0\x7f\x00\x00\x00\x00", "\x01\x00\x80\xff\x00\x00\x00\x00", true},
		{ir.I32, "\x00\x00\xc0\x7f", "\x01\x00\x80\xff", false},
		{ir.Bool, "\x01", "\x02", false},
		{ir.U8, "\x01", "\x01\x01", false},
	} {
		assert.Equal(t, test.want, Same(test.d, []byte(test.a), []byte(test.b)), "%v", test)
	}
}
