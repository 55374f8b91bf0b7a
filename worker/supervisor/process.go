// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/crash"
)

// drainWait is how long the output of an ended process is read: a thread that hangs in the kernel may hold the pipe.
const drainWait = 200 * time.Millisecond

// dumpWait is how long the answer to a question about the process's end may wait for the folder of its crash.
const dumpWait = 3 * time.Second

// process is the supervisor's end of a session's process.
type process struct {
	cmd      *exec.Cmd
	control  *net.UnixConn // its other end gets connections
	progress *crash.Progress
	memory   *os.File // of progress, and of the journal behind it
	log      tail
	given    bool          // it has a client; guarded by the supervisor's lock
	names    []string      // that its client, or others who could be it, asked for; guarded by the supervisor's lock
	session  string        // that a client has proved to own
	client   string        // whose Hello has come, on a worker for one client; guarded by the supervisor's lock
	told     bool          // to end, by Drain
	kills    uint64        // of the group for lack of memory, before its start
	left     chan struct{} // closed when it has closed its socket, and its helpers have ended
	leaving  chan struct{} // closed when it has closed its socket
	done     chan struct{} // closed when what follows is set
	end      *proto.EndedReply
	cut      bool // the process has written a part of a frame to a stream of two descriptors
}

// startProcess starts a session's process, which gets the credentials over a pipe. The caller's thread must live as
// long as the process: on Linux the process is killed when the thread that has started it ends. If the process fails,
// crashed is called, with the end set, and closes the process's memory; nil: the process needs no journal.
func startProcess(cmd *exec.Cmd, credentials []byte, output io.Writer, crashed func(*process)) (*process, error) {
	p := &process{cmd: cmd, left: make(chan struct{}), leaving: make(chan struct{}), done: make(chan struct{}),
		kills: oomKills()}
	var theirs []*os.File
	fail := func(err error) (*process, error) {
		for _, f := range theirs {
			_ = f.Close()
		}
		if p.control != nil {
			_ = p.control.Close()
		}
		return nil, err
	}
	mine, other, err := controlPair()
	if err != nil {
		return nil, err
	}
	p.control, theirs = mine, append(theirs, other)
	if p.progress, p.memory, err = crash.NewProgress(crashed != nil); err != nil {
		return fail(err)
	}
	theirs = append(theirs, p.memory)
	if len(credentials) > 0 {
		secret, err := filled(credentials)
		if err != nil {
			return fail(err)
		}
		theirs = append(theirs, secret)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	cmd.ExtraFiles = theirs
	cmd.Stdout, cmd.Stderr = w, w
	theirs = append(theirs, w)
	dieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		_ = r.Close()
		p.progress.Unmap()
		return fail(err)
	}
	for _, f := range theirs {
		if f != p.memory {
			_ = f.Close()
		}
	}
	go p.watch(r, output, crashed)
	return p, nil
}

// watch copies the output of the process, and records how the process ends.
func (p *process) watch(r *os.File, output io.Writer, crashed func(*process)) {
	var reader sync.WaitGroup
	reader.Go(func() { _, _ = io.Copy(io.MultiWriter(&p.log, output), r) })
	_ = p.cmd.Wait()
	_ = r.SetReadDeadline(time.Now().Add(drainWait))
	reader.Wait()
	_ = r.Close()
	_ = p.control.Close()
	st := p.cmd.ProcessState
	end := &proto.EndedReply{Ended: true, Pid: uint64(st.Pid()), Code: int32(st.ExitCode())}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		end.Signal = ws.Signal().String()
		end.OutOfMemory = ws.Signal() == syscall.SIGKILL && oomKills() > p.kills
	}
	end.Call, end.Step = p.progress.Last()
	p.cut = p.progress.IsCut()
	p.progress.Unmap()
	if !st.Success() {
		end.Log = p.log.useful()
	}
	p.end = end
	if !st.Success() && crashed != nil {
		crashed(p)
	} else {
		_ = p.memory.Close()
	}
	close(p.done)
}

