// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/tests/hostile/mutate"
	"github.com/mycelya/mycelya/tests/hostile/peer"
	"github.com/mycelya/mycelya/tests/remote"
)

// Bounds of waits. A session that computes with huge sizes is ended by its limit of processor time.
const (
	answerWait = 12 * cpuSeconds * time.Second
	endWait    = 12 * cpuSeconds * time.Second
)

const (
	// scenarios is the most that a session has.
	scenarios = 40
	// In each scenario of a wild session, one of so many is changed so that the session usually ends.
	wildest, mildest = 1, 24
)

// counts is what became of frames and sessions.
type counts struct {
	frames, changed     int // frames that the worker has taken, and those of them that differ from an honest client's
	programs            int // changed programs that obey the rules
	sessions            int
	refused, cut, whole int // sessions that ended with a reason, that this end cut, and without an error
	signals, codes      int // processes that ended by a signal, or with a code
	answers, failures   int // all answers, and calls that failed
}

func (c *counts) add(o counts) {
	for _, p := range [][2]*int{
		{&c.frames, &o.frames}, {&c.changed, &o.changed}, {&c.programs, &o.programs}, {&c.sessions, &o.sessions},
		{&c.refused, &o.refused}, {&c.cut, &o.cut}, {&c.whole, &o.whole}, {&c.signals, &o.signals}, {&c.codes, &o.codes},
		{&c.answers, &o.answers}, {&c.failures, &o.failures},
	} {
		*p[0] += *p[1]
	}
}

// attack is one session of the hostile client.
type attack struct {
	w    *remote.Worker
	s    *stream
	r    *rand.Rand
	name string
	link *link.Stream
	c    *transport.Conn
	rate int // one of so many scenarios is wild

	counts
	pending, pendingChanged, pendingPrograms int // since the last answer to a Sync
	log                                      bytes.Buffer
}

// errEnded means that the session has ended as it should.
var errEnded = errors.New("ended")

// session runs the session with a number. An error is a defect of the worker.
func session(w *remote.Worker, corpus []example, seed, number uint64) (counts, error) {
	r := rand.New(rand.NewPCG(seed, number))
	a := &attack{w: w, s: newStream(r, corpus), r: r, name: transport.NewSessionName()}
	a.rate, a.sessions = wildest+r.IntN(mildest-wildest+1), 1
	err := a.run()
	if a.link != nil {
		_ = a.link.Close()
	}
	if errors.Is(err, errEnded) {
		err = nil
	}
	if err == nil {
		err = a.reported()
	}
	if err != nil {
		err = fmt.Errorf("session %d of seed %d: %w%s", number, seed, err, a.keep(seed, number))
	}
	return a.counts, err
}

// keep writes the bytes of the session into a file, whose name it returns in a sentence.
func (a *attack) keep(seed, number uint64) string {
	name := fmt.Sprintf("%s/frames-%d-%d", os.TempDir(), seed, number)
	if os.WriteFile(name, a.log.Bytes(), 0o600) != nil {
		return ""
	}
	return ". The bytes of the session are in " + name
}

func (a *attack) run() (err error) {
	hello := a.hello()
	var first []byte
	if a.s.one(2) { // with the hello of the link, as that of a real client
		if b, err := a.s.encode.bytes(hello); err == nil && len(b) <= link.MaxFirst {
			first = b
		}
	}
	if a.link, err = a.w.Link(a.name, first); err != nil {
		return fmt.Errorf("no new session: %w", err)
	}
	a.c = transport.New(a.link)
	a.log.Write(first)
	if err := a.greet(hello, len(first) > 0); err != nil {
		return err
	}
	if err := a.write(frame{typ: transport.Program, seq: 1, meta: peer.Neg(rescueKey)}); err != nil {
		return err
	}
	a.s.seq = 1
	for range 1 + a.r.IntN(scenarios) {
		if err := a.scenario(); err != nil {
			return err
		}
	}
	a.whole++
	return errEnded
}

