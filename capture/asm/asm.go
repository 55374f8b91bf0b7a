// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package asm assembles traces from text, for tests and for looking at cases by hand. Its traces are those that the
// recorder would write. No artefact that users run links it.
//
//	bind 17 18              storage ids of locals 0, 1, …; later locals get 1000 + local
//	dead %0 %4              storages that no tensor holds at the cut
//	frees 7 8               storages outside the trace that have died
//	cut read train.py:41    reason of the cut, and the place that caused it
//	aten::mm %0:f32[4,5] %1:f32[5,3] -> %2:f32[4,3]            # train.py:12
//	aten::add_.Tensor %2:f32[3]{3}+1! num=2.5 1
//	aten::native_dropout!rng %0 float=0.5 true -> %3:f32[4,5] %4:b8[4,5]
//
// A record is the op's full name, !rng, !effect or !dynamic, arguments, and results after "->".
//
// A tensor is %local:dtype[sizes], then strides in braces if it is not contiguous, +offset, =bytes of its storage if it
// does not fill the storage, and ! if the record writes it. %local alone has the storage's defining geometry.
//
// Other arguments are none, 7 (literal), size=7, num=2.5, num=7, num=true, num=(1+2i), scalar=f32:7, float=2.5, true,
// dtype=f32, layout=0, device, memfmt=1, str="text" and gen=0. Lists are tensors(…), opts(…), ints(…), floats(…),
// bools(…) and scalars(…). A Tensor[] return is list(…), an undefined return none.
package asm

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/trace"
)

// lists are the numbers of kinds of lists by their names.
var lists = func() map[string]uint64 {
	numbers := map[string]uint64{}
	for _, l := range catalogue.ListKinds {
		numbers[l.Name] = uint64(l.Number)
	}
	return numbers
}()

type geometry struct {
	dtype          ir.DType
	sizes, strides []int64
	offset, bytes  int64
}

type assembler struct {
	t       *trace.Trace
	names   *capture.Table
	defined []*geometry // defining geometry by local number; nil if no operand can be SAME
	codes   map[string]uint32
	dead    []int
	bind    []uint64
}

// codeLines is the number of lines of a file that have an origin. The instruction at offset 2*line is of that line.
const codeLines = 10_000

// Parse assembles a trace. It defines the ops and code objects of the text in names.
func Parse(text string, names *capture.Table) (*trace.Trace, error) {
	a := &assembler{t: &trace.Trace{}, names: names, codes: map[string]uint32{}}
	for i, line := range strings.Split(text, "\n") {
		if err := a.line(line); err != nil {
			return nil, fmt.Errorf("asm: line %d: %w", i+1, err)
		}
	}
	for i := range a.defined {
		id := uint64(1000 + i)
		if i < len(a.bind) {
			id = a.bind[i]
		}
		alive := uint8(1)
		if slices.Contains(a.dead, i) {
			alive = 0
		}
		a.t.Bindings, a.t.Alive = append(a.t.Bindings, id), append(a.t.Alive, alive)
	}
	h := fnv.New128a()
	for _, w := range a.t.Skeleton {
		h.Write(binary.LittleEndian.AppendUint64(nil, w))
	}
	sum := h.Sum(nil)
	a.t.Key = [2]uint64{binary.LittleEndian.Uint64(sum), binary.LittleEndian.Uint64(sum[8:])}
	return a.t, nil
}

func (a *assembler) line(line string) error {
	line, origin, _ := strings.Cut(line, "#")
	words := split(line)
	if len(words) == 0 {
		return nil
	}
	switch words[0] {
	case "bind", "frees":
		for _, w := range words[1:] {
			id, err := strconv.ParseUint(w, 10, 64)
			if err != nil {
				return err
			}
			if words[0] == "bind" {
				a.bind = append(a.bind, id)
			} else {
				a.t.Frees = append(a.t.Frees, id)
			}
		}
		return nil
	case "dead":
		for _, w := range words[1:] {
			n, err := strconv.Atoi(strings.TrimPrefix(w, "%"))
			if err != nil {
				return err
			}
			a.dead = append(a.dead, n)
		}
		return nil
	case "cut":
		i := slices.IndexFunc(catalogue.Cuts, func(c catalogue.Cut) bool { return c.Name == words[1] })
		if i < 0 {
			return fmt.Errorf("unknown reason %q", words[1])
		}
		a.t.Reason = uint32(i)
		if len(words) > 2 {
			a.t.ReasonOrigin = a.origin(words[2])
		}
		return nil
	}
	return a.record(words, strings.TrimSpace(origin))
}

