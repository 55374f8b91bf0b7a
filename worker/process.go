// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

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
)

// Descriptors of a session's process, after the three that every process has.
const (
	controlFD  = 3 // a socket, over which the connection of its client comes
	progressFD = 4
)

// drainWait is how long the output of an ended process is read: a thread that hangs in the kernel may hold the pipe.
const drainWait = 200 * time.Millisecond

// process is the supervisor's end of a session's process.
type process struct {
	cmd      *exec.Cmd
	control  *os.File // its other end gets the client's connection
	progress *Progress
	log      tail
	given    bool          // it has a client; guarded by the supervisor's lock
	kills    uint64        // of the group for lack of memory, before its start
	done     chan struct{} // closed when end is set
	end      *proto.EndedReply
}

// startProcess starts a session's process. The caller's thread must live as long as the process: on Linux the process
// is killed when the thread that has started it ends.
func startProcess(cmd *exec.Cmd, output io.Writer) (*process, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range pair {
		syscall.CloseOnExec(fd)
	}
	p := &process{cmd: cmd, done: make(chan struct{}), kills: oomKills()}
	var theirs []*os.File
	fail := func(err error) (*process, error) {
		for _, f := range append(theirs, p.control) {
			_ = f.Close()
		}
		return nil, err
	}
	p.control = os.NewFile(uintptr(pair[0]), "control")
	theirs = append(theirs, os.NewFile(uintptr(pair[1]), "control"))
	memory, file, err := newProgress()
	if err != nil {
		return fail(err)
	}
	p.progress, theirs = memory, append(theirs, file)
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
		memory.unmap()
		return fail(err)
	}
	for _, f := range theirs {
		_ = f.Close()
	}
	go p.watch(r, output)
	return p, nil
}

// watch copies the output of the process, and records how the process ends.
func (p *process) watch(r *os.File, output io.Writer) {
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
	end.Call, end.Step = p.progress.last()
	p.progress.unmap()
	if !st.Success() {
		end.Log = p.log.useful()
	}
	p.end = end
	close(p.done)
}

func (p *process) pid() uint64 { return uint64(p.cmd.Process.Pid) }

// give passes a connection to the process. The caller still owns its own descriptor.
func (p *process) give(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		sent = unix.Sendmsg(int(p.control.Fd()), []byte{0}, unix.UnixRights(int(fd)), nil, 0)
	})
	return errors.Join(err, sent)
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

// A Channel is a session process's end of what it shares with the supervisor.
type Channel struct {
	Progress *Progress
	control  *net.UnixConn
}

// OpenChannel opens the descriptors that the supervisor has passed to this process.
func OpenChannel() (*Channel, error) {
	memory, control := os.NewFile(progressFD, "progress"), os.NewFile(controlFD, "control")
	defer memory.Close()
	defer control.Close()
	p, err := mapProgress(memory)
	if err != nil {
		return nil, fmt.Errorf("this program serves one session, and only mycelya-worker starts it: %w", err)
	}
	c, err := net.FileConn(control)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("the control descriptor is no unix socket")
	}
	return &Channel{Progress: p, control: u}, nil
}

// Accept waits for the connection of the client. io.EOF: the supervisor has ended.
func (c *Channel) Accept() (net.Conn, error) {
	one, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, rn, _, _, err := c.control.ReadMsgUnix(one, rights)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rn])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("the supervisor sent %d control messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fds[0]), "client")
	defer f.Close() // FileConn duplicates it
	return net.FileConn(f)
}

// Wait returns when the supervisor has ended.
func (c *Channel) Wait() { _, _ = io.Copy(io.Discard, c.control) }

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
