// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import "sync/atomic"

// Inbox is where threads that aren't Go's leave closed traces of a device, without a call into Go, and where its sender
// sleeps. All methods may be called at the same time; Wait by one at a time.
type Inbox interface {
	// Open says whether traces may be left there. Those that are there already stay.
	Open(open bool)
	// Take removes the oldest trace. Its arrays are used until release is called. nil: there is none.
	Take() (t *Trace, release func())
	// Wait returns when there is a trace, or after a Ring that no Wait has seen.
	Wait()
	Ring()
	Credits() *Credits
}

// Credits say how far a client may run ahead of its worker: who leaves a trace counts it, and is to wait if no more are allowed.
type Credits struct {
	OnWay   atomic.Int64 // traces whose Done has not arrived
	Allowed atomic.Int64
}

// inbox is one where nobody leaves anything.
type inbox struct {
	bell    chan struct{}
	credits Credits
}

// NewInbox returns an inbox where nothing is left: every trace comes by a call of Flush.
func NewInbox() Inbox { return &inbox{bell: make(chan struct{}, 1)} }

func (b *inbox) Open(bool)              {}
func (b *inbox) Take() (*Trace, func()) { return nil, nil }
func (b *inbox) Wait()                  { <-b.bell }
func (b *inbox) Credits() *Credits      { return &b.credits }

func (b *inbox) Ring() {
	select {
	case b.bell <- struct{}{}:
	default: // it has been rung already
	}
}
