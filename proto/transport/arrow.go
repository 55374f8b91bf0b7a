// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// A body is an Arrow IPC encapsulated message:
//
//	0xffffffff  int32 size of metadata  metadata (flatbuffer Message, padded to 8)
//	the column's bytes  zeros up to a multiple of 8
//
// Arrow's writer makes the metadata; the bytes go from the caller's memory to the socket without a copy. Arrow's reader
// copies each buffer and trusts the peer's lengths when it allocates, so parseBatch reads the few fields that are
// needed and checks every offset. The column goes from the socket to its destination.

const (
	continuation = 0xffffffff
	// Metadata of a one-column batch has 136 bytes; other writers may add custom metadata. It is parsed in the read
	// buffer, so nothing is allocated.
	maxBatchMeta = readBuffer
	// A training loop sends bodies of few lengths. The cache is emptied when it holds this many.
	maxCached = 256
)

// Schema is the schema of every body.
func Schema() *arrow.Schema {
	return arrow.NewSchema([]arrow.Field{{Name: "data", Type: arrow.PrimitiveTypes.Uint8}}, nil)
}

var zeros [64]byte

// padding is the number of zeros after n bytes of a column.
func padding(n int) int { return -n & 7 }

// batchCache keeps prefixes by length of the body. Building one takes a few µs and dozens of allocations.
type batchCache struct{ m map[int][]byte }

// prefix returns the part of the encapsulated message of data that comes before data.
func (b *batchCache) prefix(data []byte) ([]byte, error) {
	if p, ok := b.m[len(data)]; ok {
		return p, nil
	}
	p, err := buildPrefix(data)
	if err != nil {
		return nil, err
	}
	if len(b.m) >= maxCached || b.m == nil {
		b.m = make(map[int][]byte)
	}
	b.m[len(data)] = p
	return p, nil
}

func buildPrefix(data []byte) ([]byte, error) {
	var take metaTaker
	schema := Schema()
	w := ipc.NewWriterWithPayloadWriter(&take, ipc.WithSchema(schema))
	buffers := []*memory.Buffer{nil, memory.NewBufferBytes(data)}
	d := array.NewData(arrow.PrimitiveTypes.Uint8, len(data), buffers, nil, 0, 0)
	defer d.Release()
	col := array.NewUint8Data(d)
	defer col.Release()
	rec := array.NewRecord(schema, []arrow.Array{col}, int64(len(data)))
	defer rec.Release()
	if err := w.Write(rec); err != nil {
		return nil, fmt.Errorf("transport: arrow: %w", err)
	}
	size := (len(take.meta) + 7) &^ 7
	p := make([]byte, 8+size)
	binary.LittleEndian.PutUint32(p, continuation)
	binary.LittleEndian.PutUint32(p[4:], uint32(size))
	copy(p[8:], take.meta)
	return p, nil
}

// metaTaker is a payload writer that keeps the metadata of the last message.
type metaTaker struct{ meta []byte }

func (*metaTaker) Start() error { return nil }
func (*metaTaker) Close() error { return nil }
func (m *metaTaker) WritePayload(p ipc.Payload) error {
	meta := p.Meta()
	defer meta.Release()
	m.meta = append(m.meta[:0], meta.Bytes()...)
	return nil
}

// body has the numbers of bytes before, in and after the payload.
type body struct{ before, payload, after uint64 }

// readPrefix reads the metadata of a body of n bytes.
func readPrefix(r *bufio.Reader, n uint64) (body, error) {
	var head [8]byte
	if n < uint64(len(head)) {
		return body{}, fmt.Errorf("%w: %d bytes", ErrFrameBody, n)
	}
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return body{}, truncated(err)
	}
	if binary.LittleEndian.Uint32(head[:]) != continuation {
		return body{}, fmt.Errorf("%w: no continuation mark", ErrFrameBody)
	}
	size := uint64(binary.LittleEndian.Uint32(head[4:]))
	if size > maxBatchMeta || size > n-8 {
		return body{}, fmt.Errorf("%w: metadata of %d bytes", ErrFrameBody, size)
	}
	meta, err := r.Peek(int(size))
	if err != nil {
		return body{}, truncated(err)
	}
	b, err := parseBatch(meta, n-8-size)
	if err != nil {
		return body{}, err
	}
	_, err = r.Discard(int(size))
	return b, err
}

