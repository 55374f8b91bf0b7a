// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/klauspost/compress/zstd"
)

// MaxExpanded bounds the bytes of a compressed piece after decompression.
const MaxExpanded = 4 << 20

// ErrCompressed means that compressed bytes are not what they should be.
var ErrCompressed = errors.New("transport: compressed bytes are wrong")

// Compressor compresses pieces of uploads. The zero Compressor can be used; the first use makes the encoder.
type Compressor struct {
	encoder *zstd.Encoder
	out     []byte
}

// Compress returns p compressed. The next call overwrites the result.
func (c *Compressor) Compress(p []byte) ([]byte, error) {
	if c.encoder == nil {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderCRC(false)) // TLS and the link check the bytes
		if err != nil {
			return nil, err
		}
		c.encoder = e
	}
	c.out = c.encoder.EncodeAll(p, c.out[:0])
	return c.out, nil
}

// Expander undoes Compress. The zero Expander can be used.
type Expander struct{ decoder *zstd.Decoder }

// Expand fills dst, of at most MaxExpanded bytes, with the decompressed bytes of p. It never writes beyond dst.
func (x *Expander) Expand(dst, p []byte) error {
	if len(dst) == 0 || len(dst) > MaxExpanded {
		return fmt.Errorf("%w: they stand for %d bytes; at most %d are allowed", ErrCompressed, len(dst), MaxExpanded)
	}
	if x.decoder == nil {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxExpanded),
			zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return err
		}
		x.decoder = d
	}
	out, err := x.decoder.DecodeAll(p, dst[:0:len(dst)])
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrCompressed, err)
	case len(out) != len(dst) || unsafe.SliceData(out) != unsafe.SliceData(dst):
		return fmt.Errorf("%w: they stand for %d bytes, not for %d", ErrCompressed, len(out), len(dst))
	}
	return nil
}

// Close ends the decoder, which can be used again.
func (x *Expander) Close() {
	if x.decoder != nil {
		x.decoder.Close()
		x.decoder = nil
	}
}
