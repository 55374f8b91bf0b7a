// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"runtime/debug"
	"sync"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/kept"
)

// A client may have sessions on several devices of one worker. They pass tensors to each other in memory of the host,
// so that no element goes through the client.

// MaxPass bounds the bytes that are passed at once, and with them the memory that they take beside the tensors. A
// client passes larger tensors in parts (csrc/device/operators/Beside.cpp has the same number).
const MaxPass = 256 << 20

// Passer passes bytes between the sessions of a worker.
type Passer interface {
	// Lend returns memory for so many bytes, which are to be passed.
	Lend(bytes uint64) (Loan, error)
	// Take returns what was passed to this session under a name, which ends. ErrNotPassed: there is nothing.
	Take(name string) (Passed, error)
}

// Loan is memory that one session fills. One of Pass and Drop ends it.
type Loan interface {
	Memory() []byte
	// Pass passes the memory to the session of another process.
	Pass(name string, to uint64) error
	Drop()
}

// Passed is memory with bytes of another session.
type Passed interface {
	Memory() []byte
	// Close ends the use of the memory.
	Close() error
}

// pass makes the elements of a view ready for another session, and returns their bytes.
func (s *session) pass(m *proto.Pass) (uint64, error) {
	if m.View == nil {
		return 0, faultf("A Pass has no view.")
	}
	if s.halt != nil { // the client's program has not come so far
		e := *s.halt
		return 0, &e
	}
	t := kept.Tensor{DType: m.View.Dtype, Sizes: m.View.Sizes}
	n, err := t.Bytes()
	switch {
	case err != nil:
		return 0, executor.Errorf(proto.ErrValue, "A tensor cannot be passed: %v.", err)
	case n > MaxPass:
		return 0, executor.Errorf(proto.ErrValue, "A tensor of %d bytes is passed in parts of at most %d.", n, MaxPass)
	case s.passer == nil:
		return 0, errNoPasser
	}
	loan, err := s.passer.Lend(n)
	if err != nil {
		return 0, passing(err, n)
	}
	if err := s.put(m.View, &t, filler(loan.Memory())); err != nil {
		loan.Drop()
		return 0, passing(err, n)
	}
	return n, passing(loan.Pass(m.Name, m.To), n)
}

// filler fills memory with what is written at once.
type filler []byte

func (to filler) Write(b []byte) (int, error) { return len(b), copyMapped(to, b, to, true) }

var errNoPasser = executor.Errorf(proto.ErrRuntime, "This worker passes no tensors from one session to another.")

// passing turns an error into one for the user.
func passing(err error, bytes uint64) error {
	if err == nil {
		return nil
	}
	if _, ours := err.(*executor.Error); ours {
		return err
	}
	return executor.Errorf(proto.ErrRuntime, "%d bytes cannot be copied to another device of the machine: %v.", bytes, err)
}

// take makes a storage with what another session has passed to this one. Without that, the storage is poisoned.
func (s *session) take(m *proto.Take) (uint64, error) {
	if s.passer == nil {
		return 0, errNoPasser
	}
	p, err := s.passer.Take(m.Name)
	if err == nil {
		defer p.Close()
		if m.Storage == 0 { // not wanted
			return 0, nil
		}
		if n := uint64(len(p.Memory())); n != m.Bytes {
			err = fmt.Errorf("there are %d", n)
		}
	}
	if err != nil {
		err = passing(err, m.Bytes)
		if m.Storage != 0 {
			s.x.Poison([]uint64{m.Storage}, asError(err))
		}
		return 0, err
	}
	return m.Bytes, s.make(m.Storage, m.Bytes, func(dst []byte) error {
		return passing(copyMapped(dst, p.Memory(), p.Memory(), false), m.Bytes)
	})
}

const (
	// The most parts that are copied at the same time, and the least bytes of one: a multiple of the size of a page.
	maxCopiers = 4
	leastCopy  = 4 << 20
)

// copyMapped copies between memory that is mapped and other memory, in parts at the same time if there is much. The
// system may have no memory for a page that is touched first.
func copyMapped(dst, src, mapped []byte, write bool) error {
	if len(dst) != len(src) {
		return fmt.Errorf("BUG: %d bytes are copied to %d", len(src), len(dst))
	}
	part := max(leastCopy, len(src)/min(maxCopiers, goruntime.NumCPU()))
	part = (part + leastCopy - 1) / leastCopy * leastCopy
	var all sync.WaitGroup
	var errs [maxCopiers]error
	for i := 0; i*part < len(src); i++ {
		from, to := i*part, min((i+1)*part, len(src))
		one := func() {
			mapPages(mapped[from:to], write)
			errs[i] = copyTouched(dst[from:to], src[from:to])
		}
		if to == len(src) {
			one()
		} else {
			all.Go(one)
		}
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// copyTouched copies memory. A page without memory is an error, which would end the process otherwise.
func copyTouched(dst, src []byte) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if r := recover(); r != nil {
			if _, isFault := r.(interface{ Addr() uintptr }); !isFault {
				panic(r)
			}
			err = fmt.Errorf("the host has no memory for them: %v", r)
		}
	}()
	copy(dst, src)
	return nil
}
