// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/provider"
)

// question is a request about kept state, in JSON. What names a field for.
//
//	save        Name, Tree, Views
//	find        Name                the answer's Found is for a load
//	load        Found, Storages     the caller's new storages, one for each tensor; 0: not wanted
//	drop        Name
//	names
//	checkpoint  Every               seconds between the next ones; 0: none follows
//	fetch       Endpoint, Repo, Revision, Path, Token: see weights.go, also for news and unfetch
//	end                             the worker, though it outlives this process, ends with the session
//	logs                            the answer has the worker's log
//	report                          the answer's Log has the worker's metrics, in Prometheus's text format
//	eager       On                  from now on, or no longer, the programs of the device are compiled without kernels
//	pause, resume, kill             see pause.go
//	install     Packages            on the worker's host; the answer's Log is what the installation has printed
//	pass        To, Views           one view, to another device of the machine
//	take        Passed, Storage, Bytes   the answer to a pass, and the new storage with its size
type question struct {
	What     string
	Name     string
	Tree     string
	Views    []keptView
	Found    uint64
	Storages []uint64
	Every    float64
	On       bool

	Endpoint, Repo, Revision, Path, Token string // of a fetch
	Fetch, Seen                           uint64
	Have                                  int
	Packages                              []string
	To                                    int32
	Passed                                reply
	Storage                               uint64
	Bytes                                 uint64
}

// keptView is a view in a question.
type keptView struct {
	Storage        uint64
	DType          uint32
	Sizes, Strides []int64
	Offset         int64
}

func (v *keptView) message() *proto.Read {
	return &proto.Read{Storage: v.Storage, Dtype: v.DType, Sizes: v.Sizes, Strides: v.Strides, Offset: v.Offset}
}

// reply is the answer to a question, in JSON.
type reply struct {
	Found   uint64       `json:"found"`
	Bytes   uint64       `json:"bytes"`
	Tree    string       `json:"tree"`
	Tensors []keptTensor `json:"tensors"`
	Names   []string     `json:"names"`
	Log     string       `json:"log"`
	Name    string       `json:"name"`  // of what was passed
	Aside   bool         `json:"aside"` // nothing was passed: the elements must go through the client
}

type keptTensor struct {
	DType uint32  `json:"dtype"`
	Sizes []int64 `json:"sizes"`
}

// ask begins a question about kept state, whose answer the ticket gets. An error is the answer.
func (s *session) ask(t *Ticket, text []byte) error {
	var q question
	if err := json.Unmarshal(text, &q); err != nil {
		return &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: a question that does not decode: %v.", err)}
	}
	t.apart = true
	switch q.What {
	case "pass":
		return s.pass(t, &q)
	case "take":
		s.take(t, &q)
		return nil
	case "end":
		s.mu.Lock()
		s.ends = true
		s.mu.Unlock()
		t.tryEnd(nil)
		return nil
	case "logs":
		return s.readLog(t)
	case "report":
		return s.askReport(t)
	case "eager":
		s.compiler.SetEager(q.On)
		t.tryEnd(nil)
		return nil
	case "pause":
		return s.pause(t)
	case "resume":
		s.resume()
		t.tryEnd(nil)
		return nil
	case "kill":
		s.kill(t)
		return nil
	case "install":
		return s.install(t, q.Packages)
	}
	t.apart = false
	if s.paused() != nil {
		return &Error{Kind: KindStopped, Text: s.device() + " is paused. Call its resume() first."}
	}
	if q.What == "checkpoint" && s.first != nil {
		return &Error{Kind: KindValue, Text: "A checkpoint is of the machine's first device; " + s.device() +
			" is another one."}
	}
	if q.What == "checkpoint" {
		s.checkpoint(t, time.Duration(q.Every*float64(time.Second)))
		return nil
	}
	var kind transport.Type
	switch q.What {
	case "fetch", "news", "unfetch":
		return s.askFetch(t, &q)
	case "save":
		m := &proto.Save{Name: q.Name, Tree: q.Tree}
		for _, v := range q.Views {
			m.Views = append(m.Views, v.message())
		}
		kind, t.message = transport.Save, m
	case "find":
		kind, t.message = transport.Find, &proto.Find{Name: q.Name}
	case "load":
		kind, t.message = transport.Load, &proto.Load{Found: q.Found, Storages: q.Storages}
	case "drop":
		kind, t.message = transport.Drop, &proto.Drop{Name: q.Name}
	case "names":
		kind, t.message = transport.Names, &proto.Names{}
	default:
		return &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: a question %q.", q.What)}
	}
	if protobuf.Size(t.message) > transport.MaxMeta {
		return &Error{Kind: KindValue, Text: fmt.Sprintf("%d tensors are too many for one name.", len(q.Views))}
	}
	s.submit(core.Ask{Ticket: t, Type: kind})
	return nil
}

