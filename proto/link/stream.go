// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Stream is one end of a stream, as a net.Conn. Its reads and writes wait while it has no connection. One goroutine at
// a time may read, any number may write. A deadline that passes ends the stream.
type Stream struct {
	limits Limits
	began  time.Time
	client *client // nil at a worker's end

	mu       sync.Mutex // guards what follows
	changed  sync.Cond
	waiting  int // writers who wait for room
	state    State
	sent     buffer // what State keeps of the bytes of this end
	conn     net.Conn
	inbox    [][]byte // bytes that have arrived and were not taken
	deadline *time.Timer
	sleeps   bool

	writing lock        // held while a record is written
	blocked atomic.Bool // a record is being written: the connection may have no room for it
	scratch [recordBytes + firstPart]byte
	due     chan struct{} // has an item if sendDue must send records

	reading lock // held while bytes are read
	// held says whether something should be sent before a reader waits, and for how long it may wait before; send sends
	// it. Both are nil if nothing is ever held.
	held   func() (time.Duration, bool)
	send   func()
	idle   atomic.Int64 // when the last read began or ended, in nanoseconds since began
	source net.Conn     // the connection that the next two belong to
	left   uint32       // bytes of the record that have not come
	head   [recordBytes]byte
	have   int // bytes of head

	done    chan struct{} // closed when the stream has ended
	endOnce sync.Once
}

const (
	// A record is written in two parts, so that the header and the first bytes fill one TLS record.
	firstPart = 16<<10 - recordBytes
	// A body of at least lentBytes is sent from the caller's memory, without a copy.
	lentBytes = 256 << 10
	// byeWait limits the time in which Close sends its last record, the bye.
	byeWait = 200 * time.Millisecond
	// Reading ahead stops when no bytes have arrived for aheadPause, and after aheadMost at the latest.
	aheadPause = 5 * time.Millisecond
	aheadMost  = 100 * time.Millisecond
	// roomPause is the interval at which a goroutine that reads only until a condition holds checks the condition.
	roomPause = 20 * time.Millisecond
)

func newStream(l Limits) *Stream {
	s := &Stream{limits: l, began: time.Now(), state: NewState(l, 0), writing: make(lock, 1), reading: make(lock, 1),
		due: make(chan struct{}, 1), done: make(chan struct{})}
	s.changed.L = &s.mu
	go s.watch()
	go s.sendDue()
	return s
}

// lock is a mutex, made with a capacity of 1. Waiting for it is waiting for the other end, and testing/synctest takes
// it as such.
type lock chan struct{}

func (l lock) Lock()   { l <- struct{}{} }
func (l lock) Unlock() { <-l }
func (l lock) TryLock() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *Stream) now() time.Duration { return time.Since(s.began) }

// step steps the state, and does what needs the lock only. The caller holds it, and calls after with the result once it
// has released it.
func (s *Stream) step(ev Event) Do {
	ev.At = s.now()
	do := s.state.Step(ev)
	if do.Freed > 0 {
		s.sent.free(do.Freed)
	}
	if do.Drop {
		s.drop()
	}
	if do.Wake {
		s.changed.Broadcast()
	}
	if s.state.Err() != nil {
		s.endOnce.Do(func() { close(s.done) })
	}
	return do
}

// drop closes the connection, without a wait.
func (s *Stream) drop() {
	if c := s.conn; c != nil {
		s.conn = nil
		_ = under(c).Close() // TLS would wait for its lock to say goodbye
	}
}

// after does what a step has asked for and needs no lock.
func (s *Stream) after(do Do) {
	if do.Dial && s.client != nil {
		go s.client.redial(s)
	}
	if do.Send {
		select {
		case s.due <- struct{}{}:
		default:
		}
	}
}

// event steps the state and does what it asks for.
func (s *Stream) event(ev Event) {
	s.mu.Lock()
	do := s.step(ev)
	s.mu.Unlock()
	s.after(do)
}

// lost notes that a connection has failed, unless it is not the stream's any more.
func (s *Stream) lost(c net.Conn) {
	s.mu.Lock()
	var do Do
	if s.conn == c {
		do = s.step(Event{Kind: Dropped})
	}
	s.mu.Unlock()
	s.after(do)
}

