// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A loop calls one program with nearly the same parameters, and with storages whose ids grow by equal steps. So a call
// may be sent as its difference from the previous call of the same program:
//
//	delta = params inputs outputs frees
//	params          = n (2 gap, 8 bytes little endian | 2 gap + 1)*   the changed values; gap: unchanged values before
//	                                                      it; 2 gap + 1: the new value equals that of the last change
//	inputs, outputs = n (gap, zigzag difference)*
//	frees           = n zigzag difference*                all ids, each against the id at the same place before, or 0
//
// where n, gap and differences are varints.

// AppendDelta appends the difference that turns prev into c. If the calls differ in their numbers of parameters, inputs
// or outputs, it returns false and appends nothing.
func AppendDelta(b []byte, prev, c *Call) ([]byte, bool) {
	if len(prev.Params) != len(c.Params) || len(prev.Inputs) != len(c.Inputs) || len(prev.Outputs) != len(c.Outputs) {
		return b, false
	}
	b = binary.AppendUvarint(b, changes(prev.Params, c.Params))
	last, value := 0, uint64(0)
	for i, v := range c.Params {
		if v == prev.Params[i] {
			continue
		}
		gap := uint64(i-last) << 1
		if v == value {
			b = binary.AppendUvarint(b, gap|1)
		} else {
			b = binary.LittleEndian.AppendUint64(binary.AppendUvarint(b, gap), v)
		}
		last, value = i+1, v
	}
	b = appendIDs(b, prev.Inputs, c.Inputs)
	b = appendIDs(b, prev.Outputs, c.Outputs)
	b = binary.AppendUvarint(b, uint64(len(c.Frees)))
	for i, id := range c.Frees {
		b = binary.AppendVarint(b, int64(id-at(prev.Frees, i)))
	}
	return b, true
}

func changes(prev, next []uint64) (n uint64) {
	for i, v := range next {
		if v != prev[i] {
			n++
		}
	}
	return n
}

func appendIDs(b []byte, prev, next []uint64) []byte {
	b = binary.AppendUvarint(b, changes(prev, next))
	last := 0
	for i, id := range next {
		if id != prev[i] {
			b = binary.AppendUvarint(b, uint64(i-last))
			b = binary.AppendVarint(b, int64(id-prev[i]))
			last = i + 1
		}
	}
	return b
}

func at(list []uint64, i int) uint64 {
	if i < len(list) {
		return list[i]
	}
	return 0
}

// ApplyDelta turns c, which holds the lists of the previous call, into the call that delta describes. After an error c
// is invalid.
func ApplyDelta(delta []byte, c *Call) error {
	d := deltaReader{b: delta}
	value := uint64(0)
	for n, i := d.count(len(c.Params)), 0; n > 0; n-- {
		head := d.uvarint()
		if i = d.skip(i, head>>1, len(c.Params)); i < 0 {
			break
		}
		if head&1 == 0 {
			value = d.word()
		}
		c.Params[i] = value
		i++
	}
	d.ids(c.Inputs)
	d.ids(c.Outputs)
	frees := d.count(len(d.b)) // each takes at least a byte
	old := len(c.Frees)
	for i := 0; i < frees && d.err == nil; i++ {
		v := uint64(d.varint())
		if i < old {
			c.Frees[i] += v
		} else {
			c.Frees = append(c.Frees, v)
		}
	}
	if frees < old {
		c.Frees = c.Frees[:frees]
	}
	if d.err == nil && len(d.b) > 0 {
		return fmt.Errorf("delta of a call: %d bytes too many", len(d.b))
	}
	return d.err
}

// deltaReader reads the parts of a delta. After an error it returns zeros.
type deltaReader struct {
	b   []byte
	err error
}

var errDelta = errors.New("delta of a call: it ends too early, or a number in it is too large")

func (d *deltaReader) fail() {
	d.b = nil
	if d.err == nil {
		d.err = errDelta
	}
}

func (d *deltaReader) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *deltaReader) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *deltaReader) word() uint64 {
	if len(d.b) < 8 {
		d.fail()
		return 0
	}
	v := binary.LittleEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

// count reads a number of entries, at most limit.
func (d *deltaReader) count(limit int) int {
	n := d.uvarint()
	if n > uint64(limit) {
		d.fail()
		return 0
	}
	return int(n)
}

// skip returns the index of the entry after a gap that begins at entry i, or -1 if there is none.
func (d *deltaReader) skip(i int, gap uint64, limit int) int {
	if d.err == nil && gap >= uint64(limit-i) {
		d.fail()
	}
	if d.err != nil {
		return -1
	}
	return i + int(gap)
}

func (d *deltaReader) ids(list []uint64) {
	for n, i := d.count(len(list)), 0; n > 0; n-- {
		if i = d.skip(i, d.uvarint(), len(list)); i < 0 {
			return
		}
		list[i] += uint64(d.varint())
		i++
	}
}