// answer is the answer to the ticket's question.
func (t *Ticket) answer() ([]byte, error) {
	if t.fetch != nil && t.reply == nil { // an unfetch has a StateReply
		return t.fetch.answer(t.have)
	}
	m := t.reply
	if m == nil {
		m = new(proto.StateReply)
	}
	out := reply{Found: t.found, Bytes: m.Bytes, Tree: m.Tree, Names: m.Names, Log: t.log, Tensors: []keptTensor{},
		Name: t.name, Aside: t.aside}
	for _, k := range m.Tensors {
		out.Tensors = append(out.Tensors, keptTensor{k.Dtype, append([]int64{}, k.Sizes...)})
	}
	return json.Marshal(out)
}

// checkpoint begins a checkpoint, and has others made every so often from now on; 0: none.
func (s *session) checkpoint(t *Ticket, every time.Duration) {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if every > 0 && s.core.Gone() == nil {
		var timer *time.Timer
		timer = time.AfterFunc(every, func() { s.nextCheckpoint(&timer, every) })
		s.timer = timer
	}
	s.mu.Unlock()
	s.submit(core.Checkpoint{Ticket: t})
}

// nextCheckpoint makes a checkpoint of a timer that has not been stopped.
func (s *session) nextCheckpoint(timer **time.Timer, every time.Duration) {
	s.mu.Lock()
	current := s.timer == *timer && s.core.Gone() == nil
	s.mu.Unlock()
	if current {
		s.submit(core.Checkpoint{})
		(*timer).Reset(every)
	}
}

// replace performs core.Replace: it tells the user, and ends the lost worker's connection.
func (s *session) replace(why error) {
	if s.paused() == nil {
		s.metrics.Replaced.Add(1)
		what, _, _ := strings.Cut(why.Error(), " All tensors on it are gone.")
		s.log.Warn("another worker goes on from the last checkpoint", "because", what)
	}
	s.disconnect()
}

// notKept performs core.NotKept.
func (s *session) notKept(a core.NotKept) {
	text := "a checkpoint was not made; the last one stays"
	if a.Off {
		text = "a checkpoint was not made, and there is none to go on from if the worker is lost"
	}
	s.log.Warn(text, "error", a.Err)
}

// restart performs core.Restart, on the sender: it starts another worker in place of a lost one. That of a paused
// session starts when the session goes on.
func (s *session) restart() {
	s.mu.Lock()
	instance, received := s.instance, s.received
	s.worker = s.life
	s.mu.Unlock()
	<-received // the last reader of the old connection
	stop(instance)
	if resumed := s.paused(); resumed != nil {
		select {
		case <-resumed:
		case <-s.ctx.Done():
			return
		}
	}
	s.start()
}

// keptPrefix begins the names of temporary folders for what local workers keep. The number of the client's process
// follows.
const keptPrefix = "mycelya-kept-"

// keptFolder returns the folder for what the session's workers keep, if they run on this host: the one that an option
// names, or a temporary one that lives as long as the session. The worker makes the folder when it keeps something. On
// another host its last part is a name for that, the same for all workers of the session.
func (s *session) keptFolder() (string, error) {
	if named := s.stateHere(); named != "" {
		return filepath.Abs(named)
	}
	if s.detached() {
		return "", nil // the provider's choice
	}
	if s.folder != "" {
		return s.folder, nil
	}
	removeStale()
	folder := fmt.Sprintf("%s%d-%s", keptPrefix, os.Getpid(), rand.Text()) // nobody else can have made it
	s.folder = filepath.Join(os.TempDir(), folder)
	return s.folder, nil
}

// here says whether the provider's workers run on this host.
func (s *session) here() bool {
	_, ok := s.provider.(provider.Here)
	return ok
}

// stateHere is the folder that the option state names; "" if it names none, or one of another host.
func (s *session) stateHere() string {
	if !s.here() {
		return ""
	}
	return s.paths.Request.Spec.Options["state"]
}

// detached says whether the worker outlives this process.
func (s *session) detached() bool {
	return s.paths.Request.Detached || s.paths.Request.Attach
}

// removeKept removes what nothing can restore any more: the temporary folder, or the checkpoints in another one.
func (s *session) removeKept() {
	if s.folder != "" {
		_ = os.RemoveAll(s.folder)
		return
	}
	if s.stateHere() == "" {
		return
	}
	folder, err := s.keptFolder()
	if err != nil {
		return
	}
	left, _ := filepath.Glob(filepath.Join(folder, "checkpoint", s.name+"-*"))
	for _, path := range left {
		_ = os.Remove(path)
	}
}

// removeStale removes the temporary folders of clients that have ended without their close.
func removeStale() {
	all, _ := filepath.Glob(filepath.Join(os.TempDir(), keptPrefix+"*"))
	for _, folder := range all {
		text, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), keptPrefix), "-")
		if pid, err := strconv.Atoi(text); err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = os.RemoveAll(folder) // fails if it is another user's
		}
	}
}
