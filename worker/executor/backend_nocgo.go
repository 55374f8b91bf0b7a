// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !cgo || !(linux || darwin)

package executor

import (
	"log/slog"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/crash"
)

// Torch has the paths of PyTorch and the executor. This build cannot load them.
type Torch struct {
	Exec    string
	Lib     string
	Device  string
	Threads int
	Log     *slog.Logger
	Kernels Kernels
	// Progress is where executors note what they run; nil: nowhere. A process with several sessions has none.
	Progress *crash.Progress
}

// Load fails: libtorch is loaded through cgo.
func (t Torch) Load() (Backend, error) {
	return nil, Errorf(proto.ErrRuntime,
		"This worker was built without cgo and cannot load PyTorch; build it with CGO_ENABLED=1.")
}
