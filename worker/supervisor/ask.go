// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/worker/kept"
	"github.com/mycelya/mycelya/worker/session"
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

// question is what a process asks for: files of kept state, or memory for what it passes to other sessions (lend.go).
type question struct {
	What  string // create, keep, drop, open, names, forget; fetch; lend, pass, return, take, taken
	Kind  kept.Kind
	Name  string
	Draft int    // the number that an earlier answer had
	To    uint64 // of pass: the process that may take the memory
	Bytes uint64 // of lend and pass
}

type answer struct {
	Error string
	Cause cause // what the error is, as far as the process must know
	Names []string
	Draft int
	Bytes uint64 // of lend and take
}

// cause is an error that goes through JSON.
type cause int

const (
	other cause = iota
	notThere
	badName
	diskFull
	notPassed
)

// causes are the errors of the causes.
var causes = map[cause]error{notThere: kept.ErrMissing, badName: kept.ErrName, diskFull: syscall.ENOSPC,
	notPassed: ErrNotPassed}

func causeOf(err error) cause {
	for c, e := range causes {
		if errors.Is(err, e) {
			return c
		}
	}
	return other
}

// ---- The process's end ----

// asker is a kept.Keeper and a Passer that asks the supervisor.
type asker struct{ channel *Channel }

// Keeper returns what keeps tensors for this process's session.
func (c *Channel) Keeper() kept.Keeper { return asker{c} }

// Passer returns what passes tensors to sessions of other processes.
func (c *Channel) Passer() session.Passer { return asker{c} }

type answered struct {
	answer
	file *os.File
	err  error
}

// ask asks the supervisor. The caller owns the file.
func (a asker) ask(q question) (answered, error) {
	a.channel.asking.Lock()
	defer a.channel.asking.Unlock()
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
func (a asker) Create() (kept.Draft, error) {
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
func (a asker) Open(kind kept.Kind, name string) (*os.File, error) {
	out, err := a.ask(question{What: "open", Kind: kind, Name: name})
	if err == nil && out.file == nil {
		err = errors.New("BUG: the supervisor passed no file")
	}
	return out.file, err
}

// Names implements kept.Keeper.
func (a asker) Names(kind kept.Kind) ([]string, error) {
	out, err := a.ask(question{What: "names", Kind: kind})
	return out.Names, err
}

// Forget implements kept.Keeper.
func (a asker) Forget(kind kept.Kind, name string) error {
	_, err := a.ask(question{What: "forget", Kind: kind, Name: name})
	return err
}

// Helper asks the supervisor to start what fetches weights.
func (c *Channel) Helper() (*net.UnixConn, error) {
	out, err := (&asker{channel: c}).ask(question{What: "fetch"})
	if err == nil && out.file == nil {
		err = errors.New("BUG: the supervisor passed no socket")
	}
	if err != nil {
		return nil, err
	}
	return socketOf(out.file)
}

// socketOf is the connection of a descriptor, which it closes.
func socketOf(f *os.File) (*net.UnixConn, error) {
	defer f.Close() // FileConn duplicates it
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("the descriptor is no unix socket")
	}
	return u, nil
}

type askedDraft struct {
	asker asker
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

// Lend implements Passer.
func (a asker) Lend(bytes uint64) (session.Loan, error) {
	out, err := a.memory(question{What: "lend", Bytes: bytes}, true)
	return askedLoan{out}, err
}

// Take implements Passer.
func (a asker) Take(name string) (session.Passed, error) {
	out, err := a.memory(question{What: "take", Name: name}, false)
	return askedPassed{out}, err
}

// memory asks for memory of the supervisor, and maps it.
func (a asker) memory(q question, write bool) (lent, error) {
	out, err := a.ask(q)
	if err != nil {
		return lent{}, err
	}
	if out.file == nil {
		return lent{}, errors.New("BUG: the supervisor passed no memory")
	}
	defer out.file.Close()
	l := lent{asker: a, number: out.Draft}
	if l.bytes, err = mapLoan(out.file, out.Bytes, write); err != nil {
		_ = l.end(question{What: map[bool]string{true: "return", false: "taken"}[write]})
	}
	return l, err
}

// lent is memory of the supervisor.
type lent struct {
	asker  asker
	number int
	bytes  []byte
}

func (l lent) Memory() []byte { return l.bytes }

// end ends the use of the memory, and tells the supervisor.
func (l lent) end(q question) error {
	unmapLoan(l.bytes)
	q.Draft = l.number
	_, err := l.asker.ask(q)
	return err
}

type askedLoan struct{ lent }

func (l askedLoan) Pass(name string, to uint64) error {
	return l.end(question{What: "pass", Name: name, To: to, Bytes: uint64(len(l.bytes))})
}

func (l askedLoan) Drop() { _ = l.end(question{What: "return"}) }

type askedPassed struct{ lent }

func (l askedPassed) Close() error { return l.end(question{What: "taken"}) }

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

// drafts are the files that a process writes, by number.
type drafts struct {
	next int
	open map[int]kept.Draft

	helpers *helpers // nil: the worker fetches no weights
	pid     uint64   // of the process
	lender  *lender  // nil: the process passes nothing to others
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
	if q.What == "fetch" {
		f, err := d.helpers.start()
		if err != nil {
			return failed(err)
		}
		return answer{}, f
	}
	switch q.What {
	case "lend", "pass", "return", "take", "taken":
		if d.lender == nil {
			return failed(errors.New("this process passes nothing to others"))
		}
		return d.lender.answer(d.pid, &q)
	}
	if folder == nil {
		return failed(errors.New("this worker was started without a folder for kept tensors (--state)"))
	}
	switch q.What {
	case "create":
		if len(d.open) == session.MaxDrafts {
			return failed(fmt.Errorf("a session writes at most %d files at once", session.MaxDrafts))
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
