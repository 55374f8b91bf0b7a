// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// The agent is three modules. agentLoader makes modules of their texts, and calls the last one.
//
//go:embed host/mycelya_files.py
var agentFiles string

//go:embed host/mycelya_machines.py
var agentMachines string

//go:embed host/mycelya_agent.py
var agentMain string

const agentLoader = `import types
for name, text in q[2]:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name + ".py", "exec"), module.__dict__)
module.main(q[1])
`

const (
	// The remote command lines are constants: all values follow on stdin, so nothing has to be quoted for the login
	// shell, which may be any. Nothing in the single quotes means something to sh, csh or fish.
	// The folder of the login is no place for modules: it may hold one that is named as one of Python's.
	agentCommand = `exec sh -c 'IFS= read -r p; case $p in "~/"*) p=$HOME/${p#??};; esac; exec "$p" -c ` +
		`"import sys;sys.path[:]=[p for p in sys.path if p];import json;` +
		`q=json.loads(sys.stdin.buffer.readline());exec(q[0])"'`
	relayCommand = `exec sh -c 'IFS= read -r w; IFS= read -r s; exec "$w" --relay "$s"'`
	agentMark    = "MYCELYA-AGENT|"

	// ssh adds 17 bytes to the path of a control socket while it makes it.
	controlBytes = 17
	// How long ssh may take to reach the host.
	connectWait = 20 * time.Second
	// The same where somebody waits for a list or a check.
	quickWait = 5 * time.Second
	// How long the agent may take for an answer: a cold disk, and many users of the host.
	answerWait = 2 * time.Minute
	// How long an ssh process whose stdin has ended may take to end.
	closeWait = 5 * time.Second
	// A connection on which nothing comes for four times this long has failed: link.Default.Silence.
	aliveSeconds = 5
)

// front is a connection to the agent on the host: an ssh process, whose connection other ssh processes share.
type front struct {
	cmd           *osexec.Cmd
	process.Pipes              // of ssh
	answers       chan *answer // closed when no answer can come any more
	log           process.Log  // of ssh, of shells and of the agent
	ended         chan struct{}
	of            options

	mu     sync.Mutex // held while a command is written
	closed sync.Once
}

// controlPrefix begins the names of folders for control sockets. The number of the client's process follows.
const controlPrefix = "ssh-"

// controlDir makes a folder for a control socket. It removes those of clients that have ended without their stop.
func controlDir() (string, error) {
	dir, err := process.PrivateDir(fmt.Sprintf("%s%d-", controlPrefix, os.Getpid()), controlBytes)
	if err != nil {
		return "", err
	}
	all, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), transport.FolderPrefix+controlPrefix+"*"))
	for _, folder := range all {
		text, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), transport.FolderPrefix+controlPrefix), "-")
		if pid, err := strconv.Atoi(text); err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = os.RemoveAll(folder) // fails if it is another user's
		}
	}
	return dir, nil
}

// controlPath is the path of the socket over which ssh processes share a connection.
func controlPath(dir string) string { return filepath.Join(dir, "c") }

