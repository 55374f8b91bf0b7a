// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

const (
	// answerWait limits the time of a handshake.
	answerWait = 10 * time.Second
	// The first connection may reach the process of another session, which tells the client to connect again, or which
	// ends before it has answered. The client connects again at most maxAgain times in the first case, and at most
	// maxTries times in the second: so many sessions may end while this one begins.
	maxAgain = 64
	maxTries = 8
	// The pause before a new attempt is firstPause, and doubles with each attempt up to lastPause.
	firstPause = 20 * time.Millisecond
	lastPause  = 2 * time.Second
)

// Dialer opens a connection to the worker for the stream.
type Dialer func(ctx context.Context) (net.Conn, error)

// client is what a client's end has besides.
type client struct {
	dial   Dialer
	epoch  uint64 // of the last attempt; used by one goroutine at a time
	known  bool   // the worker knows the stream
	first  []byte // that go with the next hello; empty: none, or the worker may have received them
	notice func(Notice)
}

// Notice is news of a stream's connection.
type Notice struct {
	Up      bool          // a connection is back; otherwise it has ended, or an attempt to open one has failed
	Attempt int           // number of the attempt, from 1 on; 0: the connection has ended
	Down    time.Duration // since the connection ended
	Err     error         // of the attempt
}

// ErrAgain means that the connection has come to the process of another session.
var ErrAgain = errors.New("link: the connection has come to another session")

// Dial opens a stream with its first connection. The stream opens later connections with dial, and tells notice, which
// must not block, what becomes of them.
//
// first are the first bytes of the stream, at most MaxFirst. They go with the hello, so an answer to them takes as many
// round trips as the answer to the hello.
func Dial(ctx context.Context, l Limits, dial Dialer, first []byte, notice func(Notice)) (*Stream, error) {
	if most := min(l.Window, MaxFirst); uint64(len(first)) > most {
		return nil, fmt.Errorf("link: there are %d first bytes, and at most %d can go with a hello", len(first), most)
	}
	s := newStream(l)
	s.client = &client{dial: dial, first: first, notice: notice}
	if _, err := s.Write(first); err != nil { // kept until there is a connection
		return nil, err
	}
	for again, tries := 0, 0; ; {
		err := s.client.connect(ctx, s, func() {})
		switch {
		case err == nil:
			return s, nil
		case errors.Is(err, ErrAgain) && again < maxAgain:
			again++
		case hasEnded(err) && tries < maxTries:
			tries++
		default:
			s.End(err)
			return nil, err
		}
	}
}

// hasEnded says whether a connection has only ended.
func hasEnded(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// connect opens a connection. It calls up before the connection carries the stream.
func (k *client) connect(ctx context.Context, s *Stream, up func()) error {
	c, err := k.dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = under(c).Close() })
	defer stop()
	k.epoch++
	s.mu.Lock()
	hello := Hello{Fresh: !k.known, Epoch: k.epoch, Received: s.state.received}
	s.mu.Unlock()
	first := k.first
	k.first = nil
	verdict, received, err := greet(c, hello, first)
	if err == nil && len(first) > 0 && received != 0 {
		err = fmt.Errorf("%w: it has received %d bytes before the first", ErrProtocol, received)
	}
	if err != nil {
		_ = under(c).Close()
		return err
	}
	switch verdict {
	case Accepted:
	case Again:
		err = ErrAgain
	case Replaced:
		err = ErrReplaced
	case Full:
		err = ErrFull
	case Stopping:
		err = ErrStopping
	case OtherVersion:
		err = ErrVersion
	default:
		err = ErrUnknown
	}
	if err != nil {
		k.first = first // the worker has kept nothing
		_ = under(c).Close()
		return err
	}
	k.known = true
	up()
	s.mu.Lock()
	do := s.open(c, k.epoch, received+uint64(len(first)))
	over := s.state.Err()
	if over != nil {
		_ = under(c).Close()
	}
	s.mu.Unlock()
	s.after(do)
	return over
}

// greet sends a hello, with the first bytes of the stream if there are any, and reads the answer.
func greet(c net.Conn, h Hello, first []byte) (v Verdict, received uint64, err error) {
	_ = c.SetDeadline(time.Now().Add(answerWait))
	message := h.encode()
	if len(first) > 0 {
		message = append(message, make([]byte, recordBytes)...)
		record{kind: data, length: uint32(len(first))}.encode(message[helloBytes:])
		message = append(message, first...)
	}
	if _, err = c.Write(message); err != nil {
		return 0, 0, err
	}
	answer := make([]byte, helloBytes)
	if _, err = io.ReadFull(c, answer); err != nil {
		return 0, 0, fmt.Errorf("link: the worker did not answer: %w", err)
	}
	_ = c.SetDeadline(time.Time{})
	return decodeAnswer(answer)
}

// redial opens the next connection. It ends with a connection, or with the stream.
func (k *client) redial(s *Stream) {
	began, pause := time.Now(), firstPause
	k.notice(Notice{})
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.Background(), answerWait)
		stop := make(chan struct{})
		go func() {
			select {
			case <-s.done:
				cancel()
			case <-stop:
			}
		}()
		err := k.connect(ctx, s, func() {
			k.notice(Notice{Up: true, Attempt: attempt, Down: time.Since(began)})
		})
		close(stop)
		cancel()
		if err == nil || s.Err() != nil {
			return
		}
		k.notice(Notice{Attempt: attempt, Down: time.Since(began), Err: err})
		switch {
		case errors.Is(err, ErrUnknown), errors.Is(err, ErrAgain):
			s.End(ErrUnknown)
			return
		case errors.Is(err, ErrReplaced), errors.Is(err, ErrProtocol), errors.Is(err, ErrVersion):
			s.End(err)
			return
		}
		select {
		case <-s.done:
			return
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		}
	}
}
