// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/provider"
)

// A machine may have several devices. Each has a session of its own with the machine's worker, under a device index of
// its own. The session of the first device has started the worker, and ends it; the others use it as long as it runs.

// Bounds of what was passed to a device and is not taken yet. A caller who passes more waits.
const (
	maxTakes     = 8
	maxTakeBytes = 512 << 20
)

// takes counts what is on its way to a session.
type takes struct{ number, bytes atomic.Int64 }

// lentWorker is what the session of another device uses of the first device's.
type lentWorker struct {
	instance provider.Instance
	life     int // of the first device's workers
}

// lend returns the worker for the session of another device.
func (s *session) lend() (lentWorker, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gone := s.core.Gone(); gone != nil || s.hello == nil {
		return lentWorker{}, fmt.Errorf("its machine's first device, mycelya:%d, does not run", s.index)
	}
	if one, ok := s.instance.(provider.OneStream); ok && one.OneStream() {
		return lentWorker{}, errors.New("the machine's worker has one stream, so the machine has one device")
	}
	return lentWorker{s.instance, s.life}, nil
}

// bringUp starts the worker, or takes the first device's.
func (s *session) bringUp() (provider.Instance, error) {
	if s.first != nil {
		var err error
		s.lent, err = s.first.lend()
		return s.lent.instance, err
	}
	folder, err := s.keptFolder()
	if err != nil {
		return nil, err
	}
	var instance provider.Instance
	onAllCores(func() {
		spec := s.paths.Request.Spec
		spec.Kept, spec.Again = folder, s.worker > 0
		if spec.Again && spec.Device == "" {
			spec.Device = s.computed() // not what another host, or this one now, would choose
		}
		start := s.provider.Start
		if s.paths.Request.Attach {
			start = s.provider.Attach
		}
		instance, err = start(s.ctx, spec)
	})
	return instance, err
}

// computed is the device that the session's last worker has computed on; "" if it has had none.
func (s *session) computed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hello.GetDevice()
}

// wanted is the device that the session asks the worker for; "" is the worker's own.
func (s *session) wanted() string {
	if s.first == nil {
		return ""
	}
	return s.paths.Request.Device
}

// withFirst says in a sentence how the worker has ended for the machine's first device; "": it has not, as far as is
// known, or this session is of the first device.
func (s *session) withFirst() string {
	f := s.first
	if f == nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.core.Gone() != nil && f.ending != "":
		return fmt.Sprintf("the machine's worker has ended with mycelya:%d: %s", f.index, f.ending)
	case f.core.Gone() != nil:
		return fmt.Sprintf("the machine's worker has ended with mycelya:%d.", f.index)
	case f.life != s.lent.life:
		return "the machine's worker was lost, and another one goes on from the last checkpoint, which has the tensors of " +
			fmt.Sprintf("mycelya:%d only.", f.index)
	}
	return ""
}

// others are the sessions of a machine's other devices.
func (r *Runtime) others(first *session) (out []*session) {
	for index, s := range r.sessions {
		if s.first == first && first != nil {
			out = append(out, s)
			delete(r.sessions, index)
		}
	}
	return out
}

// firstOf returns the session of the first device of the machine that a device is opened on; nil: it is the first.
func (r *Runtime) firstOf(paths Paths) (*session, error) {
	at := paths.Request.Beside
	if at == 0 {
		return nil, nil
	}
	first := r.sessions[at-1]
	switch {
	case first == nil:
		return nil, &Error{Kind: KindRuntime, Text: fmt.Sprintf("mycelya:%d is not open.", at-1)}
	case first.first != nil:
		return nil, &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: mycelya:%d is not the first of its machine.", at-1)}
	}
	return first, nil
}

// machine is the session of the machine's first device.
func (s *session) machine() *session {
	if s.first != nil {
		return s.first
	}
	return s
}

// pass begins to pass a view to another device of the machine. The answer of the ticket is what take needs.
func (s *session) pass(t *Ticket, q *question) error {
	to, err := s.find(q.To)
	if err != nil {
		return err
	}
	if to.machine() != s.machine() || len(q.Views) != 1 {
		return &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: %d views of mycelya:%d cannot be passed to mycelya:%d.",
			len(q.Views), s.index, q.To)}
	}
	to.mu.Lock()
	hello, gone, keeps := to.hello, to.core.Gone(), to.core.Keeps()
	to.mu.Unlock()
	switch {
	case gone != nil:
		return gone
	case keeps: // a worker that replaces this one cannot get the bytes again
		t.aside = true
		t.tryEnd(nil)
		return nil
	case hello == nil:
		return &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: mycelya:%d was not started.", q.To)}
	}
	t.name = rand.Text()
	asked := s.ticket(t.by)
	asked.message = &proto.Pass{Name: t.name, To: hello.Pid, View: q.Views[0].message()}
	asked.told = func(err error) {
		if !t.tryEnd(err) && err == nil { // the caller has canceled
			to.discard(t.name)
		}
	}
	s.submit(core.Ask{Ticket: asked, Type: transport.Pass})
	return nil
}

// take makes a storage of what was passed. The ticket ends at once, unless too much is on its way.
func (s *session) take(t *Ticket, q *question) {
	asked := s.ticket(t.by)
	asked.message = &proto.Take{Name: q.Passed.Name, Storage: q.Storage, Bytes: q.Bytes}
	n, bytes := s.takes.number.Add(1), s.takes.bytes.Add(int64(q.Bytes))
	waits := n > maxTakes || bytes > maxTakeBytes
	asked.told = func(err error) {
		s.takes.number.Add(-1)
		s.takes.bytes.Add(-int64(q.Bytes))
		if waits || err != nil {
			t.tryEnd(err)
		}
	}
	s.submit(core.Ask{Ticket: asked, Type: transport.Take})
	if !waits {
		t.tryEnd(nil)
	}
}

// discard ends what was passed to this session and is not wanted.
func (s *session) discard(name string) {
	t := s.ticket(nil)
	t.message = &proto.Take{Name: name}
	s.submit(core.Ask{Ticket: t, Type: transport.Take})
}
