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

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/core"
	protobuf "google.golang.org/protobuf/proto"
)

// question is a request about kept state, in JSON. What names a field for.
//
//	save        Name, Tree, Views
//	find        Name                the answer's Found is for a load
//	load        Found, Storages     the caller's new storages, one for each tensor; 0: not wanted
//	drop        Name
//	names
//	checkpoint  Every               seconds between the next ones; 0: none follows
//	end                             the worker, though it outlives this process, ends with the session
type question struct {
	What     string
	Name     string
	Tree     string
	Views    []keptView
	Found    uint64
	Storages []uint64
	Every    float64
}

// keptView is a view in a question.
type keptView struct {
	Storage        uint64
	DType          uint32
	Sizes, Strides []int64
	Offset         int64
}

// reply is the answer to a question, in JSON.
type reply struct {
	Found   uint64       `json:"found"`
	Bytes   uint64       `json:"bytes"`
	Tree    string       `json:"tree"`
	Tensors []keptTensor `json:"tensors"`
	Names   []string     `json:"names"`
}

type keptTensor struct {
	DType uint32  `json:"dtype"`
	Sizes []int64 `json:"sizes"`
}

// askWorker begins a question about kept state.
func (s *session) askWorker(text []byte, by *charge) (*Ticket, error) {
	var q question
	if err := json.Unmarshal(text, &q); err != nil {
		return nil, &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: a question that does not decode: %v.", err)}
	}
	t := s.ticket(by)
	t.question = true
	if q.What == "end" {
		s.mu.Lock()
		s.ends = true
		s.mu.Unlock()
		t.end(nil)
		return t, nil
	}
	if q.What == "checkpoint" {
		return s.checkpoint(t, time.Duration(q.Every*float64(time.Second)))
	}
	var kind transport.Type
	switch q.What {
	case "save":
		m := &proto.Save{Name: q.Name, Tree: q.Tree}
		for _, v := range q.Views {
			m.Views = append(m.Views, &proto.Read{Storage: v.Storage, Dtype: v.DType, Sizes: v.Sizes, Strides: v.Strides,
				Offset: v.Offset})
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
		return nil, &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: a question %q.", q.What)}
	}
	if protobuf.Size(t.message) > transport.MaxMeta {
		return nil, &Error{Kind: KindValue, Text: fmt.Sprintf("%d tensors are too many for one name.", len(q.Views))}
	}
	return s.begin(t, core.Ask{Ticket: t, Type: kind})
}

// answer is the answer to the ticket's question.
func (t *Ticket) answer() ([]byte, error) {
	m := t.reply
	if m == nil {
		m = new(proto.StateReply)
	}
	out := reply{Found: t.found, Bytes: m.Bytes, Tree: m.Tree, Names: m.Names, Tensors: []keptTensor{}}
	for _, k := range m.Tensors {
		out.Tensors = append(out.Tensors, keptTensor{k.Dtype, append([]int64{}, k.Sizes...)})
	}
	return json.Marshal(out)
}

// checkpoint begins a checkpoint, and has others made every so often from now on; 0: none.
func (s *session) checkpoint(t *Ticket, every time.Duration) (*Ticket, error) {
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
	return s.begin(t, core.Checkpoint{Ticket: t})
}

// nextCheckpoint makes a checkpoint of a timer that has not been stopped.
func (s *session) nextCheckpoint(timer **time.Timer, every time.Duration) {
	s.mu.Lock()
	current := s.timer == *timer && s.core.Gone() == nil
	s.mu.Unlock()
	if current {
		_ = s.submit(core.Checkpoint{})
		(*timer).Reset(every)
	}
}

// replace performs core.Replace: it tells the user, and ends the lost worker's connection.
func (s *session) replace(why error) {
	s.metrics.replaced.Add(1)
	what, _, _ := strings.Cut(why.Error(), " All tensors on it are gone.")
	s.log.Warn("another worker goes on from the last checkpoint", "because", what)
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

// relaunch performs core.Relaunch, on the sender: it starts another worker in place of a lost one.
func (s *session) relaunch() {
	s.mu.Lock()
	instance, received := s.instance, s.received
	s.worker = s.life
	s.mu.Unlock()
	<-received // the last reader of the old connection
	stop(instance)
	s.start()
}

// keptPrefix begins the names of temporary folders for what local workers keep. The number of the client's process
// follows.
const keptPrefix = "mycelya-kept-"

// keptFolder returns the folder for what the session's workers keep, if they run on this host: the one that an option
// names, or a temporary one that lives as long as the session. The worker makes the folder when it keeps something.
func (s *session) keptFolder() (string, error) {
	if named := s.paths.Options["state"]; named != "" {
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

// detached says whether the worker outlives this process.
func (s *session) detached() bool {
	return s.paths.Options["detached"] != "" || s.paths.Options["attach"] != ""
}

// removeKept removes what nothing can restore any more: the temporary folder, or the checkpoints in another one.
func (s *session) removeKept() {
	if s.folder != "" {
		_ = os.RemoveAll(s.folder)
		return
	}
	if s.paths.Options["state"] == "" {
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