// split cuts a text at spaces that are outside parentheses and quotes.
func split(s string) (words []string) {
	depth, quoted, from := 0, false, -1
	for i, r := range s + " " {
		switch {
		case r == '"':
			quoted = !quoted
		case r == '(' && !quoted:
			depth++
		case r == ')' && !quoted:
			depth--
		}
		if space := r == ' ' || r == '\t'; space && depth == 0 && !quoted {
			if from >= 0 {
				words = append(words, s[from:min(i, len(s))])
			}
			from = -1
			continue
		}
		if from < 0 {
			from = i
		}
	}
	return words
}

func (a *assembler) origin(s string) [2]uint32 {
	file, line, ok := strings.Cut(s, ":")
	n, err := strconv.Atoi(line)
	if !ok || err != nil || n >= codeLines {
		return [2]uint32{}
	}
	code, ok := a.codes[file]
	if !ok {
		h := fnv.New32a()
		h.Write([]byte(file))
		code = h.Sum32() | 1
		a.codes[file] = code
		lines := make([]int32, codeLines)
		for i := range lines {
			lines[i] = int32(i)
		}
		a.names.DefineCode(code, file, lines)
	}
	return [2]uint32{code, uint32(2 * n)}
}

func (a *assembler) word(w uint64)  { a.t.Skeleton = append(a.t.Skeleton, w) }
func (a *assembler) param(w uint64) { a.t.Params = append(a.t.Params, w) }

