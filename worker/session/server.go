// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package session serves a client in a process of its own. It keeps the client's storages and programs, and runs the
// programs on an executor. It decodes and validates all messages before native code gets them. It never decides what to
// compute and never interprets tensor values.
package session

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/crash"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/kept"
)

// Server serves clients on a listener. Set the fields, then call Serve once.
type Server struct {
	// Load loads the backend. Serve calls it once at its start, and clients connect meanwhile.
	Load func() (executor.Backend, error)
	Log  *slog.Logger
	// ProgramBytes bounds the programs of a session; 0 is DefaultProgramBytes.
	ProgramBytes int64
	// Idle is how long cached memory is kept when no client sends frames; 0 is DefaultIdle.
	Idle time.Duration
	// Enter is called with the name of the client when its Hello has come; it may be nil. The session begins when it
	// returns. An error ends the session.
	Enter func(client string) error
	// Ready is called when the executor of a session exists, before the session's first program; it may be nil. An error
	// ends the session.
	Ready func() error
	// Keeper keeps tensors under names, and checkpoints; nil: this server keeps nothing.
	Keeper kept.Keeper
	// Uploads is the Keeper's limit of kept uploads, in bytes; 0: none are kept.
	Uploads int64
	// Helper starts what fetches weights from a hub; nil: this server fetches none.
	Helper FetchHelper
	// Passer passes tensors to other sessions of the worker; nil: nothing does.
	Passer Passer
	// Journal gets the programs and calls of the only session; nil: nothing does.
	Journal *crash.Journal
	// Progress counts the calls of the only session; nil: nothing does.
	Progress *crash.Progress
	// Stop gets a sentence for the clients when the sessions must answer what has arrived, tell their clients the
	// sentence, and end. It may be nil.
	Stop <-chan string

	idle     *time.Timer // runs from the end of a frame to the next frame of any session
	load     func() (executor.Backend, error)
	mu       sync.Mutex
	closed   bool
	stopping string // why sessions end, once Stop has said so
	listener net.Listener
	conns    map[*transport.Conn]*stop
	sessions sync.WaitGroup
}

const (
	// A client sends Hello right after it has connected.
	HelloWait = 10 * time.Second
	// DefaultIdle is longer than the pauses of a program that computes.
	DefaultIdle = 10 * time.Second
	// More than the clients of one user on one machine.
	MaxSessions = 64
)

// Serve accepts clients until Close. It owns l.
func (s *Server) Serve(l net.Listener) error {
	if s.begin(l) {
		return l.Close()
	}
	for {
		nc, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = nil
			}
			s.Close()
			s.sessions.Wait()
			return err
		}
		if err := transport.CheckPeer(nc); err != nil {
			s.Log.Warn("a connection is refused", "error", err)
			_ = nc.Close()
			continue
		}
		s.accept(nc)
	}
}

// ServeOne serves the connection that accept returns, and returns when its session has ended. The backend loads during
// accept.
func (s *Server) ServeOne(accept func() (net.Conn, error)) error {
	s.begin(nil)
	c, err := accept()
	if err != nil {
		return err
	}
	s.accept(c)
	s.sessions.Wait()
	return nil
}

// begin begins to load the backend, and reports whether Close was called already.
func (s *Server) begin(l net.Listener) (closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener, s.conns = l, make(map[*transport.Conn]*stop)
	_ = transport.Host() // before this process loses the right to open files
	s.load = sync.OnceValues(func() (b executor.Backend, err error) {
		start := time.Now()
		if b, err = s.Load(); err != nil {
			s.Log.Error("the backend can't be loaded", "error", err)
		} else {
			s.Log.Info("backend loaded", "took", time.Since(start))
		}
		return b, err
	})
	s.idle = time.AfterFunc(math.MaxInt64, s.trim)
	if !s.closed {
		go func() { _, _ = s.load() }()
	}
	if s.Stop != nil {
		go s.awaitStop()
	}
	return s.closed
}

// accept starts the session of a connection.
func (s *Server) accept(nc net.Conn) {
	c := transport.New(nc)
	takes := c.TakeFiles()
	end := s.add(c)
	if end == nil {
		_ = c.Close()
		return
	}
	s.sessions.Go(func() { s.client(c, takes, end) })
}

