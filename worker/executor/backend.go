// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package executor runs programs: Backend and Executor are the interfaces, and Torch implements them with libtorch.
package executor

import (
	"fmt"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
)

// Backend makes executors: through the executor ABI of csrc/abi/mycelya.h, or in Go (worker/ref).
type Backend interface {
	// New makes the executor of one session on a device, or on the backend's own if device is "". The caller must use the
	// executor from the OS thread that called New.
	New(device string) (Executor, error)
	// Trim returns unused cached memory to the system. Any goroutine may call it, also while executors run.
	Trim()
}

// Executor holds the storages of one session and runs programs on them. It is used from one OS thread. Its arguments
// have passed the rules of package program; the executor checks ids, sizes and views against its storages. Errors are
// *Error.
type Executor interface {
	Info() Info
	// Prepare makes a program ready; Drop forgets it. words are those of p.
	Prepare(p *program.Program, words []uint64) (Prepared, error)
	Drop(Prepared)
	// Run runs a program. Inputs and outputs are pairs (buffer, storage id); after the run the output storages hold
	// the buffers. The storages of frees end once the inputs are bound. A step that needs a missing or poisoned storage
	// fails. After a failure the storages are as if the recorded ops had run one by one up to the failed one; what is new
	// since then is poisoned. failed is the number of failed steps. errs are at most MaxErrors of them; the first is the
	// one whose op was recorded first.
	Run(p Prepared, params, inputs, outputs, frees []uint64, call uint64) (failed int, errs []StepError)
	// SetFlags runs only the steps of a program that set flags or the default dtype.
	SetFlags(p Prepared, params []uint64)
	// Leave sets how many of the processor's cores the next runs must leave to other processes.
	Leave(cores int)
	// Time makes the next run write when each of its steps began and ended: two words by step, in nanoseconds since 1970;
	// 0 and 0 for one that did not run.
	Time(times []uint64)
	// Fused returns what happened to fused groups and their kernels since the last call of Fused; nil if nothing did.
	Fused() *proto.Kernels
	// UploadBegin returns memory for the bytes of a new storage. The storage exists after UploadEnd.
	UploadBegin(id, bytes uint64) ([]byte, error)
	UploadEnd(id uint64) error
	// Read gathers a view in row-major order and calls use with the bytes, which are valid until use returns.
	Read(v *proto.Read, use func([]byte) error) error
	Free(ids []uint64)
	// Poison makes poisoned storages of those ids that have none.
	Poison(ids []uint64, e *Error)
	// Sync waits for the device.
	Sync() error
	Usage() (storages, bytes uint64)
	// Contents lists the storages in the order of their ids.
	Contents() []Content
	// State has the generators, the flags and the default dtype. SetState takes what State of an executor of the same
	// build and device has returned.
	State() ([]byte, error)
	SetState(state []byte) error
	Close()
}

// Content is a storage of an executor.
type Content struct {
	ID, Bytes uint64
	Poisoned  bool
}

// Prepared is an executor's form of a program.
type Prepared any

// Info describes a worker's device.
type Info struct {
	Device      string `json:"device"` // "cpu", "cuda:0"
	Name        string `json:"name"`
	Torch       string `json:"torch"` // version; "" without PyTorch
	MemoryBytes uint64 `json:"memory_bytes"`
	Arch        string `json:"arch"`       // target of machine code, "sm_90"; "" if the device takes none
	Processors  int    `json:"processors"` // multiprocessors of a device that takes machine code
}

// MaxErrors is the largest number of failed steps that a Done reports.
const MaxErrors = 16

// Error is a failure with the kind of exception that it becomes. Call and Step name the step that poisoned the
// storage of a read; Call is 0 if none did.
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

// StepError is one failed step of a run. The cause is the step itself, or the one that has poisoned what the step
// needs.
type StepError struct {
	Step  uint32
	Cause Error
}

// Status returns the message of an error, nil for success.
func Status(err error) *proto.Status {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok {
		return &proto.Status{Kind: e.Kind, Text: e.Text, Call: e.Call, Step: e.Step}
	}
	return &proto.Status{Kind: proto.ErrRuntime, Text: err.Error()}
}
