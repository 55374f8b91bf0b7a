// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"fmt"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/trace"
)

// record is one decoded record. Its arguments begin at items[args] and its results at items[results]; next walks them.
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
	sub   uint8 // what bits 8 to 15 hold: see catalogue.Head; of a tensor the dtype
	flags uint8 // tensor: MYC_T_*
	rank  uint8
	n     uint32 // list: items; string: bytes; tensor: local number
	word  uint32 // index of its word in the skeleton
	param uint32 // its first parameter slot
	v     uint64 // literal, or the value in the head; string, geometry: index of its first word
}

func (it *item) has(flag uint8) bool { return it.flags&flag != 0 }

// slots is the number of parameter words of a tensor's geometry.
func (it *item) slots() uint32 {
	if it.has(catalogue.TensorSame) {
		return 0
	}
	n := uint32(it.rank)
	if !it.has(catalogue.TensorContig) {
		n += uint32(it.rank)
	}
	if !it.has(catalogue.TensorOff0) {
		n++
	}
	if it.has(catalogue.TensorFirst) && !it.has(catalogue.TensorWhole) {
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
	if d.items[i].tag == catalogue.TagList {
		return i + 1 + d.items[i].n
	}
	return i + 1
}

// decoder reads a skeleton. It checks everything before use: any words give either an error, or a decoded trace in
// which each index is in range.
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
		return nil, fmt.Errorf("%d storages, but %d entries say which are alive", len(t.Bindings), len(t.Alive))
	case len(t.Origins) != 2*len(d.out.records):
		return nil, fmt.Errorf("%d records, but %d words of origins", len(d.out.records), len(t.Origins))
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
	if head&0xff != catalogue.TagRecord || head>>48 != 0 {
		return d.errorf(at, "%#x is not the head of a record", head)
	}
	flags := uint8(head >> 8)
	if flags&^(catalogue.RecordRNG|catalogue.RecordEffect|catalogue.RecordDynamic) != 0 {
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
	kind := catalogue.ArgKindOf(uint64(it.tag))
	switch {
	case kind == nil:
		return d.errorf(at, "%#x is not an argument", w)
	case kind.Payload == catalogue.PayloadTensor:
		return d.tensor(w, at, false)
	case kind.Payload == catalogue.PayloadItems && inList:
		return d.errorf(at, "a list in a list")
	}
	if err := d.head(kind, &it); err != nil {
		return err
	}
	mask := headMasks[kind.Head]
	switch kind.Payload {
	case catalogue.PayloadParam:
		it.param, err = d.take(it.params(), at)
	case catalogue.PayloadWord:
		it.v, err = d.word()
	case catalogue.PayloadHead:
		it.v = uint64(it.sub)
	case catalogue.PayloadText:
		it.n = uint32(w >> 8)
		words := (int(it.n) + 7) / 8
		if words > len(d.t.Skeleton)-d.pos {
			return d.errorf(at, "a string of %d bytes goes past the end", it.n)
		}
		it.v = uint64(d.pos)
		d.pos += words
	case catalogue.PayloadItems:
		return d.list(&it, w, at, mask, d.arg)
	}
	if err != nil {
		return err
	}
	d.out.items = append(d.out.items, it)
	return d.only(at, w, mask)
}

// headMasks are the bits of an argument's first word that may be set, by what its head holds.
var headMasks = [...]uint64{
	catalogue.HeadNothing: 0xff,
	catalogue.HeadNumber:  0xffff,
	catalogue.HeadDType:   0xffff,
	catalogue.HeadByte:    0xffff,
	catalogue.HeadBool:    0x1ff,
	catalogue.HeadLength:  0xffffffffff,
	catalogue.HeadList:    0xffffffffffff,
}

// head checks the number in the head of an argument.
func (d *decoder) head(kind *catalogue.ArgKind, it *item) error {
	at := int(it.word)
	switch kind.Head {
	case catalogue.HeadNumber:
		if it.sub == 0 || int(it.sub) > len(catalogue.NumberKinds) {
			return d.errorf(at, "unknown kind of number %d", it.sub)
		}
	case catalogue.HeadDType:
		if !ir.DType(it.sub).Valid() {
			return d.errorf(at, "unknown dtype %d", it.sub)
		}
	case catalogue.HeadList:
		if it.sub == 0 || int(it.sub) > len(catalogue.ListKinds) {
			return d.errorf(at, "unknown kind of list %d", it.sub)
		}
	}
	return nil
}

// params is the number of parameters of an argument that is not a tensor.
func (it *item) params() uint32 {
	complexNumber := it.tag == catalogue.TagNumber && it.sub == catalogue.NumberC128
	if complexNumber || it.tag == catalogue.TagScalar && ir.DType(it.sub) == ir.C128 {
		return 2
	}
	return 1
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
	case it.tag == catalogue.TagNone:
		d.out.items = append(d.out.items, it)
		return d.only(at, w, 0xff)
	case it.tag == catalogue.TagTensor:
		return d.tensor(w, at, true)
	case it.tag == catalogue.TagList && !inList:
		return d.list(&it, w, at, 0xffffffff00ff, d.result)
	}
	return d.errorf(at, "%#x is not a result", w)
}

// tensorFlags are all flags of a tensor.
const tensorFlags = catalogue.TensorFirst | catalogue.TensorSame | catalogue.TensorContig | catalogue.TensorOff0 |
	catalogue.TensorWhole | catalogue.TensorWrite

func (d *decoder) tensor(w uint64, at int, result bool) error {
	it := item{
		tag: catalogue.TagTensor, sub: uint8(w >> 8), rank: uint8(w >> 16), flags: uint8(w >> 24), n: uint32(w >> 32),
		word: uint32(at),
	}
	first := it.has(catalogue.TensorFirst)
	switch {
	case !ir.DType(it.sub).Valid():
		return d.errorf(at, "unknown dtype %d", it.sub)
	case it.flags&^tensorFlags != 0:
		return d.errorf(at, "unknown tensor flags %#x", it.flags)
	case first && it.n != d.out.locals:
		return d.errorf(at, "storage %d is new where %d is the next number", it.n, d.out.locals)
	case !first && it.n >= d.out.locals:
		return d.errorf(at, "storage %d has not been seen", it.n)
	case first && it.has(catalogue.TensorSame):
		return d.errorf(at, "a new storage has no earlier geometry")
	case it.has(catalogue.TensorWhole) && !it.has(catalogue.TensorSame) && !it.has(catalogue.TensorOff0):
		return d.errorf(at, "a whole storage begins at offset 0")
	case result && (!first || !it.has(catalogue.TensorWhole) || it.has(catalogue.TensorWrite)):
		return d.errorf(at, "a result is a new and whole storage")
	}
	if first {
		d.out.locals++
	}
	if !it.has(catalogue.TensorSame) {
		var err error
		it.v = uint64(d.pos)
		if err = d.classes(it.rank); err != nil {
			return err
		}
		if !it.has(catalogue.TensorContig) {
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

// classesPerWord is the number of dims whose classes one word holds.
const classesPerWord = 32

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