// hello returns a Hello, in some sessions a wrong one.
func (a *attack) hello() frame {
	hello := frame{typ: transport.Hello, meta: peer.Hello()}
	if a.s.one(24) {
		mutate.Message(a.r, hello.meta)
		hello.changed = true
	}
	return hello
}

// greet sends the Hello, unless that is done, and reads the worker's.
func (a *attack) greet(hello frame, sent bool) error {
	if !sent && a.s.one(100) {
		b, err := a.s.encode.bytes(hello)
		if err != nil {
			return nil
		}
		return a.cutAfter(mutate.Bytes(a.r, b))
	}
	if sent {
		a.note(hello.typ, hello.changed)
	} else if err := a.write(hello); err != nil {
		return err
	}
	_ = a.link.SetDeadline(time.Now().Add(answerWait))
	h, err := a.c.Next()
	if err != nil {
		return a.over(err)
	}
	var answer proto.Hello
	if err := a.c.Meta(&answer); err != nil || h.Type != transport.Hello {
		return fmt.Errorf("the worker's first frame is %v: %w", h.Type, err)
	}
	if answer.Error != "" {
		if !hello.changed {
			return fmt.Errorf("a good Hello is refused: %s", answer.Error)
		}
		return a.refusal(answer.Error)
	}
	a.s.pid = answer.Pid
	return nil
}

// scenario sends the frames of one scenario, and waits until the worker has taken them.
func (a *attack) scenario() error {
	frames := a.s.scenario()
	wild := a.s.one(a.rate)
	bytewise := wild && a.s.one(2)
	if wild && !bytewise {
		frames = a.s.wild(frames)
	}
	bent := -1
	if bytewise && len(frames) > 0 {
		bent = a.r.IntN(len(frames))
	}
	for i, f := range frames {
		if i == bent {
			if done, err := a.bytewise(f); done || err != nil {
				return err
			}
			continue
		}
		if err := a.write(f); err != nil {
			return err
		}
	}
	return a.await()
}

// bytewise sends a frame with changed bytes. done: the session is over.
func (a *attack) bytewise(f frame) (done bool, err error) {
	if a.s.one(12) {
		b, err := a.s.hugeUpload()
		if err != nil {
			return true, err
		}
		return true, a.cutAfter(b)
	}
	b, err := a.s.encode.bytes(f)
	if err != nil {
		return false, nil
	}
	if a.s.one(16) { // bytes that are no records of the link
		if c := a.link.NetConn(); c != nil {
			_, _ = c.Write(mutate.Bytes(a.r, b))
		}
	}
	b = mutate.Bytes(a.r, b)
	if !mutate.WellFramed(b) {
		return true, a.cutAfter(b)
	}
	a.note(f.typ, true)
	return false, a.put(b)
}

// write encodes and sends a frame.
func (a *attack) write(f frame) error {
	b, err := a.s.encode.bytes(f)
	if err != nil {
		return nil // a changed message may be none
	}
	a.note(f.typ, f.changed)
	return a.put(b)
}

// note counts a frame.
func (a *attack) note(typ transport.Type, changed bool) {
	a.pending++
	if changed {
		a.pendingChanged++
		if typ == transport.Program {
			a.pendingPrograms++
		}
	}
}

// maxLog bounds the bytes of a session that are kept.
const maxLog = 64 << 20

func (a *attack) put(b []byte) error {
	if a.log.Len() < maxLog {
		a.log.Write(b)
	}
	_ = a.link.SetDeadline(time.Now().Add(answerWait))
	if _, err := a.link.Write(b); err != nil {
		return a.over(err)
	}
	return nil
}

// taken notes that the worker has taken all frames.
func (a *attack) taken() {
	a.frames += a.pending
	a.changed += a.pendingChanged
	a.programs += a.pendingPrograms
	a.pending, a.pendingChanged, a.pendingPrograms = 0, 0, 0
}

