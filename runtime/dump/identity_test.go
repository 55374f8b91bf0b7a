// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// identityCases have stages, each the body of a graph of f32[4], with "-----" between them. A place is "stage.value":
// the places of a pair in alike hold one value, and those of a pair in unlike hold two.
var identityCases = []struct {
	name          string
	stages        string
	alike, unlike [][2]string
}{
	{"cse merges two values into the one that stays", `
  %0: f32[4] = input 0 # a.py:1
  %1: f32[4] = relu %0 # a.py:2
  %2: f32[4] = relu %0 # a.py:3
  %3: f32[4] = add %1 %2 # a.py:4
  output %3 -> s1
-----
  %0: f32[4] = input 0 # a.py:1
  %1: f32[4] = relu %0 # a.py:2
  %2: f32[4] = relu %0 # a.py:3
  %3: f32[4] = add %1 %1 # a.py:4
  output %3 -> s1
-----
  %0: f32[4] = input 0 # a.py:1
  %1: f32[4] = relu %0 # a.py:2
  %2: f32[4] = add %1 %1 # a.py:4
  output %2 -> s1
`, [][2]string{{"0.1", "2.1"}, {"0.2", "2.1"}, {"0.2", "1.1"}, {"0.3", "2.2"}, {"0.0", "2.0"}},
		[][2]string{{"0.0", "0.1"}, {"0.3", "2.1"}}},
	{"a rule replaces a value by an older one", `
  %0: f32[4] = input 0 # a.py:1
  %1: f32[4] = neg %0 # a.py:2
  %2: f32[4] = neg %1 # a.py:3
  output %2 -> s1
-----
  %0: f32[4] = input 0 # a.py:1
  output %0 -> s1
`, [][2]string{{"0.0", "1.0"}, {"0.2", "1.0"}}, [][2]string{{"0.1", "1.0"}}},
	{"a rule replaces the op of a record by another op", `
  %0: f32[4] = input 0 # a.py:1
  %1: f32[4] = neg %0 # a.py:2
  %2: f32[4] = sub %0 %1 # a.py:3
  output %2 -> s1
-----
  %0: f32[4] = input 0 # a.py:1
  %1: f32[4] = add %0 %0 # a.py:3
  output %1 -> s1
`, [][2]string{{"0.2", "1.1"}}, [][2]string{{"0.1", "1.1"}, {"0.0", "0.1"}}},
	{"a view of a view becomes a view of the base", `
  %0: f32[8] = input 0 # a.py:1
  %1: f32[4] = view %0 offset=0 # a.py:2
  %2: f32[2] = view %1 offset=0 # a.py:3
  output %2 -> s1
-----
  %0: f32[8] = input 0 # a.py:1
  %1: f32[2] = view %0 offset=0 # a.py:3
  output %1 -> s1
`, [][2]string{{"0.2", "1.1"}}, [][2]string{{"0.1", "1.0"}, {"0.0", "0.1"}}},
	{"only one of two uses gets another operand", `
  %0: f32[4] = input 0 # a.py:1
  %1: f32[4] = relu %0 # a.py:2
  %2: f32[4] = exp %1 # a.py:3
  %3: f32[4] = exp %1 # a.py:4
  output %2 -> s1
  output %3 -> s2
-----
  %0: f32[4] = input 0 # a.py:1
  %1: f32[4] = relu %0 # a.py:2
  %2: f32[4] = exp %1 # a.py:3
  %3: f32[4] = exp %0 # a.py:4
  output %2 -> s1
  output %3 -> s2
`, nil, [][2]string{{"0.0", "0.1"}}},
	{"an operator writes another buffer than before", `
  %0: f32[4] = empty # a.py:1
  %1: f32[4] = input 0 # a.py:2
  %2: f32[4] = aten.fill_.Scalar %0! 1.0 # a.py:3
  output %2 -> s1
-----
  %0: f32[4] = input 0 # a.py:2
  %1: f32[4] = aten.fill_.Scalar %0! 1.0 # a.py:3
  output %1 -> s1
`, [][2]string{{"0.2", "1.1"}, {"0.1", "1.0"}}, [][2]string{{"0.0", "0.1"}}},
	{"the order changes, and two nodes of one record have the same text", `
  %0: f32[4] = input 0 # a.py:1
  %1: f32[4] = input 1 # a.py:1
  %2: f32[4] = mul %0 %0 # a.py:2
  %3: f32[4] = mul %1 %1 # a.py:2
  %4: f32[4] = mul %2 %3 # a.py:2
  output %4 -> s1
-----
  %0: f32[4] = input 1 # a.py:1
  %1: f32[4] = mul %0 %0 # a.py:2
  %2: f32[4] = input 0 # a.py:1
  %3: f32[4] = mul %2 %2 # a.py:2
  %4: f32[4] = mul %3 %1 # a.py:2
  output %4 -> s1
`, [][2]string{{"0.2", "1.3"}, {"0.3", "1.1"}, {"0.4", "1.4"}}, [][2]string{{"0.2", "0.3"}}},
}

func TestIdentity(t *testing.T) {
	for _, test := range identityCases {
		var same identity
		for body := range strings.SplitSeq(test.stages, "-----\n") {
			g := parsed(t, "graph g read {\n"+body+"}\n")
			same.add(split(g.String()), g)
		}
		family := func(place string) int { return same.family(same.ids[place[0]-'0'][place[2]-'0']) }
		for _, pair := range test.alike {
			assert.Equal(t, family(pair[0]), family(pair[1]), "%s: %v", test.name, pair)
		}
		for _, pair := range test.unlike {
			assert.NotEqual(t, family(pair[0]), family(pair[1]), "%s: %v", test.name, pair)
		}
	}
}

// TestLinesThatAreNotNodes: the text may have blocks around nodes, and lines that are no IR at all.
func TestLinesThatAreNotNodes(t *testing.T) {
	g := parsed(t, `graph g read {
  %0: f32[4] = input 0 # a.py:1
  %1: f32[4] = relu %0 # a.py:2
  output %1 -> s1
}
`)
	plain := g.String()
	grouped := strings.Replace(plain, "  %1:", "  fuse row {\n    %1:", 1)
	grouped = strings.Replace(grouped, "  output", "  }\n  output", 1)
	var same identity
	same.add(split(plain), g)
	same.add(split(grouped), g)
	require.Equal(t, same.ids[0], same.ids[1])
	same.add(split("  %7: f32[4] = relu %8\nwhatever %1 100% %\n"), g)
}

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
