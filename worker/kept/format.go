// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package kept is what a worker keeps on its disk: tensors under names, and checkpoints of sessions. A file has the
// safetensors format, so other programs can read it:
//
//	file   = length header data
//	length = 8 bytes, little-endian: of the header
//	header = a JSON object: name of a tensor -> {"dtype", "shape", "data_offsets": [begin, end]}, and under
//	         "__metadata__" an object of strings
//	data   = the elements of all tensors in row-major order, without gaps
//
// The tensors have the names 0, 1, …, in the order of the data. The package never interprets a tensor's elements or the
// metadata, and never trusts a length that it has read.
package kept

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"strconv"

	"github.com/mycelya/mycelya/catalogue"
)

const (
	// MaxHeader bounds a header in bytes: as much as the metadata of a frame.
	MaxHeader = 64 << 20
	// maxBytes bounds the bytes of one tensor: more than any device has.
	maxBytes = 1 << 48

	metadata = "__metadata__"
)

// ErrFormat means that a file is not one that Write has written.
var ErrFormat = errors.New("kept: the file is damaged")

// Tensor describes a tensor of a file.
type Tensor struct {
	DType uint32 // MYC_* of csrc/abi/words.h
	Sizes []int64
	begin uint64 // in the data
}

// Bytes is the number of bytes of a tensor's elements.
func (t *Tensor) Bytes() (uint64, error) {
	n := uint64(catalogue.DTypeSize(uint64(t.DType)))
	if n == 0 {
		return 0, fmt.Errorf("there is no dtype %d", t.DType)
	}
	for _, size := range t.Sizes {
		hi, lo := bits.Mul64(n, uint64(size))
		if size < 0 || hi != 0 || lo > maxBytes {
			return 0, fmt.Errorf("a tensor of %v elements is too large", t.Sizes)
		}
		n = lo
	}
	return n, nil
}

// entry is a tensor in the header.
type entry struct {
	DType   string    `json:"dtype"`
	Shape   []int64   `json:"shape"`
	Offsets [2]uint64 `json:"data_offsets"`
}

// The format's names of dtypes are our words, except for these.
var formats = map[string]string{"F8E4M3FN": "F8_E4M3", "F8E5M2": "F8_E5M2"}

// formatOf is the name of a dtype in the format.
func formatOf(dtype uint32) string {
	word := catalogue.DTypeOf(uint64(dtype)).Word
	return cmp.Or(formats[word], word)
}

// numbers are the dtypes by these names.
var numbers = func() map[string]uint32 {
	out := map[string]uint32{}
	for n := uint32(1); n < catalogue.NumDTypes; n++ {
		out[formatOf(n)] = n
	}
	return out
}()

// DTypeOf is the number of a dtype by its name in the format; 0: this version has no such dtype.
func DTypeOf(name string) uint32 { return numbers[name] }

// Write writes a file. put writes the elements of a tensor. It returns the number of bytes of the file.
func Write(f io.Writer, meta map[string]string, tensors []Tensor, put func(i int, to io.Writer) error) (uint64, error) {
	header := map[string]any{metadata: meta}
	at := uint64(0)
	for i := range tensors {
		n, err := tensors[i].Bytes()
		if err != nil {
			return 0, err
		}
		shape := append([]int64{}, tensors[i].Sizes...)
		header[strconv.Itoa(i)] = entry{formatOf(tensors[i].DType), shape, [2]uint64{at, at + n}}
		at += n
	}
	text, err := json.Marshal(header)
	switch {
	case err != nil:
		return 0, err
	case len(text) > MaxHeader:
		return 0, fmt.Errorf("the description of %d tensors takes %d bytes; at most %d are allowed", len(tensors),
			len(text), MaxHeader)
	}
	for len(text)%8 != 0 { // so that the data is aligned
		text = append(text, ' ')
	}
	if _, err := f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)); err != nil {
		return 0, err
	}
	for i := range tensors {
		if err := put(i, f); err != nil {
			return 0, err
		}
	}
	return 8 + uint64(len(text)) + at, nil
}

// File is an open file.
type File struct {
	Meta    map[string]string
	Tensors []Tensor

	f    io.ReaderAt
	data int64 // where it begins
	end  io.Closer
}

// Read reads the header of a file, which it owns from then on. An error closes the file.
func Read(f *os.File) (*File, error) {
	info, err := f.Stat()
	var out *File
	if err == nil {
		out, err = read(f, info.Size())
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	out.end = f
	return out, nil
}

func read(f io.ReaderAt, size int64) (*File, error) {
	r := bufio.NewReader(io.NewSectionReader(f, 0, size))
	var length uint64
	if err := binary.Read(r, binary.LittleEndian, &length); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if length > MaxHeader || int64(length) > size-8 {
		return nil, fmt.Errorf("%w: a header of %d bytes in a file of %d", ErrFormat, length, size)
	}
	var header map[string]json.RawMessage
	if err := json.NewDecoder(io.LimitReader(r, int64(length))).Decode(&header); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	out := &File{f: f, data: 8 + int64(length)}
	if text, ok := header[metadata]; ok {
		if err := json.Unmarshal(text, &out.Meta); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
		delete(header, metadata)
	}
	at := uint64(0)
	for i := range len(header) {
		t, end, err := tensor(header[strconv.Itoa(i)], at)
		if err != nil {
			return nil, fmt.Errorf("%w: tensor %d: %w", ErrFormat, i, err)
		}
		out.Tensors = append(out.Tensors, t)
		at = end
	}
	if at != uint64(size-out.data) {
		return nil, fmt.Errorf("%w: %d bytes of data instead of %d", ErrFormat, size-out.data, at)
	}
	return out, nil
}

// tensor reads an entry, whose data must begin at a place, and returns where the data ends.
func tensor(text []byte, at uint64) (t Tensor, end uint64, err error) {
	var e entry
	if err := json.Unmarshal(text, &e); err != nil {
		return t, 0, err
	}
	t = Tensor{DType: numbers[e.DType], Sizes: e.Shape, begin: at}
	n, err := t.Bytes()
	if err != nil {
		return t, 0, err
	}
	if e.Offsets != [2]uint64{at, at + n} || at+n > 1<<62 {
		return t, 0, fmt.Errorf("its %d bytes lie at %v", n, e.Offsets)
	}
	return t, at + n, nil
}

// Fill reads the elements of a tensor into dst, which has their size.
func (f *File) Fill(i int, dst []byte) error {
	_, err := f.f.ReadAt(dst, f.data+int64(f.Tensors[i].begin))
	if errors.Is(err, io.EOF) { // the file has become shorter
		err = fmt.Errorf("%w: %w", ErrFormat, io.ErrUnexpectedEOF)
	}
	return err
}

// Close closes the file.
func (f *File) Close() { _ = f.end.Close() }

// Bytes is the dtype of tensors that are bytes.
var Bytes = numbers["U8"]
