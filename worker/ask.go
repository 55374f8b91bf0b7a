// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/worker/kept"
)

// A session's process opens no files for kept state: the supervisor opens them and passes descriptors. So a session
// that does what it wants reads and writes no other files.
//
// The process asks over the control socket, one question at a time, and the supervisor answers:
//
//	question = 'q' length json
//	answer   = messageAnswer length json     with a descriptor, if a file was opened
//	length   = 4 bytes, little-endian: of the JSON, at most maxControl
const maxControl = 1 << 20

// question is what a process asks for.
type question struct {
	What  string // create, keep, drop, open, names, forget
	Kind  kept.Kind
	Name  string
	Draft int // of keep and drop: the number that the answer to create had
}

type answer struct {
	Error string
	Cause cause // what the error is, as far as the process must know
	Names []string
	Draft int
}

// cause is an error that goes through JSON.
type cause int

const (
	other cause = iota
	notThere
	badName
	diskFull
)

// causes are the errors of the causes.
var causes = map[cause]error{notThere: kept.ErrMissing, badName: kept.ErrName, diskFull: syscall.ENOSPC}

func causeOf(err error) cause {
	for c, e := range causes {
		if errors.Is(err, e) {
			return c
		}
	}
	return other
}

// ---- The process's end ----

// asker is a kept.Keeper that asks the supervisor.
type asker struct {
	channel *Channel
	mu      sync.Mutex
}

// Keeper returns what keeps tensors for this process's session.
func (c *Channel) Keeper() kept.Keeper { return &asker{channel: c} }

type answered struct {
	answer
	file *os.File
	err  error
}

// ask asks the supervisor. The caller owns the file.
func (a *asker) ask(q question) (answered, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	text, err := json.Marshal(q)
	if err != nil {
		return answered{}, err
	}
	if _, err := a.channel.control.Write(append(lengthOf([]byte{questionByte}, text), text...)); err != nil {
		return answered{}, err
	}
	select {
	case out := <-a.channel.answers:
		if out.err != nil || out.Error == "" {
			return out, out.err
		}
		if e := causes[out.Cause]; e != nil {
			return out, fmt.Errorf("%w: %s", e, out.Error)
		}
		return out, errors.New(out.Error)
	case <-a.channel.ended:
		return answered{}, io.EOF
	}
}

func lengthOf(head, text []byte) []byte {
	return binary.LittleEndian.AppendUint32(head, uint32(len(text)))
}

// Create implements kept.Keeper.
func (a *asker) Create() (kept.Draft, error) {
	out, err := a.ask(question{What: "create"})
	if err != nil {
		return nil, err
	}
	if out.file == nil {
		return nil, errors.New("BUG: the supervisor passed no file")
	}
	return &askedDraft{a, out.file, out.Draft}, nil
}

// Open implements kept.Keeper.
func (a *asker) Open(kind kept.Kind, name string) (*os.File, error) {
	out, err := a.ask(question{What: "open", Kind: kind, Name: name})
	if err == nil && out.file == nil {
		err = errors.New("BUG: the supervisor passed no file")
	}
	return out.file, err
}

// Names implements kept.Keeper.
func (a *asker) Names(kind kept.Kind) ([]string, error) {
	out, err := a.ask(question{What: "names", Kind: kind})
	return out.Names, err
}

// Forget implements kept.Keeper.
func (a *asker) Forget(kind kept.Kind, name string) error {
	_, err := a.ask(question{What: "forget", Kind: kind, Name: name})
	return err
}

type askedDraft struct {
	asker *asker
	f     *os.File
	n     int
}

func (d *askedDraft) File() *os.File { return d.f }

func (d *askedDraft) Keep(kind kept.Kind, name string) error {
	_ = d.f.Close()
	_, err := d.asker.ask(question{What: "keep", Kind: kind, Name: name, Draft: d.n})
	return err
}

func (d *askedDraft) Drop() {
	_ = d.f.Close()
	_, _ = d.asker.ask(question{What: "drop", Draft: d.n})
}

// takeAnswer reads the rest of an answer, whose first byte came with these rights.
func (c *Channel) takeAnswer(rights []byte) (out answered) {
	if len(rights) > 0 {
		fds, err := descriptorsIn(rights)
		if err != nil {
			out.err = err
			return out
		}
		out.file = os.NewFile(uintptr(fds[0]), "kept")
	}
	text, err := readText(c.control)
	if err == nil {
		err = json.Unmarshal(text, &out.answer)
	}
	out.err = err
	return out
}

func readText(r io.Reader) ([]byte, error) {
	var length uint32
	if err := binary.Read(r, binary.LittleEndian, &length); err != nil {
		return nil, err
	}
	if length > maxControl {
		return nil, fmt.Errorf("a text of %d bytes on the control socket", length)
	}
	text := make([]byte, length)
	_, err := io.ReadFull(r, text)
	return text, err
}

// ---- The supervisor's end ----

// maxDrafts bounds the files that one process writes at the same time.
const maxDrafts = 4

// drafts are the files that a process writes, by number.
type drafts struct {
	next int
	open map[int]kept.Draft
}

// close drops the files that the process has not kept.
func (d *drafts) close() {
	for _, draft := range d.open {
		draft.Drop()
	}
	d.open = nil
}

// answer answers a question of a process. Nothing in it is trusted.
func (d *drafts) answer(folder *kept.Folder, text []byte) (answer, *os.File) {
	var q question
	if err := json.Unmarshal(text, &q); err != nil {
		return failed(err)
	}
	if folder == nil {
		return failed(errors.New("this worker was started without a folder for kept tensors (--state)"))
	}
	switch q.What {
	case "create":
		if len(d.open) == maxDrafts {
			return failed(fmt.Errorf("a session writes at most %d files at once", maxDrafts))
		}
		draft, err := folder.Create()
		if err != nil {
			return failed(err)
		}
		if d.open == nil {
			d.open = map[int]kept.Draft{}
		}
		d.next++
		d.open[d.next] = draft
		return answer{Draft: d.next}, draft.File()
	case "keep", "drop":
		draft := d.open[q.Draft]
		if draft == nil {
			return failed(fmt.Errorf("there is no file %d", q.Draft))
		}
		delete(d.open, q.Draft)
		if q.What == "drop" {
			draft.Drop()
			return answer{}, nil
		}
		return failed(draft.Keep(q.Kind, q.Name))
	case "open":
		f, err := folder.Open(q.Kind, q.Name)
		if err != nil {
			return failed(err)
		}
		return answer{}, f
	case "names":
		names, err := folder.Names(q.Kind)
		out, _ := failed(err)
		out.Names = names
		return out, nil
	case "forget":
		return failed(folder.Forget(q.Kind, q.Name))
	}
	return failed(fmt.Errorf("there is no question %q", q.What))
}

// failed is the answer of an error, and of nil.
func failed(err error) (answer, *os.File) {
	if err == nil {
		return answer{}, nil
	}
	return answer{Error: err.Error(), Cause: causeOf(err)}, nil
}

// reply sends an answer to the process, and closes a file that was opened for it only.
func (p *process) reply(a answer, f *os.File) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	message := append(lengthOf([]byte{messageAnswer}, text), text...)
	if f == nil {
		_, err = p.control.Write(message)
		return err
	}
	if a.Draft == 0 {
		defer f.Close()
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	n := 0
	err = raw.Control(func(fd uintptr) { n, _, sent = p.control.WriteMsgUnix(message, unix.UnixRights(int(fd)), nil) })
	if err = errors.Join(err, sent); err == nil && n < len(message) {
		_, err = p.control.Write(message[n:])
	}
	return err
}
