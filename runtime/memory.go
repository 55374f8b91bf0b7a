// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import "syscall"

// From this size on, copies of uploads are outside Go's heap. Go returns heap memory only after minutes, and a client
// that moves a model to the device must not stay as large as the model. 64 KiB is 16 pages; below that, mapping costs
// more than copying.
const mapFrom = 64 << 10

// copyOut copies data to memory of its own; release returns it to the system at once.
func copyOut(data []byte) (out []byte, release func()) {
	if len(data) >= mapFrom {
		out, err := syscall.Mmap(-1, 0, len(data), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err == nil {
			copy(out, data)
			return out, func() { _ = syscall.Munmap(out) }
		}
	}
	return append([]byte(nil), data...), func() {}
}
