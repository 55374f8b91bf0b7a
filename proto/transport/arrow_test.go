// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/stretchr/testify/require"
)

// batchOf returns metadata and body of the record batch of these columns, as Arrow's writer makes it.
func batchOf(t *testing.T, opts []ipc.Option, cols ...arrow.Array) (meta, content []byte) {
	t.Helper()
	var fields []arrow.Field
	for _, c := range cols {
		fields = append(fields, arrow.Field{Name: "x", Type: c.DataType(), Nullable: true})
	}
	schema := arrow.NewSchema(fields, nil)
	var take bodyTaker
	w := ipc.NewWriterWithPayloadWriter(&take, append(opts, ipc.WithSchema(schema))...)
	require.NoError(t, w.Write(array.NewRecord(schema, cols, int64(cols[0].Len()))))
	return take.meta, take.body.Bytes()
}

type bodyTaker struct {
	metaTaker
	body bytes.Buffer
}

func (b *bodyTaker) WritePayload(p ipc.Payload) error {
	b.body.Reset()
	if err := p.SerializeBody(&b.body); err != nil {
		return err
	}
	return b.metaTaker.WritePayload(p)
}

func int32s(values []int32, valid []bool) arrow.Array {
	b := array.NewInt32Builder(memory.DefaultAllocator)
	b.AppendValues(values, valid)
	return b.NewArray()
}

func TestParseBatch(t *testing.T) {
	col := int32s([]int32{1, 2, 3}, nil)
	meta, content := batchOf(t, nil, col)
	got, err := parseBatch(meta, uint64(len(content)))
	require.NoError(t, err)
	require.Equal(t, body{before: 0, payload: 12, after: uint64(len(content)) - 12}, got, "any fixed width will do")

	refuse := func(want string, meta []byte, n int) {
		t.Helper()
		_, err := parseBatch(meta, uint64(n))
		require.ErrorIs(t, err, ErrFrameBody)
		require.ErrorContains(t, err, want)
	}
	refuse("the frame has 63", meta, 63)
	two, c2 := batchOf(t, nil, col, col)
	refuse("2 columns with 4 buffers", two, len(c2))
	nulls, cn := batchOf(t, nil, int32s([]int32{1, 2}, []bool{true, false}))
	refuse("it has nulls", nulls, len(cn))
	zipped, cz := batchOf(t, []ipc.Option{ipc.WithZstd()}, int32s(make([]int32, 1000), nil))
	refuse("compressed", zipped, len(cz))
	empty, ce := batchOf(t, nil, int32s(nil, nil))
	refuse("0 rows", empty, len(ce))
	s := array.NewStringBuilder(memory.DefaultAllocator)
	s.Append("text")
	text, ct := batchOf(t, nil, s.NewArray())
	refuse("1 columns with 3 buffers", text, len(ct))
	var schema metaTaker
	w := ipc.NewWriterWithPayloadWriter(&schema, ipc.WithSchema(Schema()))
	require.NoError(t, w.Close())
	refuse("not a record batch", schema.meta, 0)

	// With truncated or changed bytes, the result is within bounds or an error, and there is never a panic.
	for i := range meta {
		_, err := parseBatch(meta[:i], uint64(len(content)))
		require.Error(t, err)
		for _, x := range []byte{0x01, 0x80, 0xff} {
			m := bytes.Clone(meta)
			m[i] ^= x
			if b, err := parseBatch(m, uint64(len(content))); err == nil {
				require.Equal(t, uint64(len(content)), b.before+b.payload+b.after)
			}
		}
	}
}

func TestPrefixCacheIsBounded(t *testing.T) {
	var c batchCache
	data := pattern(3 * maxCached)
	for n := 1; n <= len(data); n++ {
		p, err := c.prefix(data[:n])
		require.NoError(t, err)
		require.LessOrEqual(t, len(c.m), maxCached)
		require.Zero(t, len(p)%8)
		b, err := parseBatch(p[8:], uint64(n+padding(n)))
		require.NoError(t, err)
		require.EqualValues(t, n, b.payload)
	}
	one := testing.AllocsPerRun(100, func() { _, _ = c.prefix(data) })
	require.Zero(t, one, "a known length costs nothing")
}

// FuzzNext: for any bytes there is no panic, Next returns no more bytes than were sent, and it ends with an error or
// io.EOF.
func FuzzNext(f *testing.F) {
	f.Add(sent(f, Upload, 3, pattern(100)))
	f.Add(append(sent(f, Call, 1, nil), sent(f, ReadReply, 2, pattern(7))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := reader(b)
		total := 0
		for {
			h, err := c.Next()
			if err != nil {
				if err != io.EOF {
					require.ErrorContains(t, err, "transport:")
				}
				return
			}
			total += headerBytes + h.Meta
			require.LessOrEqual(t, total, len(b))
			if h.Payload > 0 && h.Payload <= uint64(len(b)) && h.Seq%2 == 0 {
				if c.ReadBody(make([]byte, h.Payload)) == nil {
					total += int(h.Payload)
				}
			}
		}
	})
}

// The flatbuffer alone, so that the fuzzer need not find a header first.
func FuzzParseBatch(f *testing.F) {
	p, err := buildPrefix(pattern(100))
	require.NoError(f, err)
	f.Add(p[8:], uint64(128))
	f.Add(binary.LittleEndian.AppendUint32(nil, 4), uint64(0))
	f.Fuzz(func(t *testing.T, meta []byte, n uint64) {
		if b, err := parseBatch(meta, n); err == nil {
			require.Equal(t, n, b.before+b.payload+b.after)
			require.NotZero(t, b.payload)
		}
	})
}

// The bodies of frames, behind the schema and before the end that every Arrow stream has, are a stream that other
// implementations of Arrow read: tests/e2e/test_transport.py opens the same file with pyarrow.
func TestBodiesAreAnArrowStream(t *testing.T) {
	var got bytes.Buffer
	w := ipc.NewWriter(&got, ipc.WithSchema(Schema()))
	require.NoError(t, w.Close())
	end := bytes.Clone(got.Bytes()[got.Len()-8:])
	got.Truncate(got.Len() - len(end))
	batches := [][]byte{[]byte("mycelya"), pattern(64), pattern(1000)}
	for _, b := range batches {
		frame := sent(t, Piece, 3, b)
		n := binary.LittleEndian.Uint64(frame[16:])
		got.Write(frame[len(frame)-int(n):])
	}
	got.Write(end)

	path := filepath.Join("testdata", "v2", "bodies.arrows")
	if *update {
		require.NoError(t, os.WriteFile(path, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, got.Bytes())

	r, err := ipc.NewReader(&got)
	require.NoError(t, err)
	defer r.Release()
	require.True(t, r.Schema().Equal(Schema()))
	for _, b := range batches {
		require.True(t, r.Next())
		require.Equal(t, b, r.Record().Column(0).(*array.Uint8).Uint8Values())
	}
	require.False(t, r.Next())
	require.NoError(t, r.Err())
}
