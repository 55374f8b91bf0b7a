// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package answers_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/tests/hostile/mutate"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/ref"
	"github.com/mycelya/mycelya/worker/session"
	"github.com/mycelya/mycelya/worker/supervisor"
)

// liar is a worker: an honest one, whose answers pass through a relay that changes some of them. It is a provider and
// its instance.
type liar struct {
	provider.StartOnly
	r      *rand.Rand // of the relay
	plan   plan
	folder string
	client net.Conn // the client's end of the session's connection
	ended  chan struct{}
	once   sync.Once
	over   sync.WaitGroup

	mu     sync.Mutex
	silent bool       // the relay passes no more answers
	ends   *rand.Rand // of answers about the end
}

// plan says how a relay lies.
type plan struct {
	after int // answers that pass before the first lie; 0: the Hello is the first
	rate  int // from then on one of so many answers is changed
	// payload: the lie is a bit of the payload of a read, and no other. No client can notice that.
	payload bool
}

// honest says whether all answers come.
func (p plan) honest() bool { return p.payload || p.after == never }

// never is more than the answers of a session.
const never = 1 << 30

func newLiar(r *rand.Rand, folder string, p plan) (*liar, error) {
	l := &liar{r: r, ends: rand.New(rand.NewPCG(r.Uint64(), 1)), plan: p, folder: folder, ended: make(chan struct{})}
	client, relay, err := pair(folder)
	if err != nil {
		return nil, err
	}
	there, honest, err := pair(folder)
	if err != nil {
		return nil, err
	}
	l.client = client
	server := session.Server{
		Load: func() (executor.Backend, error) { return ref.Backend{}, nil }, Log: slog.New(slog.DiscardHandler),
		Passer: passer{},
	}
	l.over.Go(func() { _ = server.ServeOne(func() (net.Conn, error) { return honest, nil }) })
	l.over.Go(func() {
		_, _ = io.Copy(there, relay)
		_ = there.Close()
	})
	l.over.Go(func() {
		l.relay(transport.New(there), relay)
		_, _ = io.Copy(io.Discard, there) // the honest worker must not wait for a reader
	})
	l.over.Go(func() {
		<-l.ended
		_ = relay.Close()
		_ = there.Close()
	})
	return l, nil
}

// passer passes bytes from a session to itself.
type passer map[string][]byte

type memory struct {
	passer passer
	bytes  []byte
}

func (p passer) Lend(bytes uint64) (session.Loan, error) { return memory{p, make([]byte, bytes)}, nil }

func (p passer) Take(name string) (session.Passed, error) {
	b, ok := p[name]
	if !ok {
		return nil, supervisor.ErrNotPassed
	}
	delete(p, name)
	return memory{p, b}, nil
}

func (m memory) Memory() []byte { return m.bytes }
func (memory) Drop()            {}
func (memory) Close() error     { return nil }

func (m memory) Pass(name string, _ uint64) error {
	m.passer[name] = m.bytes
	return nil
}

// pair is the two ends of a unix socket.
func pair(folder string) (a, b net.Conn, err error) {
	path := filepath.Join(folder, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if a, err = net.Dial("unix", path); err != nil {
		return nil, nil, err
	}
	b, err = l.Accept()
	return a, b, err
}

func (l *liar) Start(context.Context, provider.Spec) (provider.Instance, error) { return l, nil }
func (l *liar) Credentials() *transport.Credentials                             { return nil }
func (l *liar) FDs() []int                                                      { return nil }

func (l *liar) Handle() provider.Handle { return provider.Handle{Provider: "liar", ID: "1"} }

// Dial returns the session's connection, and then connections for questions about the session's end. Half of these
// have no answer; nobody waits long for one.
func (l *liar) Dial(context.Context) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.client; c != nil {
		l.client = nil
		return c, nil
	}
	if l.ends.IntN(2) == 0 {
		return nil, os.ErrNotExist
	}
	client, end, err := pair(l.folder)
	if err != nil {
		return nil, err
	}
	go l.tellEnd(end)
	return client, nil
}

// tellEnd answers the question how the session has ended.
func (l *liar) tellEnd(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	h, err := transport.New(c).Next()
	if err != nil {
		return
	}
	l.mu.Lock()
	m := &proto.EndedReply{Ended: true, Pid: 7, Code: -1, Signal: "killed", Call: uint64(l.ends.IntN(20)),
		Step: mutate.Number(l.ends, 1), Log: mutate.Text(l.ends, "a line\nanother")}
	for range l.ends.IntN(4) {
		mutate.Message(l.ends, m)
	}
	b := encoder{}.bytes(answer{typ: transport.EndedReply, seq: h.Seq, meta: m})
	if len(b) > 0 && l.ends.IntN(4) == 0 {
		b = mutate.Bytes(l.ends, b)
	}
	l.mu.Unlock()
	_, _ = c.Write(b)
}

func (l *liar) Stop(context.Context, time.Duration) error {
	l.once.Do(func() { close(l.ended) })
	l.over.Wait()
	return nil
}

// Wait does not wait: a session that breaks off asks why for seconds.
func (l *liar) Wait(context.Context) (provider.Exit, error) {
	select {
	case <-l.ended:
		return provider.Exit{Reason: provider.Done}, nil
	default:
		return provider.Exit{}, errors.New("the worker still runs")
	}
}

// isSilent says whether the client can get no more answers.
func (l *liar) isSilent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent
}

// answer is a frame of the worker.
type answer struct {
	typ  transport.Type
	seq  uint64
	meta protobuf.Message
	body []byte
}

