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
	// answerWait bounds a handshake.
	answerWait = 10 * time.Second
	// The first connection may come to the process of another session, which says so, or end before it has an answer.
	// Then the client connects again: so often if it is told to, and so often if the connection ends.
	maxAgain = 64
	maxTries = 3
	// A client tries to connect again after firstPause, then after twice the pause, up to lastPause.
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
func Dial(ctx context.Context, l Limits, dial Dialer, notice func(Notice)) (*Stream, error) {
	s := newStream(l)
	s.client = &client{dial: dial, notice: notice}
	for again, tries := 0, 0; ; {
		err := s.client.connect(ctx, s)
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

// connect opens a connection.
func (k *client) connect(ctx context.Context, s *Stream) error {
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
	verdict, received, err := greet(c, hello)
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
	default:
		err = ErrUnknown
	}
	if err != nil {
		_ = under(c).Close()
		return err
	}
	k.known = true
	s.mu.Lock()
	do := s.open(c, k.epoch, received)
	over := s.state.Err()
	if over != nil {
		_ = under(c).Close()
	}
	s.mu.Unlock()
	s.after(do)
	return over
}

func greet(c net.Conn, h Hello) (v Verdict, received uint64, err error) {
	_ = c.SetDeadline(time.Now().Add(answerWait))
	if _, err = c.Write(h.encode()); err != nil {
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
		err := k.connect(ctx, s)
		close(stop)
		cancel()
		if s.Err() != nil {
			return
		}
		k.notice(Notice{Up: err == nil, Attempt: attempt, Down: time.Since(began), Err: err})
		switch {
		case err == nil:
			return
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
