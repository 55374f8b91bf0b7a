// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import "github.com/mycelya/mycelya/proto/transport"

// Action is something that the loop must do. The types of this file are all actions.
type Action interface{ action() }

type (
	// Start starts the worker. WorkerStarted or WorkerLost follows.
	Start struct{}

	// Wake says that the sender, which may have found no submission, now finds one.
	Wake struct{}

	// Exit ends the sender.
	Exit struct{}

	// Prepare finds or compiles the program of a trace, which Prepared reports. SinceRead counts the traces with a
	// program since the last read.
	Prepare struct {
		Trace     Ref
		SinceRead int
	}

	// Send sends a frame.
	Send struct {
		Type     transport.Type
		Seq      uint64
		Ref      Ref      // the call, the upload, the ticket, the Guess, or the trace of a Free
		Storages []uint64 // of Free and Fail; not changed afterwards
		Block    uint64   // of Unshare
		Err      error    // of Fail
		Again    bool     // of Program and Call: the worker has forgotten the program; of Settle: see Offer
		First    bool     // of Read: the first one since the last call
		Keep     bool     // of Upload: the frame may be sent again, until the Release
		Base     uint64   // of Checkpoint and Restore: the number of the last checkpoint; 0: none
	}

	// Replace says that the worker is lost and will be replaced: the sender gets a Restart. Err says how it was lost.
	Replace struct{ Err error }

	// NotKept says that a checkpoint has failed. Off: the worker will not be replaced if it is lost.
	NotKept struct {
		Err error
		Off bool
	}

	// Restart starts another worker, whose WorkerStarted or WorkerLost follows. The receiver of the last one has ended
	// before it.
	Restart struct{}

	// Fill writes the body of the answer that was stepped last to the ticket's memory, or to new memory for a Guess.
	// Filled follows.
	Fill struct{ Ticket Ref }

	// Give writes the bytes of a guess to the memory of a read's ticket, and ends the ticket.
	Give struct {
		Ticket Ref
		Guess  Guess
		Data   []byte
	}

	// Complete ends a ticket. There is exactly one Complete or Give for each.
	Complete struct {
		Ticket Ref
		Err    error
	}

	// Release says that the arrays of a trace, or the bytes of an upload, are not used any more. There is exactly one
	// for each.
	Release struct{ Ref Ref }

	// Credit says that one trace is not under way any more.
	Credit struct{}

	// Allow says how many traces may be under way from now on.
	Allow struct{ Traces int }

	// Failing says whether there is an error that no caller has raised.
	Failing struct{ Yes bool }

	// Disconnect closes the connection because the worker broke the protocol. WorkerLost follows.
	Disconnect struct{ Err error }

	// End closes the connection and the ways of submission: the session has ended, with this error.
	End struct{ Err error }
)

func (Start) action()      {}
func (Wake) action()       {}
func (Exit) action()       {}
func (Prepare) action()    {}
func (Send) action()       {}
func (Fill) action()       {}
func (Give) action()       {}
func (Complete) action()   {}
func (Release) action()    {}
func (Credit) action()     {}
func (Allow) action()      {}
func (Failing) action()    {}
func (Disconnect) action() {}
func (End) action()        {}
func (Replace) action()    {}
func (Restart) action()    {}
func (NotKept) action()    {}