// relay passes the answers of the honest worker.
func (l *liar) relay(from *transport.Conn, to net.Conn) {
	out := encoder{}
	for n := 0; ; n++ {
		h, err := from.Next()
		if err != nil {
			_ = to.Close()
			return
		}
		a := answer{typ: h.Type, seq: h.Seq, meta: message(h.Type), body: make([]byte, h.Payload)}
		if from.Meta(a.meta) != nil || from.ReadBody(a.body) != nil {
			return // the connection has ended
		}
		all := [][]byte{out.bytes(a)}
		switch {
		case n < l.plan.after || l.r.IntN(l.plan.rate) > 0:
		case l.plan.payload:
			if len(a.body) > 0 {
				all[0][len(all[0])-1] ^= 1
			}
		default:
			all = l.lie(a, out)
		}
		for _, b := range all {
			if _, err := to.Write(b); err != nil {
				return
			}
		}
		if l.isSilent() {
			return
		}
	}
}

// message is an empty message of a type; that of a frame that only clients send has no fields.
func message(t transport.Type) protobuf.Message {
	switch t {
	case transport.Hello:
		return new(proto.Hello)
	case transport.Done:
		return new(proto.Done)
	case transport.ReadReply:
		return new(proto.ReadReply)
	case transport.SyncReply:
		return new(proto.SyncReply)
	case transport.EndedReply:
		return new(proto.EndedReply)
	case transport.StateReply:
		return new(proto.StateReply)
	case transport.Offered:
		return new(proto.Offered)
	case transport.Fetching:
		return new(proto.Fetching)
	}
	return new(proto.Uploaded)
}

// hush ends the answers: what follows is lost, or is taken for a part of a frame.
func (l *liar) hush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = true
}

// lie returns the bytes that the client gets instead of an answer.
func (l *liar) lie(a answer, out encoder) [][]byte {
	honest := out.bytes(a)
	switch l.r.IntN(14) {
	case 0: // no answer
		return nil
	case 1: // never again
		l.hush()
		return nil
	case 2: // twice
		return [][]byte{honest, honest}
	case 3: // an answer that nobody has asked for, before it or after it
		more := out.bytes(l.unasked(a.seq))
		if l.r.IntN(2) == 0 {
			return [][]byte{more, honest}
		}
		return [][]byte{honest, more}
	case 4:
		a.seq = mutate.Number(l.r, a.seq)
	case 5:
		a.typ = l.anyType()
	case 6: // a body of another length: the reads of the client have multiples of 8 bytes
		a.body = append(a.body, make([]byte, 1+8*l.r.IntN(1<<l.r.IntN(14)))...)
	case 7:
		a.body = a.body[:max(0, len(a.body)-1-8*l.r.IntN(4))]
	case 8:
		a = l.shout(a)
	case 9, 10:
		for range 1 + l.r.IntN(3) {
			mutate.Message(l.r, a.meta)
		}
	default:
		return l.bent(honest, len(a.body))
	}
	return [][]byte{out.bytes(a)}
}

// anyType is the type of a frame, more often of an answer.
func (l *liar) anyType() transport.Type {
	if l.r.IntN(4) == 0 {
		return transport.Type(1 + l.r.IntN(int(transport.Take)))
	}
	answers := []transport.Type{transport.Done, transport.ReadReply, transport.SyncReply, transport.Uploaded,
		transport.StateReply, transport.Offered, transport.Fetching}
	return answers[l.r.IntN(len(answers))]
}

// unasked is an answer with any number.
func (l *liar) unasked(seq uint64) answer {
	typ := l.anyType()
	a := answer{typ: typ, seq: mutate.Number(l.r, seq), meta: message(typ), body: make([]byte, 3*l.r.IntN(2))}
	mutate.Message(l.r, a.meta)
	return a
}

// shout puts a long text with control characters where the answer may have a text.
func (l *liar) shout(a answer) answer {
	text := "\x1b]0;title\x07\x1b[31m" + string(bytes.Repeat([]byte("\r\x00loud "), 1+l.r.IntN(1<<l.r.IntN(18))))
	st := &proto.Status{Kind: int32(l.r.IntN(20)) - 2, Text: text, Call: mutate.Number(l.r, a.seq),
		Step: uint32(mutate.Number(l.r, 1))}
	switch m := a.meta.(type) {
	case *proto.Done:
		m.Failed, m.Errors = uint32(mutate.Number(l.r, 1)), []*proto.Status{st, st}
		m.Kernels = &proto.Kernels{Warning: text}
	case *proto.ReadReply:
		m.Status, a.body = st, nil
	case *proto.SyncReply:
		m.Status = st
	case *proto.Hello:
		m.Error = text
	}
	return a
}

// bent changes bytes of a frame that lie before its payload, or cuts the frame. After a wrong length, the client may
// wait for bytes, or take later answers for a part of this one.
func (l *liar) bent(honest []byte, payload int) [][]byte {
	head := len(honest) - payload
	b := append(mutate.Bytes(l.r, honest[:head]), honest[head:]...)
	if l.r.IntN(4) == 0 {
		b = honest[:l.r.IntN(len(honest))]
		if l.r.IntN(2) == 0 { // and the connection ends
			l.once.Do(func() { close(l.ended) })
		}
	}
	if !mutate.WellFramed(b) {
		l.hush()
	}
	return [][]byte{b}
}

// encoder encodes frames.
type encoder struct{}

func (encoder) bytes(a answer) []byte {
	k := &kept{}
	if err := transport.New(k).Send(a.typ, a.seq, a.meta, a.body); err != nil {
		return nil // a changed message may be none
	}
	return k.Bytes()
}

// kept is a connection that keeps what is written.
type kept struct {
	net.Conn
	bytes.Buffer
}

func (k *kept) Write(p []byte) (int, error) { return k.Buffer.Write(p) }
func (k *kept) Read(p []byte) (int, error)  { return k.Buffer.Read(p) }