// Hash is an op's number in traces.
func Hash(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

func (a *assembler) record(words []string, origin string) error {
	name, flag, _ := strings.Cut(words[0], "!")
	flags, ok := map[string]uint64{
		"": 0, "rng": catalogue.RecordRNG, "effect": catalogue.RecordEffect, "dynamic": catalogue.RecordDynamic,
	}[flag]
	if !ok {
		return fmt.Errorf("unknown flag %q", flag)
	}
	args, results := words[1:], []string(nil)
	if i := slices.Index(words, "->"); i >= 0 {
		args, results = words[1:i], words[i+1:]
	}
	a.names.DefineOp(Hash(name), name)
	a.word(catalogue.TagRecord | flags<<8 | uint64(len(args))<<16 | uint64(len(results))<<32)
	a.word(Hash(name))
	o := a.origin(origin)
	a.t.Origins = append(a.t.Origins, o[0], o[1])
	for _, s := range args {
		if err := a.arg(s); err != nil {
			return fmt.Errorf("%q: %w", s, err)
		}
	}
	for _, s := range results {
		if err := a.result(s); err != nil {
			return fmt.Errorf("%q: %w", s, err)
		}
	}
	if name == "mycelya::resize_storage" { // the storage is u8[new] from here on
		local, _ := strconv.Atoi(strings.TrimPrefix(args[0][:strings.IndexAny(args[0]+":", ":!")], "%"))
		_, n, _ := strings.Cut(args[1], "=")
		if n == "" {
			n = args[1]
		}
		bytes, _ := strconv.ParseInt(n, 10, 64)
		a.defined[local] = &geometry{dtype: ir.U8, sizes: []int64{bytes}, bytes: bytes}
	}
	return nil
}

func (a *assembler) result(s string) error {
	if inner, ok := strings.CutPrefix(s, "list("); ok {
		items := split(strings.TrimSuffix(inner, ")"))
		a.word(catalogue.TagList | uint64(len(items))<<16)
		for _, item := range items {
			if err := a.result(item); err != nil {
				return err
			}
		}
		return nil
	}
	if s == "none" {
		a.word(catalogue.TagNone)
		return nil
	}
	return a.tensor(s)
}

func (a *assembler) arg(s string) error {
	if i := strings.IndexByte(s, '('); i > 0 && lists[s[:i]] != 0 {
		items := split(strings.TrimSuffix(s[i+1:], ")"))
		a.word(catalogue.TagList | lists[s[:i]]<<8 | uint64(len(items))<<16)
		for _, item := range items {
			if err := a.arg(item); err != nil {
				return err
			}
		}
		return nil
	}
	if strings.HasPrefix(s, "%") {
		return a.tensor(s)
	}
	if w, ok := words[s]; ok {
		a.word(w)
		return nil
	}
	key, value, ok := strings.Cut(s, "=")
	if !ok {
		n, err := strconv.ParseInt(s, 10, 64)
		a.word(catalogue.TagInt)
		a.word(uint64(n))
		return err
	}
	return a.keyed(key, value)
}

// words are the arguments that one word of the skeleton holds.
var words = map[string]uint64{
	"none": catalogue.TagNone, "true": catalogue.TagBool | 1<<8, "false": catalogue.TagBool, "device": catalogue.TagDevice,
}

// keyed writes the argument key=value.
func (a *assembler) keyed(key, value string) error {
	n, intErr := strconv.ParseUint(value, 10, 64)
	switch key {
	case "size":
		a.word(catalogue.TagSize)
		a.param(n)
		return intErr
	case "gen":
		a.word(catalogue.TagGen)
		a.param(n)
		return intErr
	case "layout":
		a.word(catalogue.TagLayout | n<<8)
		return intErr
	case "memfmt":
		a.word(catalogue.TagMemFmt | n<<8)
		return intErr
	case "float":
		f, err := strconv.ParseFloat(value, 64)
		a.word(catalogue.TagFloat)
		a.word(math.Float64bits(f))
		return err
	case "dtype":
		d, ok := ir.ParseDType(value)
		if !ok {
			return fmt.Errorf("unknown dtype")
		}
		a.word(catalogue.TagDType | uint64(d)<<8)
		return nil
	case "scalar":
		return a.scalar(value)
	case "str":
		return a.text(value)
	case "num":
		return a.number(value)
	}
	return fmt.Errorf("unknown argument")
}

// scalar writes dtype:bits.
func (a *assembler) scalar(value string) error {
	dtype, bits, _ := strings.Cut(value, ":")
	d, ok := ir.ParseDType(dtype)
	if !ok {
		return fmt.Errorf("unknown dtype")
	}
	n, err := strconv.ParseUint(bits, 0, 64)
	a.word(catalogue.TagScalar | uint64(d)<<8)
	a.param(n)
	return err
}

// text writes a quoted string, eight bytes to a word.
func (a *assembler) text(value string) error {
	text, err := strconv.Unquote(value)
	a.word(catalogue.TagStr | uint64(len(text))<<8)
	for i := 0; i < len(text); i += 8 {
		var b [8]byte
		copy(b[:], text[i:])
		a.word(binary.LittleEndian.Uint64(b[:]))
	}
	return err
}

// number writes a Python number: a bool, an integer, a float, or a complex number.
func (a *assembler) number(value string) error {
	if value == "true" || value == "false" {
		a.word(catalogue.TagNumber | catalogue.NumberBool<<8)
		a.param(map[string]uint64{"true": 1, "false": 0}[value])
		return nil
	}
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		a.word(catalogue.TagNumber | catalogue.NumberI64<<8)
		a.param(uint64(n))
		return nil
	}
	if f, err := strconv.ParseFloat(value, 64); err == nil {
		a.word(catalogue.TagNumber | catalogue.NumberF64<<8)
		a.param(math.Float64bits(f))
		return nil
	}
	c, err := strconv.ParseComplex(value, 128)
	a.word(catalogue.TagNumber | catalogue.NumberC128<<8)
	a.param(math.Float64bits(real(c)))
	a.param(math.Float64bits(imag(c)))
	return err
}