// ssh is the command of an ssh process that runs a command on the host.
func (o options) ssh(dir string, master bool, wait time.Duration, remote string) *osexec.Cmd {
	shares := "no"
	if master {
		shares = "yes"
	}
	arguments := append([]string{}, o.command[1:]...)
	arguments = append(arguments, "-T", "-e", "none")
	for _, option := range []string{
		"BatchMode=yes", "ControlMaster=" + shares, "ControlPersist=no",
		"ControlPath=\"" + strings.ReplaceAll(controlPath(dir), "%", "%%") + "\"",
		"RemoteCommand=none", "PermitLocalCommand=no", "ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes",
		fmt.Sprintf("ConnectTimeout=%d", int(wait.Seconds())),
		fmt.Sprintf("ServerAliveInterval=%d", aliveSeconds), "ServerAliveCountMax=4",
	} {
		arguments = append(arguments, "-o", option)
	}
	cmd := osexec.Command(o.command[0], append(arguments, "--", o.host, remote)...)
	// In its own session ssh gets no Ctrl-C and no hangup of the client's terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// open starts the ssh process whose connection others share, and sends the agent and the request.
func (o options) open(dir string, wait time.Duration, r *request) (*front, error) {
	_ = os.Remove(controlPath(dir)) // a killed ssh leaves it
	return o.begin(o.ssh(dir, true, wait, agentCommand), r)
}

// begin starts an ssh process, and sends the agent and the request.
func (o options) begin(cmd *osexec.Cmd, r *request) (*front, error) {
	f := &front{cmd: cmd, answers: make(chan *answer, 8), ended: make(chan struct{}), of: o}
	var started func()
	var err error
	if f.Pipes, started, err = process.Connect(f.cmd, "ssh"); err != nil {
		return nil, err
	}
	defer started()
	if err := f.cmd.Start(); err != nil {
		f.Close()
		return nil, o.cannotStart(err)
	}
	go f.watch()
	modules := [][2]string{{"mycelya_files", agentFiles}, {"mycelya_machines", agentMachines},
		{"mycelya_agent", agentMain}}
	text, err := json.Marshal([]any{agentLoader, r, modules})
	if err == nil { // ssh may have ended: next says why
		_ = f.write(append([]byte(o.python+"\n"), append(text, '\n')...))
	}
	return f, err
}

// cannotStart is the error of an ssh program that does not start.
func (o options) cannotStart(err error) error {
	if errors.Is(err, osexec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return provider.Errorf(provider.ErrNotFound, "The program %q is not installed here. Install OpenSSH's client "+
			"(openssh-client), or give its path: RemoteMachine(\"ssh\", ssh=\"/path/to/ssh\").", o.command[0])
	}
	return provider.Errorf(provider.ErrUnavailable, "The program %q does not start: %v. %s", o.command[0],
		process.Reason(err), process.Advice(err, ""))
}

// watch reads what ssh writes, until it has ended.
func (f *front) watch() {
	var readers sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(&f.log, f.Err) })
	readers.Go(func() {
		defer close(f.answers)
		r := bufio.NewReader(f.Out)
		for {
			line, err := r.ReadString('\n')
			text, ours := strings.CutPrefix(line, agentMark)
			a := new(answer)
			if ours && json.Unmarshal([]byte(text), a) == nil {
				f.answers <- a
			} else {
				_, _ = f.log.Write([]byte(line)) // of a shell
			}
			if err != nil {
				return
			}
		}
	})
	_ = f.cmd.Wait()
	timer := time.AfterFunc(time.Second, func() { _ = f.Out.Close(); _ = f.Err.Close() })
	readers.Wait()
	timer.Stop()
	f.closed.Do(func() { _ = f.In.Close() })
	_ = f.Out.Close()
	_ = f.Err.Close()
	close(f.ended)
}

func (f *front) write(text []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.In.Write(text)
	return err
}

// command is what the client tells the agent after its request.
type command struct {
	Do    string  `json:"do"`
	ID    string  `json:"id"`
	Grace float64 `json:"grace"` // seconds
}

func (f *front) say(c command) {
	text, err := json.Marshal(c)
	if err == nil { // the end of ssh is seen by the reader
		_ = f.write(append(text, '\n'))
	}
}

// next waits for the next answer. An answer that is a refusal is an error.
func (f *front) next(ctx context.Context) (*answer, error) {
	timer := time.NewTimer(answerWait)
	defer timer.Stop()
	select {
	case a, ok := <-f.answers:
		if !ok {
			return nil, f.failure(ctx)
		}
		if a.Error != "" {
			return nil, f.of.refusal(a)
		}
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, provider.Errorf(provider.ErrTimeout, "The host %s has not answered for %v. %s", f.of.host, answerWait,
			f.log.Tail())
	}
}

// failure is why no answer comes any more.
func (f *front) failure(ctx context.Context) error {
	select {
	case <-f.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	return f.of.failure(f.cmd.ProcessState.ExitCode(), f.log.String())
}

// close ends the connection. The agent sees that this client has gone. It returns when the ssh process has ended.
func (f *front) close() {
	f.closed.Do(func() { _ = f.In.Close() })
	go func() { // an answer that nobody waits for must not hold the reader
		for range f.answers {
		}
	}()
	select {
	case <-f.ended:
	case <-time.After(closeWait):
		_ = f.cmd.Process.Kill()
		<-f.ended
	}
}

// ask asks the agent one question on a connection of its own.
func (o options) ask(ctx context.Context, r *request) (*answer, error) {
	dir, err := controlDir()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	f, err := o.open(dir, quickWait, r)
	return f.only(ctx, err)
}

// only returns the only answer of a front, whose begin has returned err.
func (f *front) only(ctx context.Context, err error) (*answer, error) {
	if err != nil {
		return nil, err
	}
	defer f.close()
	return f.next(ctx)
}