func (p *process) pid() uint64 { return uint64(p.cmd.Process.Pid) }

// give passes a connection to the process. The caller still owns its own descriptor.
func (p *process) give(c transport.Socket) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		_, _, sent = p.control.WriteMsgUnix([]byte{messageConn}, unix.UnixRights(int(fd)), nil)
	})
	return errors.Join(err, sent)
}

// listen takes the messages of the process until it has ended. It notes the name of each session that a client of the
// process has proved to be its owner, and the name of the client, and then tells the process so. It answers questions
// about kept state and about what sessions pass to each other.
func (p *process) listen(s *Supervisor, helpers *helpers) {
	defer close(p.left)
	files := drafts{helpers: helpers, pid: p.pid(), lender: s.lender}
	defer files.close()
	defer helpers.close()
	defer close(p.leaving)
	kind := make([]byte, 1)
	for {
		_, err := io.ReadFull(p.control, kind)
		switch {
		case err != nil:
			return
		case kind[0] == claimByte, kind[0] == enterByte:
			name := make([]byte, transport.NameBytes)
			if _, err = io.ReadFull(p.control, name); err == nil {
				note := map[byte]func(*process, string){claimByte: s.claimed, enterByte: s.entered}[kind[0]]
				note(p, string(name))
				_, err = p.control.Write([]byte{messageNoted})
			}
		case kind[0] == questionByte:
			var text []byte
			if text, err = readText(p.control); err == nil {
				err = p.reply(files.answer(s.Kept, text))
			}
		default: // it does what it wants
			err = fmt.Errorf("a message %q", kind)
		}
		if err != nil {
			_ = p.cmd.Process.Kill()
			return
		}
	}
}

// leaves says whether the process has closed its socket, which it does when it ends.
func (p *process) leaves() bool {
	select {
	case <-p.leaving:
		return true
	default:
		return false
	}
}

// awaitEnd returns when neither the process nor a helper of it runs.
func (p *process) awaitEnd() {
	<-p.done
	<-p.left
}

// ended waits at most d for the end of the process.
func (p *process) ended(d time.Duration) *proto.EndedReply {
	select {
	case <-p.done:
		return p.end
	case <-time.After(d):
		return nil
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const (
	tailBytes = 8 << 10
	tailLines = 6
)

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.b = append(t.b, p...); len(t.b) > 2*tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b[max(0, len(t.b)-tailBytes):])
}

// useful returns the last lines that are not of this program's own log: what libraries have written.
func (t *tail) useful() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for line := range strings.Lines(string(t.b)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" && !strings.HasPrefix(line, "time=") {
			out = append(out, strings.ToValidUTF8(line, "?"))
		}
	}
	return strings.Join(out[max(0, len(out)-tailLines):], "\n")
}

// crashed returns the function that keeps what is needed to study the crash of a session's process, and sets the end's
// Dump. nil: nothing is kept.
func (s *Supervisor) crashed() func(*process) {
	if s.Crashes == "" {
		return nil
	}
	return func(p *process) {
		s.mu.Lock()
		wanted := p.given && !s.closed
		s.mu.Unlock()
		if !wanted || !s.dumping.TryLock() { // sessions that crash all the time write one folder at a time
			_ = p.memory.Close()
			return
		}
		done := make(chan string, 1)
		go func() {
			defer s.dumping.Unlock()
			path, err := crash.Write(s.Crashes, p.end, p.memory, p.log.String(), time.Now())
			_ = p.memory.Close()
			if err != nil {
				s.Log.Warn("a crash cannot be kept", "folder", s.Crashes, "error", err)
			}
			done <- path
			_, _ = crash.Bounds.Trim(s.Crashes)
		}()
		select {
		case p.end.Dump = <-done:
		case <-time.After(dumpWait):
		}
	}
}
