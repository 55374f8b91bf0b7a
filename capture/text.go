// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/trace"
)

// reader walks the records of a trace and describes them in text. It knows each storage's defining geometry and the
// record that wrote it last.
type reader struct {
	t      *trace.Trace
	d      *decoded
	names  *Table
	at     int      // number of the current record
	shapes []window // defining geometry by local number, with the storages of the current record
	makers []int    // by local number: the last earlier record that made or wrote the storage, or -1
}

// window is a geometry in numbers.
type window struct {
	dtype          ir.DType
	sizes, strides []uint64 // strides nil: contiguous
	offset         uint64
}

func (w window) String() string {
	s := w.dtype.String() + "[" + joined(w.sizes) + "]"
	if w.strides != nil {
		s += "{" + joined(w.strides) + "}"
	}
	if w.offset != 0 {
		s += fmt.Sprintf("+%d", w.offset)
	}
	return s
}

func joined(values []uint64) string {
	text := make([]string, len(values))
	for i, v := range values {
		text[i] = strconv.FormatUint(v, 10)
	}
	return strings.Join(text, ",")
}

// read makes a reader of a trace whose current record is number n.
func read(t *trace.Trace, names *Table, n int) (*reader, error) {
	d, err := decode(t)
	if err != nil {
		return nil, err
	}
	r := &reader{t: t, d: d, names: names}
	r.enter()
	for r.at < n {
		r.pass()
	}
	return r, nil
}

// enter adds the storages that the current record sees first.
func (r *reader) enter() {
	if r.over() {
		return
	}
	record := &r.d.records[r.at]
	for i := record.args; i < record.end; i++ {
		if it := &r.d.items[i]; it.tag == catalogue.TagTensor && it.has(catalogue.TensorFirst) {
			r.shapes, r.makers = append(r.shapes, r.window(it)), append(r.makers, -1)
		}
	}
}

func (r *reader) over() bool { return r.at >= len(r.d.records) }

// pass makes the next record the current one.
func (r *reader) pass() {
	record := &r.d.records[r.at]
	for i := record.args; i < record.end; i++ {
		if it := &r.d.items[i]; it.tag == catalogue.TagTensor && (it.has(catalogue.TensorWrite) || i >= record.results) {
			r.makers[it.n] = r.at
		}
	}
	if name, _ := r.names.Op(record.op); name == "mycelya::resize_storage" && record.nargs == 2 {
		if to := &r.d.items[record.args]; to.tag == catalogue.TagTensor {
			size := &r.d.items[r.d.next(record.args)]
			bytes := size.v
			if size.tag == catalogue.TagSize {
				bytes = r.t.Params[size.param]
			}
			r.shapes[to.n] = window{dtype: ir.U8, sizes: []uint64{bytes}}
		}
	}
	r.at++
	r.enter()
}

// window is the geometry of a tensor argument or result.
func (r *reader) window(it *item) window {
	if it.has(catalogue.TensorSame) {
		return r.shapes[it.n]
	}
	p := r.t.Params[it.param : it.param+it.slots()]
	w := window{dtype: ir.DType(it.sub), sizes: p[:it.rank]}
	p = p[it.rank:]
	if !it.has(catalogue.TensorContig) {
		w.strides, p = p[:it.rank], p[it.rank:]
	}
	if !it.has(catalogue.TensorOff0) {
		w.offset = p[0]
	}
	return w
}

// place is the place that made record n: "train.py:41", or "an unknown place".
func (r *reader) place(n int) string {
	if s := r.names.Origin(r.t.Origins[2*n], r.t.Origins[2*n+1]).Label(); s != "" {
		return s
	}
	return "an unknown place"
}

// op is the name of record n's op.
func (r *reader) op(n int) string {
	if name, ok := r.names.Op(r.d.records[n].op); ok {
		return name
	}
	return fmt.Sprintf("op %#x", r.d.records[n].op)
}

// record is the text of the current record: "aten::add.Tensor(f32[3,4], f32[4], 1)".
func (r *reader) record() string {
	record := &r.d.records[r.at]
	args := make([]string, record.nargs)
	i := record.args
	for n := range args {
		args[n] = r.item(i)
		i = r.d.next(i)
	}
	return r.op(r.at) + "(" + strings.Join(args, ", ") + ")"
}

// item is the text of the argument or result at items[i].
func (r *reader) item(i uint32) string {
	const most = 4 // of a list
	it := &r.d.items[i]
	switch it.tag {
	case catalogue.TagNone:
		return "none"
	case catalogue.TagTensor:
		return r.window(it).String()
	case catalogue.TagNumber:
		return r.number(it)
	case catalogue.TagScalar:
		return ir.DType(it.sub).String() + " scalar"
	case catalogue.TagSize:
		return strconv.FormatInt(int64(r.t.Params[it.param]), 10)
	case catalogue.TagInt:
		return strconv.FormatInt(int64(it.v), 10)
	case catalogue.TagFloat:
		return float(it.v)
	case catalogue.TagBool:
		return strconv.FormatBool(it.sub != 0)
	case catalogue.TagDType:
		return ir.DType(it.sub).String()
	case catalogue.TagLayout:
		return fmt.Sprintf("layout %d", it.sub)
	case catalogue.TagDevice:
		return "device"
	case catalogue.TagMemFmt:
		return fmt.Sprintf("memory format %d", it.sub)
	case catalogue.TagStr:
		return strconv.Quote(text(r.t, it))
	case catalogue.TagGen:
		return "generator"
	}
	items := make([]string, 0, most+1)
	for n := range it.n {
		if n == most {
			items = append(items, fmt.Sprintf("… %d more", it.n-most))
			break
		}
		items = append(items, r.item(i+1+n))
	}
	return "[" + strings.Join(items, ", ") + "]"
}

func (r *reader) number(it *item) string {
	v := r.t.Params[it.param]
	switch it.sub {
	case catalogue.NumberF64:
		return float(v)
	case catalogue.NumberBool:
		return strconv.FormatBool(v != 0)
	case catalogue.NumberC128:
		return fmt.Sprintf("(%s, %s)", float(v), float(r.t.Params[it.param+1]))
	}
	return strconv.FormatInt(int64(v), 10)
}

func float(bits uint64) string {
	s := strconv.FormatFloat(math.Float64frombits(bits), 'g', -1, 64)
	if !strings.ContainsAny(s, ".eIN") {
		s += ".0"
	}
	return s
}
