// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"fmt"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/trace"
)

// record is one decoded record. Its arguments begin at items[args], its results at items[results]; walk them with next.
type record struct {
	op      uint64 // hash of the op's full name
	word    uint32 // index of its head in the skeleton
	args    uint32
	results uint32
	end     uint32 // one past its last item
	nargs   uint16
	nres    uint16
	flags   uint8
}

// item is one decoded argument or result. A list is followed by its n items, which are never lists.
type item struct {
	tag   uint8
	sub   uint8 // kind of number or list; dtype of a tensor or scalar; value of a bool, dtype, layout, memory format
	flags uint8 // tensor: MYC_T_*
	rank  uint8
	n     uint32 // list: items; string: bytes; tensor: local number
	word  uint32 // index of its word in the skeleton
	param uint32 // its first parameter slot
	v     uint64 // literal; string, geometry: index of its first word
}

func (it *item) has(flag uint8) bool { return it.flags&flag != 0 }

// slots is the number of parameter words of a tensor's geometry.
func (it *item) slots() uint32 {
	if it.has(tSame) {
		return 0
	}
	n := uint32(it.rank)
	if !it.has(tContig) {
		n += uint32(it.rank)
	}
	if !it.has(tOff0) {
		n++
	}
	if it.has(tFirst) && !it.has(tWhole) {
		n++
	}
	return n
}

type decoded struct {
	records []record
	items   []item
	locals  uint32 // storages seen
}

// next is the index of the argument or result after items[i].
func (d *decoded) next(i uint32) uint32 {
	if d.items[i].tag == wList {
		return i + 1 + d.items[i].n
	}
	return i + 1
}

// decoder reads a skeleton. Everything is checked before it is used: any words give an error or a decoded trace in which
// each index is in range.
type decoder struct {
	t     *trace.Trace
	pos   int    // next skeleton word
	param uint32 // next parameter slot
	out   decoded
}

func decode(t *trace.Trace) (*decoded, error) {
	if len(t.Skeleton) > 1<<28 || len(t.Params) > 1<<28 || len(t.Bindings) > 1<<28 {
		return nil, fmt.Errorf("the trace is too large: %d skeleton words, %d parameters, %d storages",
			len(t.Skeleton), len(t.Params), len(t.Bindings))
	}
	d := &decoder{t: t}
	d.out.items = make([]item, 0, len(t.Skeleton)/2+1)
	d.out.records = make([]record, 0, len(t.Origins)/2)
	for d.pos < len(t.Skeleton) {
		if err := d.record(); err != nil {
			return nil, fmt.Errorf("record %d: %w", len(d.out.records), err)
		}
	}
	switch {
	case int(d.param) != len(t.Params):
		return nil, fmt.Errorf("the skeleton has %d parameters, the trace %d", d.param, len(t.Params))
	case int(d.out.locals) != len(t.Bindings):
		return nil, fmt.Errorf("the skeleton has %d storages, the trace binds %d", d.out.locals, len(t.Bindings))
	case len(t.Alive) != len(t.Bindings):
		return nil, fmt.Errorf("%d storages have %d marks of life", len(t.Bindings), len(t.Alive))
	case len(t.Origins) != 2*len(d.out.records):
		return nil, fmt.Errorf("%d records have %d words of origins", len(d.out.records), len(t.Origins))
	}
	return &d.out, nil
}

func (d *decoder) errorf(word int, format string, args ...any) error {
	return fmt.Errorf("word %d: %s", word, fmt.Sprintf(format, args...))
}

func (d *decoder) word() (uint64, error) {
	if d.pos >= len(d.t.Skeleton) {
		return 0, d.errorf(d.pos, "the skeleton ends in the middle of a record")
	}
	w := d.t.Skeleton[d.pos]
	d.pos++
	return w, nil
}

// take reserves n parameter slots.
func (d *decoder) take(n uint32, word int) (uint32, error) {
	if int(n) > len(d.t.Params)-int(d.param) {
		return 0, d.errorf(word, "needs parameter %d of %d", d.param+n-1, len(d.t.Params))
	}
	slot := d.param
	d.param += n
	return slot, nil
}

func (d *decoder) record() error {
	at := d.pos
	head, err := d.word()
	if err != nil {
		return err
	}
	if head&0xff != wRecord || head>>48 != 0 {
		return d.errorf(at, "%#x is not the head of a record", head)
	}
	flags := uint8(head >> 8)
	if flags&^(rRNG|rEffect|rDynamic) != 0 {
		return d.errorf(at, "unknown record flags %#x", flags)
	}
	op, err := d.word()
	if err != nil {
		return err
	}
	r := record{op: op, word: uint32(at), flags: flags, nargs: uint16(head >> 16), nres: uint16(head >> 32)}
	r.args = uint32(len(d.out.items))
	for range r.nargs {
		if err := d.arg(false); err != nil {
			return err
		}
	}
	r.results = uint32(len(d.out.items))
	for range r.nres {
		if err := d.result(false); err != nil {
			return err
		}
	}
	r.end = uint32(len(d.out.items))
	d.out.records = append(d.out.records, r)
	return nil
}

// only refuses a word with bits set outside of mask.
func (d *decoder) only(at int, w, mask uint64) error {
	if w&^mask != 0 {
		return d.errorf(at, "%#x has bits set that its tag does not use", w)
	}
	return nil
}

