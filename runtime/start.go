// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/provider"
)

const (
	frameHeader = 32 // bytes

	// A worker answers Hello once it has loaded PyTorch: a second from a warm disk, and cold disks and CUDA
	// contexts may take much longer.
	helloWait = 3 * time.Minute
	// A worker that was told to stop has this long to finish what it runs.
	stopGrace = 500 * time.Millisecond
)

// frameBytes is the size of a frame without the Arrow header of its body.
func frameBytes(m protobuf.Message, body []byte) uint64 {
	return uint64(frameHeader + protobuf.Size(m) + len(body))
}

// start starts the worker and exchanges Hellos.
func (s *session) start() {
	began := time.Now()
	instance, err := s.bringUp()
	if err != nil {
		text := fmt.Sprintf("%s could not start its worker: %v", s.device(), err)
		s.lose(s.worker, &Error{Kind: KindRuntime, Text: text}, "")
		return
	}
	s.mu.Lock()
	s.instance = instance
	s.mu.Unlock()
	conn, hello, err := s.greet(instance)
	if err != nil {
		s.lost(s.worker, err)
		return
	}
	s.compiler.Worker(hello)
	received := make(chan struct{})
	actions, ok := s.connected(conn, hello, received)
	if !ok {
		conn.Close()
		return
	}
	s.log.Info("worker started", "pid", hello.Pid, "device", hello.Device, "torch", hello.Torch,
		"took", time.Since(began))
	if n, ok := instance.(provider.Noter); ok && n.Note() != "" {
		s.log.Warn(n.Note())
	}
	conn.FlushesAlone()
	conn.Sleep()
	go s.receive(conn, s.worker, received)
	go s.watch(conn, s.worker, received)
	s.performAll(actions)
}

// connected makes conn the session's connection, and returns the actions of the start. False: the session has ended.
func (s *session) connected(conn *transport.Conn, hello *proto.Hello, received chan struct{}) ([]core.Action, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.core.Gone() != nil {
		return nil, false
	}
	s.conn, s.hello, s.received = conn, hello, received
	return s.core.Step(core.WorkerStarted{MaxBlocks: maxBlocks(conn, hello)}, nil), true
}

// runs says whether the worker runs, or has run.
func (s *session) runs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hello != nil
}

// info returns the worker's Hello.
func (s *session) info() (*proto.Hello, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hello == nil && s.core.Gone() == nil {
		return nil, &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: the worker of mycelya:%d was not started.", s.index)}
	}
	return s.hello, s.core.Gone()
}

// greet opens the session's stream with the client's Hello, and reads the worker's.
func (s *session) greet(instance provider.Instance) (*transport.Conn, *proto.Hello, error) {
	ctx, cancel := context.WithTimeout(s.ctx, helloWait)
	defer cancel()
	watch := &linkWatch{s: s, instance: instance}
	ours := &proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion, Device: s.wanted(),
		Client: s.machine().name}
	first, err := transport.Frame(transport.Hello, 0, ours)
	if err != nil {
		return nil, nil, err
	}
	c, err := provider.Open(ctx, instance, s.name, first, watch.notice)
	switch {
	case errors.Is(err, link.ErrFull):
		err = refused("It cannot start another session: it has as many as it may have, or its host lacks something for one.")
	case errors.Is(err, link.ErrVersion):
		err = refused(fmt.Sprintf("Client and worker come from different installations: %v. Reinstall the package.", err))
	}
	if err != nil {
		return nil, nil, err
	}
	watch.stream(c)
	conn := transport.New(c)
	// Next has no context: the end of ours closes the connection under it.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	hello, err := theirs(conn)
	if !stop() && err != nil {
		err = fmt.Errorf("the worker did not say hello: %w", context.Cause(ctx))
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, hello, nil
}

// theirs reads the worker's Hello.
func theirs(conn *transport.Conn) (*proto.Hello, error) {
	h, err := conn.Next()
	if err != nil {
		return nil, err
	}
	hello := new(proto.Hello)
	switch h.Type {
	case transport.Hello:
	case transport.EndedReply:
		end := processEnded{new(proto.EndedReply)}
		if err := conn.Meta(end.EndedReply); err != nil {
			return nil, err
		}
		return nil, end
	default:
		return nil, fmt.Errorf("the worker began with a %v", h.Type)
	}
	if err := conn.Meta(hello); err != nil {
		return nil, err
	}
	switch {
	case hello.Error != "":
		return nil, refused(hello.Error)
	case hello.Protocol != transport.Version || hello.Build != transport.Build:
		return nil, refused(fmt.Sprintf("The worker is build %s (wire version %d), this package is build %s (wire "+
			"version %d). Reinstall the package.", hello.Build, hello.Protocol, transport.Build, transport.Version))
	case hello.Abi != proto.ABIVersion:
		return nil, refused(fmt.Sprintf("The worker's ABI is %d, this package's is %d. Reinstall the package.",
			hello.Abi, proto.ABIVersion))
	}
	return hello, nil
}

// refused is a worker's reason why it can't serve, in its own words.
type refused string

func (r refused) Error() string { return string(r) }

func stop(instance provider.Instance) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = instance.Stop(ctx, stopGrace)
}

// fds are the descriptors of this process that a forked child must close.
func (s *session) fds() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []int
	if s.instance != nil && s.first == nil {
		out = append(out, s.instance.FDs()...)
	}
	if s.conn != nil {
		out = append(out, descriptors(s.conn.Net())...)
	}
	return out
}

func descriptors(c net.Conn) (out []int) {
	for {
		above, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = above.NetConn()
	}
	if sc, ok := c.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { out = append(out, int(fd)) })
		}
	}
	return out
}
