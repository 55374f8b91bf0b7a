// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"testing"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/conformance"
	"github.com/mycelya/mycelya/worker/executor"
)

func BenchmarkCall(b *testing.B) {
	for name, load := range map[string]func(b *testing.B) func() (executor.Backend, error){
		"ref":   func(*testing.B) func() (executor.Backend, error) { return refBackend },
		"torch": func(b *testing.B) func() (executor.Backend, error) { return conformance.Torch(b).Load },
	} {
		b.Run(name, func(b *testing.B) {
			c := serve(b, load(b), 0).connect(b)
			c.upload(1, f32(1, 2))
			c.send(transport.Program, sent(1, unary("aten::neg")), nil)
			c.call(callOf(1, 2, 1, 2))
			b.Run("call and done", func(b *testing.B) {
				for range b.N {
					c.call(callOf(1, 2, 1, 2))
				}
			})
			b.Run("read of 8 bytes", func(b *testing.B) {
				for range b.N {
					c.read(2, 8)
				}
			})
		})
	}
}
