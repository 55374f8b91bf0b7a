// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"io"
	"net"
	"testing"

	"github.com/mycelya/mycelya/proto"
)

// Compare only results of the same run: the speed of the machine varies more than that of the code.
//
//	go test -run xxx -bench . -benchtime 20x ./proto/transport

const bulk = 256 << 20

// BenchmarkRoundTrip is an empty call and its answer on a unix socket, each end in a goroutine of its own.
func BenchmarkRoundTrip(b *testing.B) {
	for name, params := range map[string]int{"empty": 0, "500 parameters": 500} {
		b.Run(name, func(b *testing.B) {
			x, y := unixPair(b)
			go func() {
				var call proto.Call
				for {
					h, err := y.Next()
					if err != nil || y.Meta(&call) != nil || y.Send(Done, h.Seq, &proto.Done{}, nil) != nil {
						return
					}
				}
			}()
			call := &proto.Call{
				Key:     make([]byte, proto.KeyBytes),
				Params:  make([]uint64, params),
				Inputs:  []uint64{1},
				Outputs: []uint64{2},
			}
			var done proto.Done
			b.ReportAllocs()
			for i := range b.N {
				if err := x.Send(Call, uint64(i), call, nil); err != nil {
					b.Fatal(err)
				}
				if _, err := x.Next(); err != nil {
					b.Fatal(err)
				}
				if err := x.Meta(&done); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRawRoundTrip is a byte there and back on the same kind of socket.
func BenchmarkRawRoundTrip(b *testing.B) {
	x, y := unixPair(b)
	go func() { _, _ = io.Copy(struct{ io.Writer }{y.Net()}, struct{ io.Reader }{y.Net()}) }()
	var one [1]byte
	for range b.N {
		if _, err := x.Net().Write(one[:]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(x.Net(), one[:]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMemcpy(b *testing.B) {
	src, dst := pattern(bulk), pattern(bulk)
	b.SetBytes(bulk)
	for b.Loop() {
		copy(dst, src)
	}
}

// bench sends src b.N times from one goroutine and receives it in this one, into the same memory again and again.
func bench(b *testing.B, send func(src []byte) error, receive func(dst []byte) error) {
	src, dst := pattern(bulk), pattern(bulk)
	b.SetBytes(bulk)
	b.ResetTimer()
	go func() {
		for range b.N {
			if send(src) != nil {
				return
			}
		}
	}()
	for range b.N {
		if err := receive(dst); err != nil {
			b.Fatal(err)
		}
	}
}

func raw(b *testing.B, from, to net.Conn) {
	bench(b, func(src []byte) error { _, err := from.Write(src); return err },
		func(dst []byte) error { _, err := io.ReadFull(to, dst); return err })
}

func BenchmarkRawUnix(b *testing.B) {
	x, y := unixPair(b)
	raw(b, x.Net(), y.Net())
}

func framed(b *testing.B, from, to *Conn, t Type) {
	bench(b, func(src []byte) error { return from.Send(t, 1, &proto.Upload{Storage: 1, Bytes: bulk}, src) },
		func(dst []byte) error {
			if _, err := to.Next(); err != nil {
				return err
			}
			return to.ReadBody(dst)
		})
}

// An upload and a read are the same transfer in the two directions.
func BenchmarkUpload(b *testing.B) {
	x, y := unixPair(b)
	framed(b, x, y, Upload)
}

func BenchmarkRead(b *testing.B) {
	x, y := unixPair(b)
	framed(b, y, x, ReadReply)
}

func BenchmarkTCP(b *testing.B) {
	for _, name := range []string{"raw", "framed"} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			x, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer x.Close()
			y, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			defer y.Close()
			if name == "raw" {
				raw(b, x, y)
			} else {
				framed(b, New(x), New(y), Upload)
			}
		})
	}
}

// BenchmarkPrefix is Arrow's metadata: made, and found again.
func BenchmarkPrefix(b *testing.B) {
	data := pattern(4096)
	b.Run("build", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := buildPrefix(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cached", func(b *testing.B) {
		b.ReportAllocs()
		var c batchCache
		for b.Loop() {
			if _, err := c.prefix(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		p, err := buildPrefix(data)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := parseBatch(p[8:], 4096); err != nil {
				b.Fatal(err)
			}
		}
	})
}
