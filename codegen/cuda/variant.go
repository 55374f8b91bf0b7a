// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"fmt"
	"slices"
	"strings"
)

// Template is how an index space is laid out over threads.
type Template uint8

const (
	Pointwise  Template = iota + 1 // a thread has a few vectors of points
	Transpose                      // a block has a square of two dims, which it turns in shared memory
	Persistent                     // a group of threads has a row, and all of it in registers
	Looped                         // a block has a row, and reads it in each pass
	Column                         // a thread has a row with threads of other warps; neighbours have neighbouring rows
)

var templateNames = [...]string{
	Pointwise: "pointwise", Transpose: "transpose", Persistent: "persistent", Looped: "looped", Column: "column",
}

func (t Template) String() string { return templateNames[t] }

// Variant is the part of an instance that is in the text. There are few variants, so a new shape rarely needs a new
// text. Fields are exported to be shown and compared; only Launches makes a Variant.
type Variant struct {
	Template Template
	Vector   int  // elements in one access, of ways that have stride 1
	Wide     bool // 64-bit indices
	Table    bool // structs of arguments lie in memory, one per instance
	Split    bool // rows are cut, and a pass is a launch of its own
	Walks    []Pattern
}

// Pattern is a walk, after the dims that could be were merged: by way, a letter per dim. '0': it doesn't run along it,
// '1': its stride is 1, 's': its stride is an argument. "-": it isn't walked. Only the last two dims, which decide on
// accesses, have '1'.
type Pattern struct {
	Rank int
	Ways []string
}

func (v *Variant) equal(w *Variant) bool {
	same := func(a, b Pattern) bool { return a.Rank == b.Rank && slices.Equal(a.Ways, b.Ways) }
	return v.Template == w.Template && v.Vector == w.Vector && v.Wide == w.Wide && v.Table == w.Table &&
		v.Split == w.Split && slices.EqualFunc(v.Walks, w.Walks, same)
}

// String is a variant's identity, on a line.
func (v *Variant) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s vector %d", v.Template, v.Vector)
	for _, flag := range []struct {
		on   bool
		name string
	}{{v.Wide, "wide"}, {v.Table, "table"}, {v.Split, "split"}} {
		if flag.on {
			b.WriteString(" " + flag.name)
		}
	}
	for _, p := range v.Walks {
		fmt.Fprintf(&b, " [%d:", p.Rank)
		for _, w := range p.Ways {
			b.WriteString(" " + w)
		}
		b.WriteByte(']')
	}
	return b.String()
}

// pattern is that of a walk whose ways, as far as they are used, differ in what is in the text.
func pattern(w *walk, used []bool) Pattern {
	p := Pattern{Rank: w.rank(), Ways: make([]string, len(used))}
	for i, is := range used {
		if !is {
			p.Ways[i] = "-"
			continue
		}
		letters := make([]byte, w.rank())
		for d, s := range w.strides[i] {
			switch {
			case s == 0:
				letters[d] = '0'
			case s == 1 && d >= w.rank()-2:
				letters[d] = '1'
			default:
				letters[d] = 's'
			}
		}
		p.Ways[i] = string(letters)
	}
	return p
}

// inner is the letter of a way's last dim, '0' if there is none.
func (p *Pattern) inner(way int) byte {
	if s := p.Ways[way]; p.Rank > 0 && s != "-" {
		return s[p.Rank-1]
	}
	return '0'
}

// crossed says whether a way of a transposed map runs along the last dim but one.
func (p *Pattern) crossed(way int) bool {
	s := p.Ways[way]
	return s != "-" && s[p.Rank-2] == '1' && s[p.Rank-1] == 's'
}