// watch lets time pass.
func (s *Stream) watch() {
	t := time.NewTicker(s.limits.Beat / 4)
	defer t.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-t.C:
			s.event(Event{Kind: Tick})
			s.readWhileIdle()
		}
	}
}

// sendDue sends what no writer sends: a reader must never wait until the other end reads.
func (s *Stream) sendDue() {
	for {
		select {
		case <-s.done:
			return
		case <-s.due:
			s.writing.Lock()
			s.sendAll()
			s.writing.Unlock()
		}
	}
}

// open makes c the stream's connection. received is what the other end has received. The caller holds the lock.
func (s *Stream) open(c net.Conn, epoch, received uint64) Do {
	s.conn = c
	setSleep(c, s.sleeps)
	return s.step(Event{Kind: Opened, Epoch: epoch, N: received})
}

// Write appends bytes to the stream. It returns when they are kept, which is before they have arrived. Of many bytes it
// copies only those that have not arrived at its return.
func (s *Stream) Write(p []byte) (n int, err error) {
	lends := len(p) >= lentBytes
	for len(p) > 0 && err == nil {
		var part []byte
		if part, err = s.put(p, lends); err == nil {
			n, p = n+len(part), p[len(part):]
		}
	}
	if lends {
		s.writing.Lock() // no sender uses the caller's memory now
		s.mu.Lock()
		s.sent.own()
		s.mu.Unlock()
		s.writing.Unlock()
		s.after(Do{Send: true}) // what others have written meanwhile
	}
	return n, err
}

// put appends some bytes of p to the stream, and returns them.
func (s *Stream) put(p []byte, lend bool) ([]byte, error) {
	s.mu.Lock()
	s.waitFor(s.hasRoom)
	if err := s.writeErr(); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	part := p[:min(uint64(len(p)), s.state.Room(), maxRecord)]
	if lend {
		s.sent.lend(part)
	} else {
		s.sent.append(part)
	}
	do := s.step(Event{Kind: Wrote, N: uint64(len(part))})
	s.mu.Unlock()
	if do.Send && !s.trySend() {
		s.after(do) // another goroutine sends
	}
	return part, nil
}

func (s *Stream) hasRoom() bool { return s.state.Room() > 0 }

// waitFor waits for a condition that the other end's records make true, or until the stream has ended. The caller holds
// the lock. If no goroutine reads, the caller reads.
func (s *Stream) waitFor(condition func() bool) {
	for s.state.Err() == nil && !condition() {
		if s.conn == nil || !s.reading.TryLock() {
			s.waiting++
			s.changed.Wait()
			s.waiting--
			continue
		}
		s.mu.Unlock()
		s.readAhead(roomPause, condition)
		s.reading.Unlock()
		s.mu.Lock()
	}
}

func (s *Stream) writeErr() error {
	switch err := s.state.Err(); {
	case err != nil:
		return err
	case s.state.closed:
		return io.ErrClosedPipe
	}
	return nil
}

// trySend sends the records that are due, unless another goroutine sends.
func (s *Stream) trySend() bool {
	if !s.writing.TryLock() {
		return false
	}
	defer s.writing.Unlock()
	s.sendAll()
	return true
}

func (s *Stream) sendAll() {
	for {
		s.mu.Lock()
		r, at, ok := s.state.Next(s.now(), func(at uint64) int { return len(s.sent.from(at)) })
		c := s.conn
		var part []byte
		if ok && r.length > 0 {
			part = s.sent.from(at)[:r.length]
			s.sent.pin(at)
			if s.waiting > 0 { // for the room that the record has made
				s.changed.Broadcast()
			}
		}
		s.mu.Unlock()
		if !ok {
			return
		}
		s.blocked.Store(true)
		err := s.write(c, r, part)
		s.blocked.Store(false)
		if err != nil {
			s.lost(c)
			return
		}
	}
}

