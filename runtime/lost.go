// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

const (
	// After its connection has ended, a worker has this long to tell how the session's process has ended. It waits for a
	// process that ends (worker.leaveWait).
	askWait = 6 * time.Second
	// A worker that does not tell it has this long to end, too.
	exitWait = 2 * time.Second
	// When the worker has closed its end of the stream, the receiver has this long to read what is still in it. It needs
	// little time itself, but a busy processor may delay it.
	receiverWait = 5 * time.Second
)

// A worker that has ended a session with a reason has this long to end because of an error of its own.
const lastWordWait = 200 * time.Millisecond

// device names the session in sentences: "mycelya:1, machine left,".
func (s *session) device() string {
	if s.paths.Request.Session == "" {
		return fmt.Sprintf("mycelya:%d", s.index)
	}
	return fmt.Sprintf("mycelya:%d, machine %s,", s.index, s.paths.Request.Session)
}

// lost ends the session because of a failed start or a broken connection. The text has the known facts about the end of
// the process or the worker, and no guesses.
func (s *session) lost(life int, err error) {
	s.mu.Lock()
	gone, instance, hello := s.core.Gone(), s.instance, s.hello
	s.mu.Unlock()
	if gone != nil {
		return
	}
	var why refused
	if hello == nil && errors.As(err, &why) {
		text := fmt.Sprintf("%s could not start its worker: %s", s.device(), string(why))
		s.lose(life, &Error{Kind: KindRuntime, Text: text}, "")
		return
	}
	what, log := s.cause(err, instance, hello)
	if errors.As(err, &why) {
		what += " It said: " + string(why)
	}
	if hello == nil {
		s.lose(life, &Error{Kind: KindRuntime, Text: fmt.Sprintf("%s could not be started: %s%s", s.device(), what,
			logTail(log))}, "")
		return
	}
	final := why == transport.AnotherClient
	s.loseFor(life, &Error{Kind: KindLost, Text: fmt.Sprintf("%s is lost: %s All tensors on it are gone. "+
		"Call %s to use the device again.%s", s.device(), what, s.remedy(instance), logTail(log))}, what, final)
	if s.detached() || s.first != nil {
		return // it may have other clients, or serves the first device; restart stops it
	}
	go stop(instance) // nothing can use it any more: another one replaces it, or comes with a restart
}

// remedy is the call that makes the device usable again.
func (s *session) remedy(instance provider.Instance) string {
	switch {
	case s.paths.Request.Session == "":
		return fmt.Sprintf("torch.mycelya.restart(%d)", s.index)
	case s.first != nil && s.withFirst() == "":
		return "the machine's start()"
	case s.paths.Request.Attach && hasEnded(instance): // there is nothing to attach to
		return fmt.Sprintf("RemoteMachine(%q, name=%q, detached=True), and load() for what was saved,",
			instance.Handle().Provider, s.paths.Request.Session)
	}
	return "the machine's restart()"
}

// hasEnded says whether a worker is known to have ended, and not only its session.
func hasEnded(instance provider.Instance) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lastWordWait)
	defer cancel()
	_, err := instance.Wait(ctx)
	return err == nil
}

// cause says in a sentence why the connection has ended, and returns the log of what has ended.
func (s *session) cause(err error, instance provider.Instance, hello *proto.Hello) (what, log string) {
	if what := s.withFirst(); what != "" {
		return what, ""
	}
	var end processEnded
	if errors.As(err, &end) {
		return s.processEnd(end.EndedReply, instance.Handle()), end.Log
	}
	if errors.As(err, new(refused)) {
		return endOf(instance)
	}
	if streamEnded(err) {
		if end := askEnd(instance, s.name, hello.GetPid()); end.GetEnded() {
			return s.processEnd(end, instance.Handle()), end.Log
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), exitWait)
	defer cancel()
	what = fmt.Sprintf("its worker (%s) ", instance.Handle())
	exit, waitErr := instance.Wait(ctx)
	switch {
	case waitErr == nil:
		what += exit.String() + "."
	case streamEnded(err):
		what += "closed the connection."
	default:
		what += fmt.Sprintf("can't be reached any more: %v.", err)
	}
	return what, exit.Detail
}

// endOf says how a worker has ended a session for which it has given a reason.
func endOf(instance provider.Instance) (what, log string) {
	ctx, cancel := context.WithTimeout(context.Background(), lastWordWait)
	defer cancel()
	what = fmt.Sprintf("its worker (%s) ", instance.Handle())
	if exit, err := instance.Wait(ctx); err == nil && (exit.Code != 0 || exit.Signal != "") {
		return what + exit.String() + ".", exit.Detail
	}
	return what + "ended the session.", ""
}

// askEnd asks a worker how the process of a session has ended; nil if the worker does not answer. pid 0: the session
// has not said Hello.
func askEnd(instance provider.Instance, session string, pid uint64) *proto.EndedReply {
	ctx, cancel := context.WithTimeout(context.Background(), askWait)
	defer cancel()
	c, err := provider.Connect(ctx, instance, transport.EndOf(session))
	if err != nil {
		return nil
	}
	conn := transport.New(c)
	defer conn.Close()
	if at, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(at)
	}
	if conn.Send(transport.Ended, 0, &proto.Ended{Pid: pid}, nil) != nil {
		return nil
	}
	h, err := conn.Next()
	end := new(proto.EndedReply)
	if err != nil || h.Type != transport.EndedReply || conn.Meta(end) != nil {
		return nil
	}
	return end
}

// processEnd says how the process of the session has ended, and what it ran then.
func (s *session) processEnd(end *proto.EndedReply, worker provider.Handle) string {
	text := fmt.Sprintf("the process of its session (%d, of worker %s) ", end.Pid, worker)
	if end.Signal != "" {
		text += "was ended by signal " + end.Signal
	} else {
		text += fmt.Sprintf("ended with code %d", end.Code)
	}
	if end.OutOfMemory {
		text += ", and the system has killed for lack of memory in its control group"
	}
	s.mu.Lock()
	of, _ := s.core.Waiting(end.Call).(*call)
	hello := s.hello
	s.mu.Unlock()
	switch {
	case end.Call == 0:
		text += ", before its first call"
	case end.Step == 0:
		text += fmt.Sprintf(", after the steps of call %d", end.Call)
	default:
		text += fmt.Sprintf(", in call %d, step %d", end.Call, end.Step-1)
		if of != nil && end.Step-1 < uint64(len(of.variant.Compiled.Program.Steps)) {
			op, where := s.locate(of, uint32(end.Step-1))
			text += fmt.Sprintf(": %s, recorded %s", op, where)
		}
	}
	text += "."
	switch {
	case end.Dump == "":
	case hello.GetHost() != "" && hello.GetHost() == transport.Host():
		text += fmt.Sprintf(" Its last programs and calls are in %s.", end.Dump)
	default:
		text += fmt.Sprintf(" Its last programs and calls are on the worker's host, in %s.", end.Dump)
	}
	return text
}

// logTail is the end of a log, as the end of an error's text.
func logTail(log string) string {
	const most = 12 // lines
	lines := strings.Split(strings.TrimSpace(log), "\n")
	if len(lines) == 1 && lines[0] == "" {
		return ""
	}
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return "\nThe end of its log:\n  " + strings.Join(lines, "\n  ")
}
