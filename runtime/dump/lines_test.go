// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestParseLine(t *testing.T) {
	for _, test := range []struct {
		text    string
		spans   []string
		comment string
	}{
		{"  %3: f32[a,b]{1,a}, %14: none = aten.sort %2! [%1, none] \"%9 # \\\" %8\" 1 # %4",
			[]string{"[%3: f32[a,b]{1,a}]", "[%14: none]", "%2", "%1"}, "# %4"},
		{"  output %6 -> s12", []string{"%6"}, ""},
		{"    %6: f32[] = param 1", []string{"[%6: f32[]]"}, ""},
		{"  fuse row {", nil, ""},
		{"  100% of %", nil, ""},
		{"", nil, ""},
	} {
		l := parseLine(test.text)
		var got []string
		for _, sp := range l.spans {
			if s := test.text[sp.lo:sp.hi]; sp.binder {
				got = append(got, "["+s+"]")
			} else {
				got = append(got, s)
			}
		}
		assert.Equal(t, test.spans, got)
		assert.Equal(t, test.comment, test.text[l.comment:])
	}
}