// syncMark is more than the sequence numbers of a session.
const syncMark = 1 << 50

// await sends a Sync and takes all answers up to its own.
func (a *attack) await() error {
	a.s.seq++
	seq := syncMark + a.s.seq
	if err := a.write(frame{typ: transport.Sync, seq: seq, meta: &proto.Sync{}}); err != nil {
		return err
	}
	for {
		_ = a.link.SetDeadline(time.Now().Add(answerWait))
		h, err := a.c.Next()
		if err != nil {
			return a.over(err)
		}
		a.answers++
		switch h.Type {
		case transport.SyncReply:
			if h.Seq == seq {
				a.taken()
				return nil
			}
		case transport.ReadReply, transport.Uploaded, transport.StateReply, transport.Offered,
			transport.Fetching:
		case transport.Done:
			if err := a.done(h); err != nil {
				return err
			}
		case transport.Hello:
			var last proto.Hello
			if err := a.c.Meta(&last); err != nil {
				return err
			}
			return a.refusal(last.Error)
		default:
			return fmt.Errorf("the worker sent a %v", h.Type)
		}
	}
}

var rescueKey = bytes.Repeat([]byte{0xee}, proto.KeyBytes)

// done takes a Done. A call without a program is replaced by another one, so that the worker goes on.
func (a *attack) done(h transport.Header) error {
	var m proto.Done
	if err := a.c.Meta(&m); err != nil {
		return err
	}
	if m.Failed > 0 {
		a.failures++
	}
	if !m.UnknownProgram {
		return nil
	}
	call := &proto.Call{Key: rescueKey, Inputs: []uint64{1 << 60}, Outputs: []uint64{0}}
	return a.write(frame{typ: transport.Call, seq: h.Seq, meta: call, changed: true})
}

// refusal takes the reason of the session's end.
func (a *attack) refusal(why string) error {
	if why == "" {
		return errors.New("the last Hello has no reason")
	}
	if strings.Contains(why, "has a bug") {
		return errors.New(why)
	}
	a.refused++
	a.frames++ // the frame that ended it
	a.changed++
	return errEnded
}

// over takes the end of the stream. The session's process must have ended, or the link has.
func (a *attack) over(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the worker has not answered for %v", answerWait)
	}
	a.cut++
	a.frames++
	a.changed++
	return errEnded
}

// cutAfter sends bytes that the worker may take for the beginning of a frame, ends the stream, and waits for the other
// end's end.
func (a *attack) cutAfter(b []byte) error {
	if err := a.put(b); err != nil {
		return err
	}
	_ = a.link.CloseWrite()
	_ = a.link.SetDeadline(time.Now().Add(endWait))
	for {
		h, err := a.c.Next()
		if err != nil {
			return a.over(err)
		}
		var last proto.Hello
		if h.Type == transport.Hello && a.c.Meta(&last) == nil && last.Error != "" {
			return a.refusal(last.Error)
		}
	}
}

// reported asks how the session's process has ended: a crash must be reported.
func (a *attack) reported() error {
	for end := time.Now().Add(endWait); ; time.Sleep(20 * time.Millisecond) {
		reply, err := a.w.Ended(a.name)
		if err != nil {
			return fmt.Errorf("no answer about the end of the session: %w", err)
		}
		if reply.Ended {
			return a.endedWith(reply)
		}
		if time.Now().After(end) {
			return fmt.Errorf("the process of the session still runs %v after its client has gone", endWait)
		}
	}
}

func (a *attack) endedWith(reply *proto.EndedReply) error {
	switch {
	case reply.Signal != "":
		a.signals++
	case reply.Code != 0:
		a.codes++
	default:
		return nil
	}
	fmt.Fprintf(os.Stderr, "a session's process: %s, code %d, call %d, step %d: %s\n", reply.Signal, reply.Code,
		reply.Call, int64(reply.Step)-1, firstLine(reply.Log))
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
