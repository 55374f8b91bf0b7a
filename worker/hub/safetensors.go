// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/mycelya/mycelya/worker/kept"
)

const (
	// maxHeader bounds the header of a file in bytes, and maxTensors its tensors. The largest published files have some
	// thousands of tensors, with 100 bytes of header for each.
	maxHeader  = 16 << 20
	maxTensors = 100_000
	// maxName bounds the name of a tensor in bytes, and maxDims its dimensions: PyTorch's limit is 64.
	maxName = 1024
	maxDims = 64

	metadata = "__metadata__"
)

// errFormat means that a file is not a safetensors file.
var errFormat = errors.New("it is not a valid safetensors file")

// Tensor is a tensor of a safetensors file.
type Tensor struct {
	Name string
	kept.Tensor
	Begin, End uint64 // where its elements lie in the file
}

// entry is a tensor in the header of a file.
type entry struct {
	DType   string    `json:"dtype"`
	Shape   []int64   `json:"shape"`
	Offsets *[]uint64 `json:"data_offsets"`
}

// ReadHeader reads the header of a safetensors file of a size. Nothing in the file is trusted: each tensor of the
// result lies inside the file, has the number of bytes that its dtype and shape need, and overlaps no other one. The
// tensors are in the order of their elements in the file.
func ReadHeader(f io.ReaderAt, size int64) ([]Tensor, error) {
	var head [8]byte
	if size < int64(len(head)) {
		return nil, fmt.Errorf("%w: it has %d bytes", errFormat, size)
	}
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint64(head[:])
	if length > maxHeader || int64(length) > size-int64(len(head)) {
		return nil, fmt.Errorf("%w: its header has %d bytes, the file %d; at most %d are allowed", errFormat, length, size,
			maxHeader)
	}
	text := make([]byte, length)
	if _, err := f.ReadAt(text, int64(len(head))); err != nil {
		return nil, err
	}
	out, err := parseHeader(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errFormat, err)
	}
	if err := layOut(out, uint64(len(head))+length, uint64(size)); err != nil {
		return nil, fmt.Errorf("%w: %w", errFormat, err)
	}
	return out, nil
}

// parseHeader reads the JSON object of a header. The offsets of the tensors are those of the header.
func parseHeader(text []byte) ([]Tensor, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("its header is no JSON object")
	}
	var out []Tensor
	seen := map[string]struct{}{}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, errors.New("its header is no JSON object")
		}
		if _, twice := seen[name]; twice {
			return nil, fmt.Errorf("it has %s twice", quote(name))
		}
		seen[name] = struct{}{}
		if name == metadata {
			var of map[string]string
			if err := d.Decode(&of); err != nil {
				return nil, errors.New("its metadata are no strings")
			}
			continue
		}
		if len(out) == maxTensors {
			return nil, fmt.Errorf("it has more than %d tensors", maxTensors)
		}
		var e entry
		if err := d.Decode(&e); err != nil {
			return nil, fmt.Errorf("the entry of %s does not decode", quote(name))
		}
		tensor, err := tensorOf(name, &e)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		out = append(out, tensor)
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.New("its header is no JSON object")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("its header has something behind the JSON object")
	}
	return out, nil
}

// tensorOf checks an entry against itself.
func tensorOf(name string, e *entry) (t Tensor, err error) {
	switch {
	case len(name) > maxName:
		return t, fmt.Errorf("its name has %d bytes; at most %d are allowed", len(name), maxName)
	case len(e.Shape) > maxDims:
		return t, fmt.Errorf("it has %d dimensions; at most %d are allowed", len(e.Shape), maxDims)
	case e.Offsets == nil || len(*e.Offsets) != 2:
		return t, errors.New("it has no begin and end")
	case kept.DTypeOf(e.DType) == 0:
		return t, fmt.Errorf("this version of mycelya-torch has no dtype %s; load the file on the client with "+
			"safetensors, convert the tensor, and move it to the device", quote(e.DType))
	}
	t = Tensor{Name: name, Tensor: kept.Tensor{DType: kept.DTypeOf(e.DType), Sizes: e.Shape},
		Begin: (*e.Offsets)[0], End: (*e.Offsets)[1]}
	n, err := t.Bytes()
	if err == nil && (t.Begin > t.End || t.End-t.Begin != n) {
		err = fmt.Errorf("its %d bytes lie at %d to %d", n, t.Begin, t.End)
	}
	return t, err
}

// layOut orders tensors, turns their offsets in the data into offsets in the file, and checks that the data is theirs
// without gaps.
func layOut(tensors []Tensor, data, size uint64) error {
	slices.SortStableFunc(tensors, func(a, b Tensor) int {
		if a.Begin != b.Begin {
			return cmp.Compare(a.Begin, b.Begin)
		}
		return cmp.Compare(a.End, b.End)
	})
	at, room := uint64(0), size-data
	for i := range tensors {
		t := &tensors[i]
		if t.Begin != at || t.End > room {
			return fmt.Errorf("tensor %s lies at %d to %d of %d bytes, and not behind the one before it, which ends at %d",
				quote(t.Name), t.Begin, t.End, room, at)
		}
		at = t.End
		t.Begin, t.End = t.Begin+data, t.End+data
	}
	if at != room {
		return fmt.Errorf("it has %d bytes of tensors and %d bytes of data", at, room)
	}
	return nil
}

// quote is a text of a server or a client for a message: short, and without control characters.
func quote(text string) string {
	const most = 100
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "…"
	}
	return fmt.Sprintf("%q", text)
}