func (s *Stream) write(c net.Conn, r record, part []byte) error {
	r.encode(s.scratch[:])
	n := copy(s.scratch[recordBytes:], part)
	if n == len(part) {
		_, err := c.Write(s.scratch[:recordBytes+n])
		return err
	}
	below, corks := under(c).(corker)
	if corks {
		below.Cork()
	}
	_, err := c.Write(s.scratch[:recordBytes+n])
	if err == nil {
		_, err = c.Write(part[n:])
	}
	if corks {
		err = errors.Join(err, below.Uncork())
	}
	return err
}

// Read reads the next bytes of the other end's stream.
func (s *Stream) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.idle.Store(int64(s.now()))
	for over := false; !over; {
		var late bool
		if n, over, late, err = s.readOnce(p, s.patience()); late {
			s.send()
		}
	}
	s.idle.Store(int64(s.now()))
	return n, err
}

// forever is the patience of a read that nothing waits for.
const forever = time.Duration(-1)

// patience is how long the next read may wait before something must be sent. If reads do not wait in the kernel, it is
// sent now.
func (s *Stream) patience() time.Duration {
	if s.held == nil {
		return forever
	}
	d, held := s.held()
	if held && s.sleeping() == nil {
		s.send()
		held = false
	}
	if !held {
		return forever
	}
	return d
}

// readOnce reads once. over: a read has ended, with n bytes or an error. late: nothing has come for the time of
// patience.
func (s *Stream) readOnce(p []byte, patience time.Duration) (n int, over, late bool, err error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	c, n, err := s.await(p)
	if c == nil {
		return n, true, false, err
	}
	z, ok := under(c).(sleeper)
	read := func() (int, error) { return s.receive(c, p, true) }
	if patience == forever || !ok {
		n, err = read()
	} else {
		n, err = z.ReadWithin(patience, read)
		late = n == 0 && errors.Is(err, os.ErrDeadlineExceeded)
	}
	if n == 0 && err != nil && !late {
		s.lost(c)
	}
	return n, n > 0, late, nil
}

// OnWait makes a reader call send, without a lock, when it would wait for longer than held allows, which also says
// whether something is held. It must be called before the first read.
func (s *Stream) OnWait(held func() (time.Duration, bool), send func()) { s.held, s.send = held, send }

// await waits for a connection, which it returns, or takes bytes that were read ahead.
func (s *Stream) await(p []byte) (net.Conn, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case len(s.inbox) > 0:
			n := copy(p, s.inbox[0])
			if s.inbox[0] = s.inbox[0][n:]; len(s.inbox[0]) == 0 {
				s.inbox = s.inbox[1:]
			}
			s.after(s.step(Event{Kind: Took, N: uint64(n)}))
			return nil, n, nil
		case s.state.ended:
			return nil, 0, io.EOF
		case s.state.Err() != nil:
			return nil, 0, s.state.Err()
		case s.conn != nil:
			return s.conn, 0, nil
		}
		s.changed.Wait()
	}
}

// receive reads from a connection once: a part of a record's header, or bytes of the stream, whose number it returns.
// take: the reader takes the bytes. The caller holds reading.
func (s *Stream) receive(c net.Conn, p []byte, take bool) (int, error) {
	if s.source != c {
		s.source, s.left, s.have = c, 0, 0
	}
	if s.left == 0 {
		return 0, s.receiveHead(c)
	}
	n, err := c.Read(p[:min(len(p), int(s.left))])
	if n == 0 {
		return 0, err
	}
	s.mu.Lock()
	if s.conn != c { // the bytes come again on another connection
		s.mu.Unlock()
		return 0, nil
	}
	s.left -= uint32(n)
	do := s.step(Event{Kind: Arrived, N: uint64(n)})
	if take {
		do = s.step(Event{Kind: Took, N: uint64(n)})
	} else {
		s.inbox = append(s.inbox, bytes.Clone(p[:n]))
	}
	s.mu.Unlock()
	s.after(do)
	return n, nil
}

