// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	protobuf "google.golang.org/protobuf/proto"
)

// maxDeferred bounds the frames that are deferred together.
const maxDeferred = 16

// sender is the sending half of a Conn.
type sender struct {
	sync.Mutex
	err    error // of an earlier write, which may have ended inside a frame
	head   []byte
	joined []byte
	held   []byte      // frames to send with the next one
	holds  atomic.Bool // held is not empty

	deferred int       // of the held frames, the deferred ones
	since    time.Time // the time of the first
	bufs     net.Buffers
	store    [3][]byte
	batches  batchCache
}

// Send writes one frame, in one system call where the platform can. meta may be nil, body empty. Send does not use body
// after its return. Frames of several goroutines never mix.
func (c *Conn) Send(t Type, seq uint64, meta protobuf.Message, body []byte) error {
	s := &c.send
	s.Lock()
	defer s.Unlock()
	return s.send(c.c, t, seq, meta, body)
}

// send sends a frame after the held ones. The caller holds the lock.
func (s *sender) send(c net.Conn, t Type, seq uint64, meta protobuf.Message, body []byte) error {
	head, pad, err := s.frame(t, seq, meta, body)
	if err != nil {
		return err
	}
	if s.holds.Swap(false) {
		head = append(s.held, head...)
		s.held, s.deferred = head[:0], 0
	}
	s.err = s.write(c, head, body, pad)
	return s.err
}

// Frame returns the bytes of a frame without a body.
func Frame(t Type, seq uint64, meta protobuf.Message) ([]byte, error) {
	head, _, err := new(sender).frame(t, seq, meta, nil)
	return head, err
}

// Defer is Hold for a frame that may wait for the linger time, or for maxDeferred others, but not longer; see Linger.
func (c *Conn) Defer(t Type, seq uint64, meta protobuf.Message) error {
	if c.linger == 0 {
		return c.Send(t, seq, meta, nil)
	}
	s := &c.send
	s.Lock()
	defer s.Unlock()
	now := time.Now()
	if s.deferred == 0 {
		s.since = now
	}
	if s.deferred++; s.deferred > maxDeferred || now.Sub(s.since) > c.linger {
		return s.send(c.c, t, seq, meta, nil)
	}
	return s.hold(t, seq, meta, nil)
}

// Hold queues a frame with a short body, which it copies. The frame is sent with the next Send, at a Flush, or when
// Next has to wait: the last unless FlushesAlone was called.
func (c *Conn) Hold(t Type, seq uint64, meta protobuf.Message, body []byte) error {
	s := &c.send
	s.Lock()
	defer s.Unlock()
	return s.hold(t, seq, meta, body)
}

func (s *sender) hold(t Type, seq uint64, meta protobuf.Message, body []byte) error {
	head, pad, err := s.frame(t, seq, meta, body)
	if err == nil {
		s.held = append(append(append(s.held, head...), body...), pad...)
		s.holds.Store(true)
	}
	return err
}

// FlushesAlone says that this end reads and sends in different goroutines, and calls Flush when it has nothing to send
// for a while. It must be called before the first Next.
func (c *Conn) FlushesAlone() { c.flushesAlone = true }

// Linger makes a Next that has to wait send the held frames only when nothing has come for a time, if it sleeps (see
// Sleep): one message then takes the place of several. It must be called before the first Next.
func (c *Conn) Linger(d time.Duration) { c.linger = d }

// Flush sends the held frames, and reports whether there were any.
func (c *Conn) Flush() (sent bool, err error) { return c.send.flush(c.c) }

// flush sends the held frames.
func (s *sender) flush(c net.Conn) (sent bool, err error) {
	if !s.holds.Load() {
		return false, nil
	}
	s.Lock()
	defer s.Unlock()
	if s.err == nil && s.holds.Swap(false) {
		s.err = s.write(c, s.held, nil, nil)
		s.held, s.deferred = s.held[:0], 0
		sent = true
	}
	return sent, s.err
}

// SendFile sends a frame without a body, with a descriptor that the kernel duplicates for the peer. After ErrNoFile the
// stream is as before.
func (c *Conn) SendFile(t Type, seq uint64, meta protobuf.Message, fd int) error {
	s := &c.send
	s.Lock()
	defer s.Unlock()
	head, _, err := s.frame(t, seq, meta, nil)
	if err != nil {
		return err
	}
	n, err := writeFile(c.c, head, fd)
	switch {
	case n == 0 && err != nil:
		return fmt.Errorf("%w: %w", ErrNoFile, err)
	case n < len(head): // the descriptor went with the first byte
		s.err = s.write(c.c, head[n:], nil, nil)
	}
	return s.err
}

// frame encodes the bytes before and after a frame's body. An error leaves the stream as it was.
func (s *sender) frame(t Type, seq uint64, meta protobuf.Message, body []byte) (head, pad []byte, err error) {
	if s.err != nil {
		return nil, nil, s.err
	}
	if t == 0 || t >= numTypes {
		return nil, nil, fmt.Errorf("%w: %v", ErrFrameType, t)
	}
	head = append(s.head[:0], make([]byte, headerBytes)...)
	if meta != nil {
		if head, err = (protobuf.MarshalOptions{}).MarshalAppend(head, meta); err != nil {
			return nil, nil, fmt.Errorf("transport: %v: %w", t, err)
		}
	}
	metaBytes := len(head) - headerBytes
	if metaBytes > MaxMeta {
		return nil, nil, over(t, "metadata", uint64(metaBytes), MaxMeta)
	}
	bodyBytes := uint64(0)
	if len(body) > 0 {
		prefix, err := s.batches.prefix(body)
		if err != nil {
			return nil, nil, err
		}
		head = append(head, prefix...)
		pad = zeros[:padding(len(body))]
		if bodyBytes = uint64(len(prefix) + len(body) + len(pad)); bodyBytes > MaxBody {
			return nil, nil, over(t, "body", bodyBytes, MaxBody)
		}
	}
	binary.LittleEndian.PutUint32(head, magic)
	head[4], head[5] = Version, byte(t)
	binary.LittleEndian.PutUint64(head[8:], seq)
	binary.LittleEndian.PutUint64(head[16:], bodyBytes)
	binary.LittleEndian.PutUint32(head[24:], uint32(metaBytes))
	if cap(head) <= keepMeta {
		s.head = head
	}
	return head, pad, nil
}

func (s *sender) write(c net.Conn, head, body, pad []byte) error {
	var err error
	switch {
	case len(body) == 0:
		_, err = c.Write(head)
	case len(head)+len(body) <= joinBytes:
		s.joined = append(append(append(s.joined[:0], head...), body...), pad...)
		_, err = c.Write(s.joined)
	default:
		s.store = [3][]byte{head, body, pad}
		s.bufs = s.store[:]
		_, err = s.bufs.WriteTo(c)
		s.store = [3][]byte{}
	}
	if err != nil {
		return fmt.Errorf("transport: send: %w", err)
	}
	return nil
}

func over(t Type, what string, n, limit uint64) error {
	return fmt.Errorf("%w: %v has %d bytes of %s, at most %d are allowed", ErrFrameLimit, t, n, what, limit)
}
