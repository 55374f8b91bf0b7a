// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

import (
	"errors"
	"io"
	"net"
	"time"
)

const (
	// refuseWait is how long a client may take to read that it is refused, and to close.
	refuseWait = time.Second
	// maxRefused bounds what is read of a client that is refused: its first record.
	maxRefused = MaxFirst + recordBytes
)

// ReadHello reads the hello of a connection. The caller bounds the time. A client of another version is refused.
func ReadHello(c net.Conn) (Hello, error) {
	b := make([]byte, helloBytes)
	if _, err := io.ReadFull(c, b); err != nil {
		return Hello{}, err
	}
	h, err := decodeHello(b)
	if errors.Is(err, ErrVersion) {
		_ = Refuse(c, OtherVersion)
	}
	return h, err
}

// Refuse answers a connection that gets no stream, and closes it once the client has closed it, or a moment later: a
// socket that is closed with bytes of the client unread would take the answer back.
func Refuse(c net.Conn, v Verdict) error {
	_ = c.SetDeadline(time.Now().Add(refuseWait))
	_, err := c.Write(encodeAnswer(v, 0))
	if err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(c, maxRefused))
	}
	_ = c.Close()
	return err
}

// NewWorker returns a worker's end of a stream, which gets its connections by Attach.
func NewWorker(l Limits) *Stream { return newStream(l) }

// Attach gives the stream the connection of a client that has proved to be its owner. It takes the place of the
// connection that the stream has.
func (s *Stream) Attach(c net.Conn, h Hello) error {
	s.mu.Lock()
	switch {
	case s.state.Err() == nil && h.Epoch <= s.state.epoch:
		s.mu.Unlock()
		return Refuse(c, Replaced)
	case s.state.Err() != nil, !s.state.Resumes(h.Received):
		s.mu.Unlock()
		return Refuse(c, Unknown)
	}
	// No bytes of the connection before count from here on: the client sends what comes after received again.
	do := s.step(Event{Kind: Dropped})
	received := s.state.received
	s.mu.Unlock()
	s.after(do)
	_ = c.SetWriteDeadline(time.Now().Add(answerWait))
	if _, err := c.Write(encodeAnswer(Accepted, received)); err != nil {
		_ = under(c).Close()
		return err
	}
	_ = c.SetDeadline(time.Time{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil || s.state.Err() != nil { // another one was faster
		_ = under(c).Close()
		return s.state.Err()
	}
	s.after(s.open(c, h.Epoch, h.Received))
	return nil
}