func (s *Stream) receiveHead(c net.Conn) error {
	n, err := c.Read(s.head[s.have:])
	if s.have += n; s.have < recordBytes {
		return err
	}
	s.have = 0
	r, err := decodeRecord(s.head[:])
	ev := Event{Kind: Got, Record: r}
	if err != nil {
		ev = Event{Kind: Finished, Err: err}
	}
	s.left = r.length
	s.mu.Lock()
	var do Do
	if s.conn == c {
		ev.Full = s.blocked.Load() || s.state.Room() == 0
		do = s.step(ev)
	}
	s.mu.Unlock()
	s.after(do)
	return nil
}

// readWhileIdle reads what has come while the reader is busy elsewhere, so that pings have answers.
func (s *Stream) readWhileIdle() {
	if s.now()-time.Duration(s.idle.Load()) < s.limits.Beat || !s.reading.TryLock() {
		return
	}
	defer s.reading.Unlock()
	s.readAhead(aheadPause, func() bool { return false })
}

// readAhead reads into the inbox until nothing comes for a pause, or for long enough, or until enough says so, which is
// called with the lock. The caller holds reading.
func (s *Stream) readAhead(pause time.Duration, enough func() bool) {
	s.mu.Lock()
	c, sleeps := s.conn, s.sleeps
	s.mu.Unlock()
	if c == nil {
		return
	}
	setSleep(c, false)
	defer setSleep(c, sleeps)
	p := make([]byte, chunkBytes)
	for end := s.now() + aheadMost; s.now() < end && s.wantsMore(enough); {
		_ = c.SetReadDeadline(time.Now().Add(pause))
		if n, err := s.receive(c, p, false); n == 0 && err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				s.lost(c)
			}
			break
		}
	}
	_ = c.SetReadDeadline(time.Time{})
}

// wantsMore says whether more should be read ahead of the reader.
func (s *Stream) wantsMore(enough func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.received-s.state.taken <= 2*s.limits.Window && !enough()
}

// CloseWrite ends this end's bytes.
func (s *Stream) CloseWrite() error {
	s.event(Event{Kind: Closed})
	return nil
}

// Close ends the stream. If it has a connection, the other end is told so.
func (s *Stream) Close() error {
	s.mu.Lock()
	if c := s.conn; c != nil {
		_ = c.SetWriteDeadline(time.Now().Add(byeWait))
	}
	s.mu.Unlock()
	s.event(Event{Kind: Closed})
	select {
	case s.writing <- struct{}{}: // a goroutine that is sending has the same deadline
		s.sendAll()
		s.writing.Unlock()
	case <-time.After(byeWait):
	}
	s.End(net.ErrClosed)
	return nil
}

// End ends the stream with an error, which reads and writes return.
func (s *Stream) End(err error) { s.event(Event{Kind: Finished, Err: err}) }

// Done is closed when the stream has ended.
func (s *Stream) Done() <-chan struct{} { return s.done }

// NetConn returns the connection that the stream has now, nil if it has none.
func (s *Stream) NetConn() net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// SetDeadline ends the stream at a time, with os.ErrDeadlineExceeded; the zero time: not.
func (s *Stream) SetDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deadline != nil {
		s.deadline.Stop()
		s.deadline = nil
	}
	if !t.IsZero() {
		s.deadline = time.AfterFunc(time.Until(t), func() { s.End(os.ErrDeadlineExceeded) })
	}
	return nil
}

// SetReadDeadline and SetWriteDeadline are SetDeadline.
func (s *Stream) SetReadDeadline(t time.Time) error  { return s.SetDeadline(t) }
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.SetDeadline(t) }

// LocalAddr and RemoteAddr are those of the current connection.
func (s *Stream) LocalAddr() net.Addr  { return s.address(net.Conn.LocalAddr) }
func (s *Stream) RemoteAddr() net.Addr { return s.address(net.Conn.RemoteAddr) }

func (s *Stream) address(of func(net.Conn) net.Addr) net.Addr {
	if c := s.NetConn(); c != nil {
		return of(c)
	}
	return nowhere{}
}

type nowhere struct{}

func (nowhere) Network() string { return "link" }
func (nowhere) String() string  { return "not connected" }

// Ahead returns how many bytes have arrived that no reader has taken.
func (s *Stream) Ahead() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.received - s.state.taken
}

// Err returns the reason of the stream's end; nil while the stream lives.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Err()
}
