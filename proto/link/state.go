// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

import (
	"fmt"
	"slices"
	"time"
)

// State is one end of a stream. Step gives it an event; Next gives the next record that its connection has to send.
// Times are those since the stream began. The bytes themselves are kept by the caller.
type State struct {
	limits Limits

	// Bytes that this end sends: those up to acked were taken by the other end's reader, those up to next were sent on
	// this connection.
	acked, next, written uint64
	closed, saidBye      bool // this end writes no more; the connection has a bye

	// Bytes that the other end sends: those up to received have arrived, those up to taken were taken by the reader, and
	// the other end knows of those up to told.
	received, taken, told uint64
	ended                 bool // the other end writes no more

	up        bool
	epoch     uint64        // of the newest connection
	downSince time.Duration // if not up
	heard     time.Duration // when the last bytes came
	pinged    time.Duration // when the last ping was sent
	pinging   bool          // it has no answer yet
	pingDue   bool
	pongDue   bool
	trips     recent // seconds of round trips

	// While bytes are under way: since when, and how many were taken then.
	busySince time.Duration
	busyFrom  uint64
	rates     recent // bytes per second

	over error // why the stream has ended
}

// recent holds the last samples of something.
type recent struct {
	samples [8]float64
	n       int
}

func (r *recent) add(x float64) {
	r.samples[r.n%len(r.samples)] = x
	r.n++
}

func (r *recent) known() []float64 { return r.samples[:min(r.n, len(r.samples))] }

// rateWindow is the time over which a rate is measured: short bursts fill buffers only.
const rateWindow = 100 * time.Millisecond

// RTT is the time of a round trip in seconds, the least of the recent ones; 0 if it is not known.
func (s *State) RTT() float64 {
	if s.trips.n == 0 {
		return 0
	}
	return slices.Min(s.trips.known())
}

// Rate is how many bytes per second the other end's reader has taken, the most of the recent rates; 0 if it is not
// known. Only times count in which this end had more to send than the network took.
func (s *State) Rate() float64 {
	if s.rates.n == 0 {
		return 0
	}
	return slices.Max(s.rates.known())
}

// NewState returns a stream without a connection. Its grace time begins now.
func NewState(l Limits, now time.Duration) State { return State{limits: l, downSince: now} }

// Kind is the kind of an event.
type Kind uint8

const (
	Wrote    Kind = iota // N bytes were written at this end
	Took                 // the reader at this end took N bytes that had arrived
	Arrived              // N bytes of the other end's stream arrived
	Got                  // the header of a record arrived
	Opened               // a connection of the epoch Epoch is up; the other end has received N bytes
	Dropped              // the connection has ended
	Closed               // this end writes no more
	Tick                 // time passes
	Finished             // the stream ends, because of Err
)

// Event is an event of a stream.
type Event struct {
	Kind   Kind
	At     time.Duration
	N      uint64
	Epoch  uint64
	Record record
	Full   bool // of Got: the connection or the window has no room for what this end has to send
	Err    error
}

// Do says what the caller has to do after an event.
type Do struct {
	Send  bool   // Next has a record
	Drop  bool   // close the connection; Dropped need not follow
	Dial  bool   // a client must open a connection
	Freed uint64 // the bytes before this offset are not needed any more; 0: no news
	Wake  bool   // writers and readers may go on
}

// Step takes an event.
func (s *State) Step(ev Event) (do Do) {
	if s.over != nil {
		return Do{}
	}
	switch ev.Kind {
	case Wrote:
		if s.acked == s.written {
			s.busySince, s.busyFrom = ev.At, s.acked
		}
		s.written += ev.N
		do.Send = s.up
	case Took:
		s.taken += ev.N
		do.Send = s.up && s.ackDue()
	case Arrived:
		s.received += ev.N
		s.heard = ev.At
	case Got:
		return s.got(ev)
	case Opened:
		return s.opened(ev)
	case Dropped:
		return s.dropped(ev.At)
	case Closed:
		s.closed = true
		do.Send = s.up
	case Tick:
		return s.tick(ev.At)
	case Finished:
		return s.finish(ev.Err)
	}
	return do
}

