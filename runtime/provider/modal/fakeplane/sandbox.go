// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakeplane

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
)

// sandbox is a process of this host with a folder and an address of the loopback network of its own. Arguments of its
// commands stand for the same things as in a container: the address of all interfaces is the sandbox's, and the path of
// a volume is the volume's folder.
type sandbox struct {
	plane      *Plane
	id, task   string
	app, name  string
	created    time.Time
	definition *pb.Sandbox
	env        map[string]string // of secrets
	mounts     map[string]string // path in the sandbox to folder
	folder, ip string
	out, err   *output
	tunnels    tunnels
	started    chan struct{}
	done       chan struct{} // closed when nothing of the sandbox is left

	// The plane's lock guards:
	tags map[string]string

	mu      sync.Mutex
	result  *pb.GenericResult // why it is ended from without; after done, how it has ended
	ending  chan struct{}     // closed when result is set
	process *os.Process
	users   int       // commands and connections that keep it from being idle
	used    time.Time // when there was one
	execs   map[string]*execution
}

func newSandbox(p *Plane, id string, definition *pb.Sandbox) *sandbox {
	ip := fmt.Sprintf("127.%d.%d.%d", 1+mathrand.IntN(254), mathrand.IntN(256), 1+mathrand.IntN(254))
	return &sandbox{plane: p, id: "sb-" + id, task: "ta-" + id, name: definition.GetName(), created: time.Now(),
		definition: definition, env: map[string]string{}, mounts: map[string]string{},
		folder: filepath.Join(p.options.Folder, "sb-"+id), ip: ip, out: newOutput(), err: newOutput(),
		started: make(chan struct{}), done: make(chan struct{}), ending: make(chan struct{}), used: time.Now(),
		execs: map[string]*execution{}}
}

func (s *sandbox) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// end ends the sandbox from without. The first reason counts.
func (s *sandbox) end(why *pb.GenericResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.result == nil {
		s.result = why
		close(s.ending)
	}
}

// busy keeps the sandbox from being idle until the function that it returns is called.
func (s *sandbox) busy() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	return s.idle
}

// idle ends one use of the sandbox.
func (s *sandbox) idle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	s.used = time.Now()
}

// run runs the sandbox's command, from its start to its end.
func (s *sandbox) run(starts bool) {
	defer close(s.done)
	defer s.out.end()
	defer s.err.end()
	if !starts {
		<-s.ending
		return
	}
	cmd, read, err := s.start()
	if err != nil {
		s.end(pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_INIT_FAILURE,
			Exception: err.Error()}.Build())
		s.clear()
		return
	}
	close(s.started)
	exited := make(chan struct{})
	go s.clocks(exited)
	go func() {
		select {
		case <-s.ending:
			s.killAll()
		case <-exited:
		}
	}()
	_ = cmd.Wait()
	close(exited)
	code := cmd.ProcessState.ExitCode()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	result := pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS, Exitcode: int32(code)}
	if code != 0 {
		result.Status = pb.GenericResult_GENERIC_STATUS_FAILURE
	}
	s.end(result.Build())
	s.clear()
	read.Wait()
}

// start starts the sandbox's command and opens its tunnels.
func (s *sandbox) start() (*exec.Cmd, *sync.WaitGroup, error) {
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return nil, nil, err
	}
	s.tunnels.s = s
	if err := s.tunnels.open(s.definition.GetOpenPorts().GetPorts()); err != nil {
		return nil, nil, err
	}
	cmd := s.command(s.definition.GetEntrypointArgs(), s.env)
	if cmd == nil {
		return nil, nil, fmt.Errorf("the sandbox has no command")
	}
	read := new(sync.WaitGroup)
	ends, err := pipes(cmd, s.out, s.err, read)
	if err == nil {
		err = cmd.Start()
	}
	for _, f := range ends {
		_ = f.Close()
	}
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	s.process, s.used = cmd.Process, time.Now()
	s.mu.Unlock()
	return cmd, read, nil
}

