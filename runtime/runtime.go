// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mycelya/mycelya/runtime/compile"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/dump"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
	"github.com/mycelya/mycelya/runtime/report"
	"github.com/mycelya/mycelya/runtime/settings"
	"github.com/mycelya/mycelya/trace"
)

// Runtime holds the sessions of a process, one per device index, and the tickets of all of them. All methods may be
// called at the same time.
type Runtime struct {
	frontend compile.Frontend
	provide  func(Paths) (provider.Provider, error)
	mailbox  func(index int32) (Mailbox, error)
	metrics  report.Metrics
	profile  profile
	tickets  tickets

	mu       sync.Mutex
	settings *settings.Settings // read from the environment at the first Open
	sessions map[int32]*session
}

// New returns a runtime without devices; provide gives the provider of a device's worker, mailbox its
// mailbox. An error of provide is a ValueError in Python, or a NotImplementedError if it is errors.ErrUnsupported.
func New(frontend compile.Frontend, provide func(Paths) (provider.Provider, error),
	mailbox func(index int32) (Mailbox, error)) *Runtime {
	return &Runtime{frontend: frontend, provide: provide, mailbox: mailbox, sessions: map[int32]*session{},
		tickets: tickets{all: map[uint64]*Ticket{}}}
}

// Open makes a device usable; its worker starts at the first call that needs it.
func (r *Runtime) Open(index int32, paths Paths, environment []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[index] != nil {
		return &Error{Kind: KindRuntime, Text: fmt.Sprintf("mycelya:%d is open already.", index)}
	}
	if r.settings == nil {
		settings, err := settings.ParseSettings(environment)
		if err != nil {
			return &Error{Kind: KindValue, Text: err.Error()}
		}
		r.settings = settings
	}
	first, err := r.firstOf(paths)
	if err != nil {
		return err
	}
	var p provider.Provider
	if first == nil {
		p, err = r.provide(paths)
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return &Error{Kind: KindNotImplemented, Text: err.Error()}
	case err != nil:
		return &Error{Kind: KindValue, Text: err.Error()}
	}
	box, err := r.mailbox(index)
	if err != nil {
		return &Error{Kind: KindRuntime, Text: fmt.Sprintf("mycelya:%d cannot be opened: %v. %s", index, err,
			process.Advice(err, "Please report this."))}
	}
	s := newSession(int(index), paths, r.settings, r.frontend, &r.metrics, &r.profile, p, box, &r.tickets)
	s.first, s.find = first, r.session
	s.open()
	r.sessions[index] = s
	return nil
}

// Close ends a device's session and its worker, with the sessions of the worker's other devices; nothing happens if
// there is none.
func (r *Runtime) Close(index int32) {
	r.showBill()
	r.mu.Lock()
	s := r.sessions[index]
	delete(r.sessions, index)
	others := r.others(s)
	r.mu.Unlock()
	for _, other := range others {
		other.close()
	}
	if s != nil {
		s.close()
	}
}

// Ended returns why a device's session has ended by itself, as a sentence; "" if it runs, or is closed.
func (r *Runtime) Ended(index int32) string {
	s, err := r.session(index)
	if err != nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending == "" && s.core.Gone() != nil {
		return s.core.Gone().Error()
	}
	return s.ending
}

func (r *Runtime) session(index int32) (*session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[index]
	if s == nil {
		return nil, &Error{Kind: KindRuntime, Text: fmt.Sprintf("mycelya:%d is not open.", index)}
	}
	return s, nil
}

// Raise returns the error of a failure that no caller has raised, and the smallest id of the storages that were not
// made because of it. The caller raises the error, and from then on the device goes on.
func (r *Runtime) Raise(index int32) (lost uint64, err error) {
	s, err := r.session(index)
	if err != nil {
		return 0, err
	}
	if err = s.raise(); err != nil {
		lost = asError(err).Lost
	}
	return lost, err
}

// Start starts a device's worker and returns a ticket, which ends when the worker runs or has failed to start. 0: it
// runs.
func (r *Runtime) Start(index int32) (uint64, error) {
	s, err := r.session(index)
	if err != nil || s.runs() {
		return 0, err
	}
	number, t, err := r.ticket(s, trace.Place{}, false)
	if err == nil {
		s.submit(core.Mark{Ticket: t})
	}
	return number, err
}

// ticket is a new ticket for a request that a call has begun.
func (r *Runtime) ticket(s *session, at trace.Place, stalls bool) (number uint64, t *Ticket, err error) {
	number, answer := s.mailbox.Ticket(at, stalls)
	if number == 0 {
		return 0, nil, &Error{Kind: KindRuntime, Text: "Memory is short for one more wait."}
	}
	t = s.ticket(r.metrics.Bill.At(at))
	r.tickets.open(number, t, answer)
	return number, t, nil
}

// Forget ends the use of a block, whose owner has freed it. The system gets its memory back when the workers have
// forgotten it, too.
func (r *Runtime) Forget(block uint64) {
	r.mu.Lock()
	sessions := slices.Collect(maps.Values(r.sessions))
	r.mu.Unlock()
	for _, s := range sessions {
		s.forget(block)
	}
}

// Ask begins a question about kept state, in JSON, and returns its ticket. After a wait without an error, Answer has
// the answer.
func (r *Runtime) Ask(index int32, question []byte, at trace.Place) (uint64, error) {
	s, err := r.session(index)
	if err != nil {
		return 0, err
	}
	number, t, err := r.ticket(s, at, true)
	if err != nil {
		return 0, err
	}
	t.question = true
	if err := s.ask(t, question); err != nil {
		t.end(err)
	}
	return number, nil
}