// Close ends Serve and every session.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for c := range s.conns {
		_ = c.Close()
	}
}

// stopIdle and startIdle are called before and after each frame. One session may start the idle time while another one
// works. If it then ends, the other session must allocate new memory; there is no other effect.
func (s *Server) stopIdle()  { s.idle.Stop() }
func (s *Server) startIdle() { s.idle.Reset(cmp.Or(s.Idle, DefaultIdle)) }

func (s *Server) trim() {
	if b, err := s.load(); err == nil {
		s.Log.Debug("memory is given back, no client has work")
		b.Trim()
	}
}

// add counts a connection until remove. nil: it is refused.
func (s *Server) add(c *transport.Conn) *stop {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= MaxSessions {
		s.Log.Warn("a connection is refused", "sessions", len(s.conns))
		return nil
	}
	end := newStop(c)
	s.conns[c] = end
	if s.stopping != "" {
		end.begin(s.stopping)
	}
	return end
}

func (s *Server) remove(end *stop) {
	close(end.ended)
	_ = end.c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, end.c)
}

// client serves one connection on its own OS thread, which ends with the connection: executors keep state per thread,
// which no other goroutine must find.
func (s *Server) client(c *transport.Conn, takesBlocks bool, end *stop) {
	goruntime.LockOSThread()
	defer s.remove(end)
	log := s.Log
	err := s.session(c, takesBlocks, end, &log)
	var f *fault
	switch {
	case err == nil:
		log.Info("session ended")
	case errors.Is(err, errDrained):
		log.Info("session ended: the worker is being stopped")
		end.say()
	case errors.As(err, &f),
		errors.Is(err, transport.ErrFrameMagic), errors.Is(err, transport.ErrFrameVersion),
		errors.Is(err, transport.ErrFrameType), errors.Is(err, transport.ErrFrameReserved),
		errors.Is(err, transport.ErrFrameLimit), errors.Is(err, transport.ErrFrameBody),
		errors.Is(err, transport.ErrFrameMeta), errors.Is(err, transport.ErrFrameFile):
		log.Error("session ended: the client broke the protocol", "error", err)
		Refuse(c, 0, err.Error())
	default:
		log.Warn("session ended", "error", err)
	}
}

// doneLinger is how long the answers to short calls may wait for others. Each message wakes a thread of the client,
// which usually is many calls ahead.
const doneLinger = time.Millisecond

// session exchanges Hellos with a client and serves it. A panic ends this session only.
func (s *Server) session(c *transport.Conn, takesBlocks bool, end *stop, log **slog.Logger) (err error) {
	defer func() {
		if r := recover(); r != nil {
			(*log).Error("panic", "value", r, "stack", string(debug.Stack()))
			err = faultf("The worker has a bug: %v. Its log has the stack.", r)
		}
	}()
	_ = c.Net().SetReadDeadline(time.Now().Add(HelloWait))
	h, err := c.Next()
	if err != nil {
		return err
	}
	if h.Type != transport.Hello || h.Payload != 0 {
		return faultf("The first frame is %v, not Hello.", h.Type)
	}
	var hello proto.Hello
	if err := c.Meta(&hello); err != nil {
		return err
	}
	_ = c.Net().SetReadDeadline(time.Time{})
	*log = (*log).With("client", hello.Pid)
	if text := mismatch(&hello); text != "" {
		(*log).Error("client refused", "reason", text)
		Refuse(c, h.Seq, text)
		return nil
	}
	if err := s.enter(hello.Client); err != nil {
		return err
	}
	x, err := s.executor(hello.Device)
	if err != nil {
		Refuse(c, h.Seq, err.Error())
		return nil
	}
	if s.Ready != nil {
		if err := s.Ready(); err != nil {
			x.Close()
			Refuse(c, h.Seq, err.Error())
			return nil
		}
	}
	store := newStore(cmp.Or(s.ProgramBytes, DefaultProgramBytes), x, s.Journal)
	ses := &session{
		c: c, x: x, log: *log, store: store, takesBlocks: takesBlocks, stopIdle: s.stopIdle, startIdle: s.startIdle,
		keeper: s.Keeper, uploads: uint64(max(s.Uploads, 0)), end: end, journal: s.Journal, progress: s.Progress,
		passer: s.Passer, helper: s.Helper,
	}
	defer s.startIdle() // after the session's memory is free
	defer ses.close()
	info := x.Info()
	(*log).Info("session", "device", info.Device, "name", info.Name, "torch", info.Torch)
	s.Journal.About(strings.Join([]string{info.Device, info.Name, info.Torch}, "\n"))
	answer := OwnHello()
	answer.Device, answer.DeviceName, answer.Torch = info.Device, info.Name, info.Torch
	answer.MemoryBytes, answer.Processors = info.MemoryBytes, uint32(info.Processors)
	answer.Offers = s.Keeper != nil && s.Uploads > 0
	answer.Fetches = s.Helper != nil
	if takesBlocks {
		answer.Blocks = maxBlocks
	}
	if err := c.Send(transport.Hello, h.Seq, answer, nil); err != nil {
		return err
	}
	c.Sleep()
	c.Linger(doneLinger)
	return ses.serve()
}

