// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"time"

	"github.com/mycelya/mycelya/proto/transport"
	protobuf "google.golang.org/protobuf/proto"
)

// Event is something that has happened. The types of this file are all events. Of those that are pointers, the core
// keeps TraceClosed until the trace's Release; it reads the others during Step only.
type Event interface{ event() }

// Submissions of the session's callers. The worker sees their frames in the order of the events.
type (
	// TraceClosed submits a trace. Its arrays are used until the Release. At: on the clock of Answer.
	TraceClosed struct {
		Trace Ref
		At    time.Duration
	}

	// Upload submits the bytes of a new storage.
	Upload struct {
		Ref     Ref
		Ticket  Ref // of the caller, who waits until the bytes are not used any more; nil: none waits
		Storage uint64
		Bytes   uint64
		Block   uint64 // of shared memory in which the worker reads them; 0: they are sent
	}

	// Read asks for elements of a storage, which have so many bytes.
	Read struct {
		Ticket  Ref
		Storage uint64
		Bytes   uint64
		View    string // which elements, in the loop's encoding: equal views have equal texts. "": the read is not guessed
	}

	// Sync asks for the end of all that was submitted before it.
	Sync struct{ Ticket Ref }

	// Mark completes its ticket when all that was submitted before it was sent. The ticket is completed by the Step of
	// a Next, so on the sender, or with an error.
	Mark struct{ Ticket Ref }

	// Ask asks for a StateReply, to a frame that the loop makes.
	Ask struct {
		Ticket Ref
		Type   transport.Type
	}

	// Checkpoint asks the worker to keep all of the session. From the first one on, a lost worker is replaced. A nil
	// ticket: no caller waits, and no checkpoint is made if nothing was sent since the last one.
	Checkpoint struct{ Ticket Ref }

	// Raise says that a caller raises the error of Failure. All that was submitted before it has no effect.
	Raise struct{}

	// Forget says that a block of shared memory is gone. All uploads from it have ended.
	Forget struct{ Block uint64 }
)

// Events of waits.
type (
	// Room asks for fewer traces under way than the credits allow.
	Room struct{ Ticket Ref }

	// Cancel ends a ticket, except while the loop writes the bytes of its read: then Filled ends it.
	Cancel struct{ Ticket Ref }
)

// Events of the sender, the goroutine that sends the frames of submissions.
type (
	// Next asks for the next submission. Without actions there is none.
	Next struct{}

	// Prepared is what has become of the trace of a Prepare.
	Prepared struct {
		Trace   Ref
		Err     error  // the trace has no program; the ops' results are lost
		Call    Ref    // of the program; nil: there is nothing to run
		Program uint32 // the number of the call's program
		Bytes   uint64 // that the call keeps in memory

		// Facts about the trace, indexed by local number. They are read during Step only. Inputs is nil if the trace
		// was not compiled, or has no ops; Changed is nil if it is not known.
		Storages []uint64
		Alive    []uint8
		Inputs   []bool // the storage existed before the trace
		Changed  []bool // the trace makes or writes the storage

		Frees  []uint64 // storages that no tensor holds any more
		Unused []uint64 // without a Call: Frees, and inputs that no tensor holds after the trace
	}

	// Sent says how the Send of an Upload, a Piece or a Share ended. Other frames have no Sent. More: the upload has bytes
	// that were not sent. Held: the piece was not sent, because the worker can probably get the bytes elsewhere. Nothing
	// of the upload is to be sent before its Hashed and the worker's answer to the Offer.
	Sent struct {
		Seq        uint64
		OK         bool
		More, Held bool
	}

	// Hashed says that the hash of the bytes of a large upload, whose Begin has this number, is known. It is sent in an
	// Offer if pieces are still missing.
	Hashed struct{ Seq uint64 }
)

// Events of the worker and its connection.
type (
	// WorkerStarted says that frames can be sent, and how many blocks of shared memory the worker accepts.
	WorkerStarted struct{ MaxBlocks int }

	// WorkerLost ends the session: the worker could not start, or the worker or the connection has ended.
	// Final: no other worker replaces it.
	WorkerLost struct {
		Err   error
		Final bool
	}

	// Close ends the session because its owner closes it.
	Close struct{ Err error }

	// Answer is a frame of the worker, whose body has so many bytes. It arrived at a time since the session began.
	Answer struct {
		At      time.Duration
		Seq     uint64
		Bytes   uint64
		Message protobuf.Message
	}

	// Filled says how a Fill ended. If it failed, WorkerLost comes first. Data has the bytes of a Guess.
	Filled struct {
		Ticket Ref
		OK     bool
		Data   []byte
	}
)

func (*TraceClosed) event()  {}
func (Upload) event()        {}
func (Read) event()          {}
func (Sync) event()          {}
func (Mark) event()          {}
func (Ask) event()           {}
func (Checkpoint) event()    {}
func (Raise) event()         {}
func (resume) event()        {}
func (Forget) event()        {}
func (Room) event()          {}
func (Cancel) event()        {}
func (Next) event()          {}
func (*Prepared) event()     {}
func (Sent) event()          {}
func (Hashed) event()        {}
func (WorkerStarted) event() {}
func (WorkerLost) event()    {}
func (Close) event()         {}
func (*Answer) event()       {}
func (Filled) event()        {}