func (d *decoder) arg(inList bool) error {
	at := d.pos
	w, err := d.word()
	if err != nil {
		return err
	}
	it := item{tag: uint8(w), sub: uint8(w >> 8), word: uint32(at)}
	mask := uint64(0xff)
	switch it.tag {
	case wNone:
	case wTensor:
		return d.tensor(w, at, false)
	case wNumber:
		mask = 0xffff
		if it.sub < nF64 || it.sub > nC128 {
			return d.errorf(at, "unknown kind of number %d", it.sub)
		}
		n := uint32(1)
		if it.sub == nC128 {
			n = 2
		}
		it.param, err = d.take(n, at)
	case wScalar:
		mask = 0xffff
		if !ir.DType(it.sub).Valid() {
			return d.errorf(at, "unknown dtype %d", it.sub)
		}
		n := uint32(1)
		if ir.DType(it.sub) == ir.C128 {
			n = 2
		}
		it.param, err = d.take(n, at)
	case wSize, wGen:
		it.param, err = d.take(1, at)
	case wInt, wFloat:
		it.v, err = d.word()
	case wBool:
		mask = 0x1ff
	case wDType:
		mask = 0xffff
		if !ir.DType(it.sub).Valid() {
			return d.errorf(at, "unknown dtype %d", it.sub)
		}
	case wLayout, wDevice, wMemFmt:
		mask = 0xffff
	case wStr:
		mask = 0xffffffffff
		it.n = uint32(w >> 8)
		words := (int(it.n) + 7) / 8
		if words > len(d.t.Skeleton)-d.pos {
			return d.errorf(at, "a string of %d bytes goes past the end", it.n)
		}
		it.v = uint64(d.pos)
		d.pos += words
	case wList:
		if inList {
			return d.errorf(at, "a list in a list")
		}
		mask = 0xffffffffffff
		if it.sub < lTensors || it.sub > lScalars {
			return d.errorf(at, "unknown kind of list %d", it.sub)
		}
		return d.list(&it, w, at, mask, d.arg)
	default:
		return d.errorf(at, "%#x is not an argument", w)
	}
	if err != nil {
		return err
	}
	d.out.items = append(d.out.items, it)
	return d.only(at, w, mask)
}

func (d *decoder) list(it *item, w uint64, at int, mask uint64, each func(bool) error) error {
	if err := d.only(at, w, mask); err != nil {
		return err
	}
	it.n = uint32(w >> 16)
	if int(it.n) > len(d.t.Skeleton)-d.pos { // each item has a word at least
		return d.errorf(at, "a list of %d items goes past the end", it.n)
	}
	d.out.items = append(d.out.items, *it)
	for range it.n {
		if err := each(true); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) result(inList bool) error {
	at := d.pos
	w, err := d.word()
	if err != nil {
		return err
	}
	it := item{tag: uint8(w), word: uint32(at)}
	switch {
	case it.tag == wNone:
		d.out.items = append(d.out.items, it)
		return d.only(at, w, 0xff)
	case it.tag == wTensor:
		return d.tensor(w, at, true)
	case it.tag == wList && !inList:
		return d.list(&it, w, at, 0xffffffff00ff, d.result)
	}
	return d.errorf(at, "%#x is not a result", w)
}

func (d *decoder) tensor(w uint64, at int, result bool) error {
	it := item{tag: wTensor, sub: uint8(w >> 8), rank: uint8(w >> 16), flags: uint8(w >> 24), n: uint32(w >> 32), word: uint32(at)}
	first := it.has(tFirst)
	switch {
	case !ir.DType(it.sub).Valid():
		return d.errorf(at, "unknown dtype %d", it.sub)
	case it.flags&^uint8(tFirst|tSame|tContig|tOff0|tWhole|tWrite) != 0:
		return d.errorf(at, "unknown tensor flags %#x", it.flags)
	case first && it.n != d.out.locals:
		return d.errorf(at, "storage %d is new where %d is the next number", it.n, d.out.locals)
	case !first && it.n >= d.out.locals:
		return d.errorf(at, "storage %d has not been seen", it.n)
	case first && it.has(tSame):
		return d.errorf(at, "a new storage has no earlier geometry")
	case it.has(tWhole) && !it.has(tSame) && !it.has(tOff0):
		return d.errorf(at, "a whole storage begins at offset 0")
	case result && (!first || !it.has(tWhole) || it.has(tWrite)):
		return d.errorf(at, "a result is a new and whole storage")
	}
	if first {
		d.out.locals++
	}
	if !it.has(tSame) {
		var err error
		it.v = uint64(d.pos)
		if err = d.classes(it.rank); err != nil {
			return err
		}
		if !it.has(tContig) {
			if err = d.classes(it.rank); err != nil {
				return err
			}
		}
		if it.param, err = d.take(it.slots(), at); err != nil {
			return err
		}
	}
	d.out.items = append(d.out.items, it)
	return nil
}

// classes passes the words with the classes of rank dims.
func (d *decoder) classes(rank uint8) error {
	for left := int(rank); ; left -= classesPerWord {
		at := d.pos
		w, err := d.word()
		switch {
		case err != nil:
			return err
		case w&(w>>1)&0x5555555555555555 != 0:
			return d.errorf(at, "%#x has a dim of unknown class", w)
		case left <= classesPerWord && w>>(2*left) != 0:
			return d.errorf(at, "%#x has more than %d dims", w, left)
		case left <= classesPerWord:
			return nil
		}
	}
}

// classWords is the number of words that the classes of rank dims take.
func classWords(rank uint8) int { return max(1, (int(rank)+classesPerWord-1)/classesPerWord) }