// tensor writes %local:dtype[sizes]{strides}+offset=bytes!.
func (a *assembler) tensor(s string) error {
	s, write := strings.CutSuffix(s, "!")
	name, shape, hasShape := strings.Cut(strings.TrimPrefix(s, "%"), ":")
	local, err := strconv.Atoi(name)
	if err != nil || local > len(a.defined) {
		return fmt.Errorf("no storage %q", name)
	}
	first := local == len(a.defined)
	var g geometry
	switch {
	case hasShape:
		if g, err = parseGeometry(shape); err != nil {
			return err
		}
	case first || a.defined[local] == nil:
		return fmt.Errorf("needs a geometry")
	default:
		g = *a.defined[local]
	}
	var flags uint64
	if write {
		flags |= catalogue.TensorWrite
	}
	contiguous := g.strides == nil
	if contiguous {
		flags |= catalogue.TensorContig
	}
	if g.offset == 0 {
		flags |= catalogue.TensorOff0
	}
	whole := g.bytes < 0
	switch {
	case first && whole:
		flags |= catalogue.TensorFirst | catalogue.TensorWhole
		a.defined = append(a.defined, &g)
	case first:
		flags |= catalogue.TensorFirst
		a.defined = append(a.defined, nil)
	case a.defined[local] != nil && equal(&g, a.defined[local]):
		flags |= catalogue.TensorSame
	}
	a.word(catalogue.TagTensor | uint64(g.dtype)<<8 | uint64(len(g.sizes))<<16 | flags<<24 | uint64(local)<<32)
	if flags&catalogue.TensorSame != 0 {
		return nil
	}
	a.dims(g.sizes)
	if !contiguous {
		a.dims(g.strides)
	}
	if g.offset != 0 {
		a.param(uint64(g.offset))
	}
	if first && !whole {
		a.param(uint64(g.bytes))
	}
	return nil
}

func equal(x, y *geometry) bool {
	return x.dtype == y.dtype && x.offset == y.offset && slices.Equal(x.sizes, y.sizes) &&
		slices.Equal(x.strides, y.strides)
}

// dims writes the classes of sizes or strides, 32 to a word, and the numbers themselves.
func (a *assembler) dims(values []int64) {
	words := make([]uint64, max(1, (len(values)+31)/32))
	for i, v := range values {
		words[i/32] |= uint64(min(v, 2)) << (2 * (i % 32))
	}
	for _, w := range words {
		a.word(w)
	}
	for _, v := range values {
		a.param(uint64(v))
	}
}

func parseGeometry(s string) (g geometry, err error) {
	g.bytes = -1
	open := strings.IndexByte(s, '[')
	end := strings.IndexByte(s, ']')
	if open < 0 || end < open {
		return g, fmt.Errorf("a tensor is dtype[sizes]")
	}
	var ok bool
	if g.dtype, ok = ir.ParseDType(s[:open]); !ok {
		return g, fmt.Errorf("unknown dtype %q", s[:open])
	}
	if g.sizes, err = ints(s[open+1 : end]); err != nil {
		return g, err
	}
	s = s[end+1:]
	if rest, ok := strings.CutPrefix(s, "{"); ok {
		list, after, _ := strings.Cut(rest, "}")
		if g.strides, err = ints(list); err != nil || len(g.strides) != len(g.sizes) {
			return g, fmt.Errorf("strides %q for %d sizes", list, len(g.sizes))
		}
		s = after
	}
	s, bytes, hasBytes := strings.Cut(s, "=")
	if hasBytes {
		if g.bytes, err = strconv.ParseInt(bytes, 10, 64); err != nil {
			return g, err
		}
	}
	if s != "" {
		g.offset, err = strconv.ParseInt(strings.TrimPrefix(s, "+"), 10, 64)
	}
	return g, err
}

func ints(s string) (out []int64, err error) {
	out = []int64{}
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' }) {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is no size", f)
		}
		out = append(out, n)
	}
	return out, nil
}
