// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mycelya/mycelya/worker/session"
)

// ErrNotPassed means that nothing was passed to a session under a name.
var ErrNotPassed = errors.New("nothing was passed under this name")

const (
	// Bounds of the loans of a process that nobody has taken. A client waits much earlier.
	maxLoans     = 64
	maxLoanBytes = 4 << 30
	minLoan      = 64 << 10 // loans have powers of two of bytes, so that one fits the next pass, too
	// A name is a secret of the client.
	minPassName, maxPassName = 16, 100
	// Memory that was taken is lent to the same process again: new pages cost more than the copy of their bytes. So much
	// of it is kept for each process, until nothing was passed for DefaultIdle.
	maxSpare = 512 << 20
)

// lender is the supervisor's part of what sessions pass to each other. It owns the memory, which it lends to a session
// to fill, and then to the session that the first one names. No other session gets it, and none learns a name.
type lender struct {
	mu    sync.Mutex
	last  int
	live  map[uint64]*borrower // by the number of the process
	loans map[int]*loan        // by number
	names map[string]*loan     // those that are passed and not taken
	idle  *time.Timer          // ends the use of spare memory
}

// borrower is a process.
type borrower struct {
	pid   uint64
	loans int     // of it, until they are taken,
	bytes uint64  // and their memory
	spare []*loan // of it that were taken, the one of the longest ago first
}

// loan is memory. It has one user at a time.
type loan struct {
	number   int
	of       *borrower // who has filled it; nil: it has ended
	to       uint64    // the process that may take it; 0: it is not passed
	taken    bool
	file     *os.File
	capacity uint64 // bytes of the file, which cannot change
	bytes    uint64 // that are passed
}

func newLender() *lender {
	l := &lender{live: map[uint64]*borrower{}, loans: map[int]*loan{}, names: map[string]*loan{}}
	l.idle = time.AfterFunc(session.DefaultIdle, l.trim)
	return l
}

// join notes a process.
func (l *lender) join(pid uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[pid] = &borrower{pid: pid}
}

// leave notes the end of a process. What it has passed stays for those who may take it.
func (l *lender) leave(pid uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.live[pid]
	if b == nil {
		return
	}
	delete(l.live, pid)
	for name, x := range l.names {
		if x.to == pid {
			delete(l.names, name)
			l.end(x)
		}
	}
	for _, x := range l.loans {
		switch {
		case x.of == b && x.to == 0, x.to == pid && x.taken:
			l.end(x)
		case x.of == b:
			x.of = nil
		}
	}
	for _, x := range b.spare {
		_ = x.file.Close()
	}
}

// end ends a loan. Its memory may be lent again to the process that has filled it.
func (l *lender) end(x *loan) {
	delete(l.loans, x.number)
	if x.of == nil {
		_ = x.file.Close()
		return
	}
	x.of.loans--
	x.of.bytes -= x.capacity
	if l.live[x.of.pid] != x.of {
		_ = x.file.Close()
		return
	}
	x.to, x.taken = 0, false
	x.of.spare = append(x.of.spare, x)
	total := uint64(0)
	for _, s := range x.of.spare {
		total += s.capacity
	}
	for total > maxSpare { // the one that was used longest ago
		total -= x.of.spare[0].capacity
		_ = x.of.spare[0].file.Close()
		x.of.spare = x.of.spare[1:]
	}
	l.idle.Reset(session.DefaultIdle)
}

// trim gives spare memory back to the system.
func (l *lender) trim() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.live {
		for _, x := range b.spare {
			_ = x.file.Close()
		}
		b.spare = nil
	}
}

// lend lends memory to a process. The process gets a descriptor of the file, which stays open here.
func (l *lender) lend(pid, bytes uint64) (answer, *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.live[pid]
	switch {
	case b == nil:
		return failed(errors.New("the process has ended"))
	case bytes > session.MaxPass:
		return failed(fmt.Errorf("at most %d bytes are passed at once", session.MaxPass))
	}
	capacity := uint64(minLoan)
	for capacity < bytes {
		capacity *= 2
	}
	if b.loans >= maxLoans || b.bytes+capacity > maxLoanBytes {
		return failed(fmt.Errorf("%d tensors of this device are on their way to others", b.loans))
	}
	x, err := b.take(capacity)
	if err != nil {
		return failed(err)
	}
	l.last++
	x.number, x.of = l.last, b
	b.loans++
	b.bytes += x.capacity
	l.loans[x.number] = x
	return answer{Draft: x.number, Bytes: bytes}, x.file
}

// take takes spare memory of this size, or makes some.
func (b *borrower) take(capacity uint64) (*loan, error) {
	for i, x := range slices.Backward(b.spare) {
		if x.capacity == capacity {
			b.spare = slices.Delete(b.spare, i, i+1)
			return x, nil
		}
	}
	f, err := newMemory(capacity)
	if err != nil {
		return nil, err
	}
	return &loan{file: f, capacity: capacity}, nil
}

// unpassed returns the loan of a process that it has not passed yet; nil: there is none.
func (l *lender) unpassed(pid uint64, number int) *loan {
	x := l.loans[number]
	if x == nil || x.of == nil || x.of != l.live[pid] || x.to != 0 {
		return nil
	}
	return x
}

// pass passes a loan to another process.
func (l *lender) pass(pid uint64, number int, name string, to, bytes uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.unpassed(pid, number)
	var err error
	switch {
	case x == nil:
		return fmt.Errorf("there is no memory %d", number)
	case l.live[to] == nil:
		err = errors.New("the session of that device has ended")
	case len(name) < minPassName || len(name) > maxPassName:
		err = fmt.Errorf("a name has %d to %d bytes", minPassName, maxPassName)
	case l.names[name] != nil:
		err = errors.New("the name exists")
	case bytes > x.capacity:
		err = fmt.Errorf("the memory has %d bytes", x.capacity)
	default:
		x.to, x.bytes = to, bytes
		l.names[name] = x
		return nil
	}
	l.end(x)
	return err
}

// drop ends a loan that is not passed.
func (l *lender) drop(pid uint64, number int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.unpassed(pid, number)
	if x == nil {
		return fmt.Errorf("there is no memory %d", number)
	}
	l.end(x)
	return nil
}

// take gives a process what was passed to it. The answer for a name of others is that for no name.
func (l *lender) take(pid uint64, name string) (answer, *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.names[name]
	if x == nil || x.to != pid {
		return failed(ErrNotPassed)
	}
	delete(l.names, name)
	x.taken = true
	return answer{Draft: x.number, Bytes: x.bytes}, x.file
}

// taken says that a process has read what was passed to it.
func (l *lender) taken(pid uint64, number int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.loans[number]
	if x == nil || !x.taken || x.to != pid {
		return fmt.Errorf("there is no memory %d", number)
	}
	l.end(x)
	return nil
}

// answer answers a question of a process. Nothing in it is trusted.
func (l *lender) answer(pid uint64, q *question) (answer, *os.File) {
	switch q.What {
	case "lend":
		return l.lend(pid, q.Bytes)
	case "pass":
		return failed(l.pass(pid, q.Draft, q.Name, q.To, q.Bytes))
	case "return":
		return failed(l.drop(pid, q.Draft))
	case "take":
		return l.take(pid, q.Name)
	}
	return failed(l.taken(pid, q.Draft))
}