// Room is how many bytes may be written now. While there is a connection, few may wait for it: what is written next
// comes after them.
func (s *State) Room() uint64 {
	room := s.limits.Window - (s.written - s.acked)
	if s.up {
		room = min(room, maxUnsent-min(maxUnsent, s.written-s.next))
	}
	return room
}

// Resumes says whether the stream can go on with another end that has received so many bytes.
func (s *State) Resumes(received uint64) bool { return s.acked <= received && received <= s.written }

// Err returns the reason of the stream's end; nil while the stream lives.
func (s *State) Err() error { return s.over }

// ackDue says whether the other end should be told what was taken, although there may be nothing else to send.
func (s *State) ackDue() bool { return s.taken-s.told >= min(s.limits.Window/8, 1<<20) }

func (s *State) finish(err error) Do {
	s.over, s.up = err, false
	return Do{Drop: true, Freed: s.written, Wake: true}
}

func (s *State) opened(ev Event) Do {
	if !s.Resumes(ev.N) || ev.Epoch <= s.epoch {
		return s.finish(fmt.Errorf("%w: it has received %d bytes, of %d to %d", ErrProtocol, ev.N, s.acked, s.written))
	}
	s.epoch, s.up, s.saidBye, s.pinging, s.pongDue = ev.Epoch, true, false, false, false
	s.next, s.heard, s.pinged, s.pingDue = ev.N, ev.At, ev.At, true
	return Do{Send: true, Wake: true}
}

func (s *State) dropped(now time.Duration) Do {
	if !s.up {
		return Do{}
	}
	s.up, s.downSince = false, now
	if s.ended { // the other end has nothing more to say, and will not come back
		return s.finish(ErrUnknown)
	}
	return Do{Drop: true, Dial: true, Wake: true}
}

func (s *State) got(ev Event) (do Do) {
	r := ev.Record
	s.heard = ev.At
	if r.taken > s.next || s.ended && r.length > 0 { // it cannot have taken what was not sent
		return s.finish(fmt.Errorf("%w: it has taken %d bytes of %d, and sends %d", ErrProtocol, r.taken, s.next,
			r.length))
	}
	if r.taken > s.acked {
		s.acked = r.taken
		if took := ev.At - s.busySince; took >= rateWindow {
			if ev.Full {
				s.rates.add(float64(s.acked-s.busyFrom) / took.Seconds())
			}
			s.busySince, s.busyFrom = ev.At, s.acked
		}
		do.Freed, do.Wake = s.acked, true
	}
	switch r.kind {
	case ping:
		s.pongDue, do.Send = true, true
	case pong:
		s.ponged(ev.At)
		do.Wake = true
	case bye:
		s.ended, do.Wake = true, true
	}
	return do
}

// ponged notes the time that a ping and its answer took.
func (s *State) ponged(now time.Duration) {
	if !s.pinging {
		return
	}
	s.pinging = false
	s.trips.add((now - s.pinged).Seconds())
}

func (s *State) tick(now time.Duration) Do {
	switch {
	case !s.up && now-s.downSince >= s.limits.Grace:
		return s.finish(fmt.Errorf("%w of %v", ErrSilent, s.limits.Grace))
	case !s.up:
		return Do{}
	case now-s.heard >= s.limits.Silence:
		return s.dropped(now)
	case now-s.pinged >= s.limits.Beat && !s.pinging:
		s.pingDue = true
		return Do{Send: true}
	}
	return Do{}
}

// Next returns the next record to send on the connection. Its bytes are those of the stream from the offset on.
// contiguous is how many bytes of the stream lie together from an offset on.
func (s *State) Next(now time.Duration, contiguous func(from uint64) int) (r record, from uint64, ok bool) {
	r.taken = s.taken
	switch {
	case !s.up:
		return r, 0, false
	case s.pongDue:
		s.pongDue, r.kind = false, pong
	case s.pingDue:
		s.pingDue, s.pinging, s.pinged, r.kind = false, true, now, ping
	case s.next < s.written:
		from = s.next
		r.kind, r.length = data, uint32(min(s.written-from, maxRecord, uint64(contiguous(from))))
		s.next += uint64(r.length)
	case s.closed && !s.saidBye:
		s.saidBye, r.kind = true, bye
	case s.ackDue():
		r.kind = data
	default:
		return r, 0, false
	}
	s.told = s.taken
	return r, from, true
}
