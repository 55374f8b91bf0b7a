// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/local"
)

// frontend gives the runtime capture's view of traces, which it does not import.
type frontend struct{ names *capture.Table }

func (f frontend) Build(t *runtime.Trace, wanted []bool) (*runtime.Captured, error) {
	c, err := capture.Build((*capture.Trace)(t), f.names, wanted)
	return (*runtime.Captured)(c), err
}

func (f frontend) Origin(code, offset uint32) ir.Origin { return f.names.Origin(code, offset) }

func newClient(names *capture.Table) *runtime.Runtime {
	return runtime.New(frontend{names}, func(p runtime.Paths) provider.Provider {
		return local.Provider{Paths: local.Spec{Worker: p.Worker, Exec: p.Exec, TorchLib: p.TorchLib}}
	}, newInbox)
}

func (f frontend) Compare(here, there *runtime.Trace) (*runtime.Difference, error) {
	d, err := capture.Compare((*capture.Trace)(here), (*capture.Trace)(there), f.names)
	return (*runtime.Difference)(d), err
}

func (f frontend) Maker(t *runtime.Trace, local int) string {
	return capture.Maker((*capture.Trace)(t), f.names, local)
}
