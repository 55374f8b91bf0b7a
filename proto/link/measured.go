// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

// Measured is what a stream knows of its network.
type Measured struct {
	RTT         float64 // seconds, see State.RTT
	Rate        float64 // bytes per second that were sent, see State.Rate
	Connections uint64  // that the stream has had
	UnderWay    uint64  // bytes that were written and that the other end has not confirmed
}

// Measured returns what the stream knows of its network.
func (s *Stream) Measured() Measured {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Measured{s.state.RTT(), s.state.Rate(), s.state.epoch, s.state.written - s.state.acked}
}

// RTT returns the time of a round trip in seconds. It waits for the first measurement, which begins with the
// connection, or for the stream's end.
func (s *Stream) RTT() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waitFor(func() bool { return s.state.trips.n > 0 })
	return s.state.RTT()
}
