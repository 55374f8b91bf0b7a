// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/local"
)

func newClient(names *capture.Table) *runtime.Runtime {
	return runtime.New(names, func(p runtime.Paths) provider.Provider {
		return local.Provider{Paths: local.Spec{Worker: p.Worker, Exec: p.Exec, TorchLib: p.TorchLib}}
	}, newInbox)
}