// Answer returns the answer to a question, in JSON. If it fits into capacity bytes, it is forgotten.
func (r *Runtime) Answer(ticket, capacity uint64) ([]byte, error) {
	t := r.tickets.get(ticket)
	if t == nil {
		return nil, &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: ticket %d has no answer.", ticket)}
	}
	out, err := t.answer()
	if err != nil || uint64(len(out)) < capacity {
		r.tickets.drop(ticket)
	}
	return out, err
}

// Cancel ends a ticket of a device. After it nothing writes the memory of its read.
func (r *Runtime) Cancel(index int32, ticket uint64) {
	s, err := r.session(index)
	if err != nil {
		return // the end of the session has ended it
	}
	s.collect()
	if t := r.tickets.get(ticket); t != nil {
		t.Cancel()
		r.tickets.drop(ticket)
	}
}

// DeviceInfo returns facts of a device's worker as JSON. The worker has been started: see Start.
func (r *Runtime) DeviceInfo(index int32) ([]byte, error) {
	s, err := r.session(index)
	if err != nil {
		return nil, err
	}
	h, err := s.info()
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"device": h.Device, "name": h.DeviceName, "torch": h.Torch,
		"pid": h.Pid, "build": h.Build, "memory_bytes": h.MemoryBytes, "processors": h.Processors})
}

// Metrics returns the counters since the last reset, as a JSON object.
func (r *Runtime) Metrics() []byte {
	r.collect()
	links := map[int32]any{}
	r.mu.Lock()
	for index, s := range r.sessions {
		if at := s.measured(); at != nil {
			links[index] = at
		}
	}
	r.mu.Unlock()
	return r.metrics.JSON(links)
}

// collect submits the items in mailboxes.
func (r *Runtime) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		s.collect()
	}
}

// Bill returns the costs of each line of the user's program since the last reset, as a JSON array of lines.
func (r *Runtime) Bill(saved []report.Saved) []byte {
	r.collect()
	text, err := json.Marshal(r.metrics.Bill.Lines(r.frontend, saved))
	if err != nil {
		panic("BUG: the bill doesn't encode: " + err.Error())
	}
	return text
}

// showBill reports the bill to a dump.
func (r *Runtime) showBill() {
	r.mu.Lock()
	settings := r.settings
	r.mu.Unlock()
	if settings == nil || !settings.Dump.Times() {
		return
	}
	r.collect()
	var lines []dump.Line
	for _, l := range r.metrics.Bill.Lines(r.frontend, nil) {
		if l.RoundTrips > 0 || l.Stalls > 0 {
			lines = append(lines, dump.Line{Place: l.Origin.Full(), Callers: slices.Sorted(maps.Keys(l.Callers)),
				RoundTrips: l.RoundTrips, Stalls: l.Stalls, StallSeconds: l.StallSeconds})
		}
	}
	settings.Dump.Bill(r.metrics.Bill.Number(), lines)
}

// Busy says in sentences what the workers still compute; "" if that is nothing.
func (r *Runtime) Busy() string {
	r.collect()
	r.mu.Lock()
	sessions := slices.Collect(maps.Values(r.sessions))
	r.mu.Unlock()
	slices.SortFunc(sessions, func(a, b *session) int { return cmp.Compare(a.index, b.index) })
	var out []string
	for _, s := range sessions {
		if text := s.computes(); text != "" {
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

// computes says in a sentence what the worker still computes; "" if that is nothing.
func (s *session) computes() string {
	s.mu.Lock()
	n, since, each := s.core.Busy()
	gone := s.core.Gone()
	s.mu.Unlock()
	if n == 0 || gone != nil {
		return ""
	}
	took := max(time.Since(s.began)-since, 0)
	text := fmt.Sprintf("%s still computes what was recorded before: the program that runs has taken %.1f s so far",
		s.device(), took.Seconds())
	switch {
	case n > 1 && each > 0:
		text += fmt.Sprintf(", and %d more wait, for about %.1f s", n-1, (each * time.Duration(n-1)).Seconds())
	case n > 1:
		text += fmt.Sprintf(", and %d more wait", n-1)
	}
	return text + "."
}

// Place is a place of the user's program as "file:line"; "" if it is not known.
func (r *Runtime) Place(at trace.Place) string {
	return r.frontend.Origin(at[0], at[1]).Full()
}

// Explain lists the programs that a device has compiled, with the reasons.
func (r *Runtime) Explain(index int32) (string, error) {
	s, err := r.session(index)
	if err != nil {
		return "", err
	}
	return s.explainPrograms(), nil
}

// Pending is the graph of the content of a storage after a trace, which is still open, has run.
func (r *Runtime) Pending(index int32, t *trace.Trace, storage uint64) (string, error) {
	s, err := r.session(index)
	if err != nil {
		return "", err
	}
	return s.pendingGraph(t, storage)
}

// ResetMetrics sets all counters to 0, those of the bill too.
func (r *Runtime) ResetMetrics() {
	r.collect()
	r.showBill()
	r.metrics.Reset()
}

// FDs are the descriptors of this process that a forked child must close.
func (r *Runtime) FDs() (out []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		out = append(out, s.fds()...)
	}
	return out
}
