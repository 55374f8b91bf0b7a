// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"fmt"

	"github.com/mycelya/mycelya/proto"
)

// Backend makes executors: the executor ABI of csrc/abi/mycelya.h, or Go code that keeps to it (worker/ref).
type Backend interface {
	// New makes the executor of one session. The caller stays on the OS thread that it calls New on.
	New() (Executor, error)
	// Trim gives memory that is kept for reuse back to the system. Any goroutine may call it, also while executors work.
	Trim()
}

// Executor holds the storages of one session and runs programs on them. It is used from one OS thread. What it is given
// has passed proto's rules; ids, sizes and views it checks itself against its storages. Errors are *Error.
type Executor interface {
	Info() Info
	// Prepare makes a program ready; Drop forgets it.
	Prepare(p *proto.Program) (Prepared, error)
	Drop(Prepared)
	// Run runs a program. Inputs and outputs are pairs (buffer, storage id); afterwards the output storages hold the
	// buffers. A missing or poisoned storage poisons what depends on it; so does a failed step. errs are the first failed
	// steps, at most MaxErrors, failed is the number of all.
	Run(p Prepared, params, inputs, outputs []uint64, call uint64) (failed int, errs []StepError)
	// Leave says how many of the processor's cores others use during the runs that follow.
	Leave(cores int)
	// Fused tells what became of the fused groups of the runs since it was last asked, and of their kernels; nil: there is nothing to tell.
	Fused() *proto.Kernels
	// UploadBegin gives memory for the bytes of a storage that doesn't exist; after UploadEnd it does.
	UploadBegin(id, bytes uint64) ([]byte, error)
	UploadEnd(id uint64) error
	// Read gathers a view in row-major order and calls use with the bytes, which are gone when use returns.
	Read(v *proto.Read, use func([]byte) error) error
	Free(ids []uint64)
	// Sync waits for the device.
	Sync() error
	Usage() (storages, bytes uint64)
	Close()
}

// Prepared is an executor's own form of a program.
type Prepared any

// Info is what a worker tells of its device.
type Info struct {
	Device      string `json:"device"` // "cpu", "cuda:0"
	Name        string `json:"name"`
	Torch       string `json:"torch"` // version; "" without PyTorch
	MemoryBytes uint64 `json:"memory_bytes"`
	Arch        string `json:"arch"`       // what machine code of kernels has to be for, "sm_90"; "": the device takes none
	Processors  int    `json:"processors"` // multiprocessors of a device that takes some
}

// MaxErrors is how many failed steps of one call are told.
const MaxErrors = 16

// Error is a failure with the kind of exception it becomes. Call and Step say which step poisoned what was asked for; Call
// is 0 if none did.
type Error struct {
	Kind int32 // proto.Err*
	Text string
	Call uint64
	Step uint32
}

func (e *Error) Error() string { return e.Text }

// Errorf makes an Error of a kind.
func Errorf(kind int32, format string, args ...any) *Error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// StepError is one failed step of a run.
type StepError struct {
	Step uint32
	Kind int32
	Text string
}

// status is the message of an error; nil is the message of success.
func status(err error) *proto.Status {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok {
		return &proto.Status{Kind: e.Kind, Text: e.Text, Call: e.Call, Step: e.Step}
	}
	return &proto.Status{Kind: proto.ErrRuntime, Text: err.Error()}
}