// enter lets a client in. One without a name is another one in each of its sessions.
func (s *Server) enter(client string) error {
	switch {
	case s.Enter == nil:
		return nil
	case client == "":
		client = transport.NewSessionName()
	case !transport.ValidClient(client):
		return faultf("The name of a client has %d lower-case letters and digits from 2 to 7, not %q.",
			transport.NameBytes, client[:min(len(client), transport.NameBytes+1)])
	}
	return s.Enter(client)
}

// executor makes an executor on a device that a client wants, or on the backend's own.
func (s *Server) executor(device string) (executor.Executor, error) {
	const longest = 32
	if len(device) > longest {
		return nil, executor.Errorf(proto.ErrValue, "The name of a device has at most %d bytes, not %d.", longest,
			len(device))
	}
	b, err := s.load()
	if err != nil {
		return nil, err
	}
	return b.New(device)
}

// Refuse sends a client the reason why its session ends. It then discards what the client is still sending, so that the
// client reads the reason. It waits for at most a second, because a client that broke the protocol may not read at all.
func Refuse(c *transport.Conn, seq uint64, text string) { last(c, seq, text, LastWait) }

// last sends the last frame of a session, with the reason of its end, and discards what the client is still sending.
func last(c *transport.Conn, seq uint64, text string, wait time.Duration) {
	c.Awake()
	if sayLast(c, seq, text, wait) == nil {
		_, _ = io.Copy(io.Discard, c.Net())
	}
}

// sayLast sends the last frame of a session. An error means that the client gets no end of the stream.
func sayLast(c *transport.Conn, seq uint64, text string, wait time.Duration) error {
	_ = c.Net().SetDeadline(time.Now().Add(wait))
	hello := OwnHello()
	hello.Error = text
	if err := c.Send(transport.Hello, seq, hello, nil); err != nil {
		return err
	}
	u, ok := c.Net().(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return u.CloseWrite()
}

func OwnHello() *proto.Hello {
	return &proto.Hello{
		Protocol: transport.Version,
		Build:    transport.Build,
		Abi:      proto.ABIVersion,
		Pid:      uint64(os.Getpid()),
		Host:     transport.Host(),
	}
}

// mismatch returns the reason why a client of another build cannot be served, or "".
func mismatch(h *proto.Hello) string {
	const what = "Client and worker come from different installations. " +
		"Reinstall the package: pip install --force-reinstall --no-deps mycelya-torch."
	switch {
	case h.Protocol != transport.Version:
		return fmt.Sprintf("The client speaks version %d of the protocol, the worker version %d. %s",
			h.Protocol, transport.Version, what)
	case h.Abi != proto.ABIVersion:
		return fmt.Sprintf("The client has version %d of the ABI, the worker version %d. %s", h.Abi, proto.ABIVersion, what)
	case h.Build != transport.Build:
		return fmt.Sprintf("The client is build %q, the worker build %q. %s", h.Build, transport.Build, what)
	}
	return ""
}