// pipes gives a command's output to out and err. The caller closes the returned ends after the start.
func pipes(cmd *exec.Cmd, out, err *output, read *sync.WaitGroup) (ends []*os.File, failed error) {
	for _, o := range []struct {
		to   *output
		from *io.Writer
	}{{out, &cmd.Stdout}, {err, &cmd.Stderr}} {
		r, w, e := os.Pipe()
		if e != nil {
			return ends, e
		}
		*o.from, ends = w, append(ends, w)
		read.Go(func() {
			_, _ = io.Copy(o.to, r)
			_ = r.Close()
		})
	}
	return ends, nil
}

// command is a command in the sandbox.
func (s *sandbox) command(args []string, env map[string]string) *exec.Cmd {
	if len(args) == 0 {
		return nil
	}
	args = slices.Clone(args)
	for i, a := range args {
		a = strings.ReplaceAll(a, "0.0.0.0:", s.ip+":")
		for path, folder := range s.mounts {
			a = strings.ReplaceAll(a, path, folder)
		}
		args[i] = a
	}
	path, err := lookPath(args[0], s.plane.options.Path)
	if err != nil {
		path = args[0] // Start reports it
	}
	cmd := &exec.Cmd{Path: path, Args: args, Dir: s.folder, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	cmd.Env = []string{"PATH=" + s.plane.options.Path, "HOME=" + s.folder, "TMPDIR=" + s.folder}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// lookPath finds a program in the folders of a PATH.
func lookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(path) {
		full := filepath.Join(dir, name)
		if info, err := os.Stat(full); err == nil && info.Mode()&0o111 != 0 && !info.IsDir() {
			return full, nil
		}
	}
	return "", exec.ErrNotFound
}

// clocks ends the sandbox when a timeout has passed.
func (s *sandbox) clocks(exited <-chan struct{}) {
	began := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-exited:
			return
		case now := <-tick.C:
			life, idle := s.times()
			s.mu.Lock()
			alone := s.users == 0 && now.Sub(s.used) >= idle
			s.mu.Unlock()
			why := pb.GenericResult_GENERIC_STATUS_UNSPECIFIED
			if now.Sub(began) >= life {
				why = pb.GenericResult_GENERIC_STATUS_TIMEOUT
			} else if idle > 0 && alone {
				why = pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT
			}
			if why != pb.GenericResult_GENERIC_STATUS_UNSPECIFIED {
				s.end(pb.GenericResult_builder{Status: why}.Build())
				return
			}
		}
	}
}

// times are the sandbox's timeouts; idle 0: none.
func (s *sandbox) times() (life, idle time.Duration) {
	s.plane.mu.Lock()
	defer s.plane.mu.Unlock()
	return time.Duration(s.definition.GetTimeoutSecs()) * s.plane.second,
		time.Duration(s.definition.GetIdleTimeoutSecs()) * s.plane.second
}

// kill kills the process of the sandbox's command alone.
func (s *sandbox) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		_ = s.process.Kill()
	}
}

// killAll kills all processes of the sandbox: those with its folder in their arguments, and those that they have
// started.
func (s *sandbox) killAll() {
	s.kill()
	for s.sweep() {
		time.Sleep(time.Millisecond)
	}
}

// sweep kills the processes that are left, and reports whether there were any.
func (s *sandbox) sweep() (found bool) {
	stats, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		args, err := os.ReadFile(path)
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		if bytes.Contains(args, []byte(s.folder)) || bytes.Contains(env, []byte("HOME="+s.folder)) {
			found = true
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return found
}

// clear removes what is left of a sandbox whose command has ended.
func (s *sandbox) clear() {
	s.tunnels.close()
	s.killAll()
	s.mu.Lock()
	execs := s.execs
	s.execs = map[string]*execution{}
	s.mu.Unlock()
	for _, e := range execs {
		<-e.done
	}
	_ = os.RemoveAll(s.folder)
}

// how returns how the sandbox has ended; nil: it has not.
func (s *sandbox) how() *pb.GenericResult {
	if !s.over() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

// newestFirst orders sandboxes as lists do.
func newestFirst(a, b *sandbox) int { return cmp.Compare(b.stamp(), a.stamp()) }

// stamp is when the sandbox was created, in seconds.
func (s *sandbox) stamp() float64 { return float64(s.created.UnixNano()) / 1e9 }