// parseBatch reads a flatbuffer Message, which must be a record batch of one column of fixed width without nulls. The
// batch's body must have n bytes.
func parseBatch(meta []byte, n uint64) (body, error) {
	bad := func(what string) (body, error) { return body{}, fmt.Errorf("%w: %s", ErrFrameBody, what) }
	f := flat{b: meta, ok: true}
	msg := f.table(f.ref(0))
	// Field numbers are those of Arrow's Message.fbs.
	if kind := f.u8(f.field(msg, 1)); kind != 3 {
		return bad("not a record batch")
	}
	bodyLength := f.i64(f.field(msg, 3))
	header := f.field(msg, 2)
	if header == 0 {
		return bad("no record batch")
	}
	batch := f.table(f.ref(header))
	rows := f.i64(f.field(batch, 0))
	nodes, nNodes := f.vector(f.field(batch, 1))
	buffers, nBuffers := f.vector(f.field(batch, 2))
	compressed := f.field(batch, 3) != 0
	if !f.ok {
		return bad("metadata is incomplete")
	}
	switch {
	case bodyLength != n:
		return bad(fmt.Sprintf("it says %d bytes, the frame has %d", bodyLength, n))
	case compressed:
		return bad("compressed")
	case nNodes != 1 || nBuffers != 2:
		return bad(fmt.Sprintf("%d columns with %d buffers, want 1 with 2", nNodes, nBuffers))
	}
	nodeRows, nulls := f.i64(nodes), f.i64(nodes+8)
	valid := f.i64(buffers + 8)
	offset, length := f.i64(buffers+16), f.i64(buffers+24)
	switch {
	case !f.ok:
		return bad("metadata is incomplete")
	case nulls != 0 || valid != 0:
		return bad("it has nulls")
	case rows == 0 || nodeRows != rows:
		return bad(fmt.Sprintf("%d rows in the batch, %d in the column", rows, nodeRows))
	case offset > n || length > n-offset:
		return bad(fmt.Sprintf("a column at %d of %d bytes in a body of %d", offset, length, n))
	case length%rows != 0 || length/rows > 16 || length == 0:
		return bad(fmt.Sprintf("%d rows in %d bytes", rows, length))
	}
	return body{before: offset, payload: length, after: n - offset - length}, nil
}

// flat reads a flatbuffer. A read out of bounds clears ok and gives 0. Position 0 is an absent field.
type flat struct {
	b  []byte
	ok bool
}

func (f *flat) at(pos, n uint64) []byte {
	if pos > uint64(len(f.b)) || n > uint64(len(f.b))-pos {
		f.ok = false
		return zeros[:n]
	}
	return f.b[pos : pos+n]
}

func (f *flat) u8(pos uint64) uint8 {
	if pos == 0 {
		return 0
	}
	return f.at(pos, 1)[0]
}

// i64 reads an int64 that must not be negative.
func (f *flat) i64(pos uint64) uint64 {
	if pos == 0 {
		return 0
	}
	v := binary.LittleEndian.Uint64(f.at(pos, 8))
	if v > 1<<62 {
		f.ok = false
		return 0
	}
	return v
}

// ref follows the offset at pos.
func (f *flat) ref(pos uint64) uint64 {
	return pos + uint64(binary.LittleEndian.Uint32(f.at(pos, 4)))
}

type flatTable struct{ pos, vtable, size uint64 }

func (f *flat) table(pos uint64) flatTable {
	// The offset to the vtable is signed and subtracted.
	vt := int64(pos) - int64(int32(binary.LittleEndian.Uint32(f.at(pos, 4))))
	if vt < 0 {
		f.ok = false
		return flatTable{}
	}
	return flatTable{pos, uint64(vt), uint64(binary.LittleEndian.Uint16(f.at(uint64(vt), 2)))}
}

// field returns the position of field i of t, or 0 if it is absent.
func (f *flat) field(t flatTable, i uint64) uint64 {
	at := 4 + 2*i
	if at+2 > t.size {
		return 0
	}
	rel := uint64(binary.LittleEndian.Uint16(f.at(t.vtable+at, 2)))
	if rel == 0 {
		return 0
	}
	return t.pos + rel
}

// vector returns the position of the first item and the number of items.
func (f *flat) vector(pos uint64) (first, n uint64) {
	if pos == 0 {
		return 0, 0
	}
	v := f.ref(pos)
	return v + 4, uint64(binary.LittleEndian.Uint32(f.at(v, 4)))
}
