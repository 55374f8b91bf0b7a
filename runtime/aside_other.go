// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package runtime

import "sync/atomic"

// aside does nothing where nobody says which core a thread runs on.
type aside struct{}

func newAside(*atomic.Int64) *aside { return nil }

func (*aside) step() {}
