// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"fmt"
	"slices"
	"strings"
)

// Template is a way to distribute an index space over threads.
type Template uint8

const (
	Pointwise  Template = iota + 1 // a thread computes a few vectors of points
	Transpose                      // a block computes a square of two dims, and transposes operands in shared memory
	Persistent                     // a group of threads reduces a row that it keeps in registers
	Looped                         // a block reduces a row, and reads it again in each pass
	Column                         // threads of several warps share a row; neighbouring threads have neighbouring rows
)

var templateNames = [...]string{
	Pointwise: "pointwise", Transpose: "transpose", Persistent: "persistent", Looped: "looped", Column: "column",
}

func (t Template) String() string { return templateNames[t] }

// Variant is the part of an instance on which the text depends. There are few variants, so a new shape rarely needs a
// new text. Fields are exported to be shown and compared; only Launches makes a Variant.
type Variant struct {
	Template Template
	Vector   int  // elements of one access along stride 1
	Wide     bool // 64-bit indices
	Table    bool // the structs of arguments lie in memory, one per instance
	Split    bool // rows are split into parts, and each pass is one launch
	Apart    bool // what is only read shares no buffer with what is written
	Walks    []Pattern
}

// Pattern is the form of a walk after dims were merged. Each way has a letter per dim: '0' for stride 0, '1' for stride
// 1, 's' for a stride that is an argument. A way that the walk does not visit is "-". Only the last two dims have '1',
// because only they decide on accesses.
type Pattern struct {
	Rank int
	Ways []string
}

// equal reports whether two instances may share a launch. One for which Apart holds may be launched as if it did not.
func (v *Variant) equal(w *Variant) bool {
	same := func(a, b Pattern) bool { return a.Rank == b.Rank && slices.Equal(a.Ways, b.Ways) }
	return v.Template == w.Template && v.Vector == w.Vector && v.Wide == w.Wide && v.Table == w.Table &&
		v.Split == w.Split && slices.EqualFunc(v.Walks, w.Walks, same)
}

// String is a variant's identity in one line.
func (v *Variant) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s vector %d", v.Template, v.Vector)
	for _, flag := range []struct {
		on   bool
		name string
	}{{v.Wide, "wide"}, {v.Table, "table"}, {v.Split, "split"}, {v.Apart, "apart"}} {
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

// pattern returns the pattern of a walk, with "-" for ways that are not used. An operand of a TAKE has no stride 1.
func (c *code) pattern(w *walk, used []bool) Pattern {
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
			case s == 1 && d >= w.rank()-2 && !c.taken(i):
				letters[d] = '1'
			default:
				letters[d] = 's'
			}
		}
		p.Ways[i] = string(letters)
	}
	return p
}

// inner returns the letter of a way's last dim, or '0' if there is none.
func (p *Pattern) inner(way int) byte {
	if s := p.Ways[way]; p.Rank > 0 && s != "-" {
		return s[p.Rank-1]
	}
	return '0'
}

// crossed reports whether a way of a Transpose map is contiguous along the last dim but one.
func (p *Pattern) crossed(way int) bool {
	s := p.Ways[way]
	return s != "-" && s[p.Rank-2] == '1' && s[p.Rank-1] == 's'
}
