// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakeplane

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"syscall"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// execution is a command in a running sandbox.
type execution struct {
	cmd      *exec.Cmd
	out, err *output
	done     chan struct{}

	mu    sync.Mutex
	stdin *os.File // nil once it is closed
	taken uint64   // bytes of stdin
}

// TaskGetCommandRouterAccess implements the service: this plane is the router, too. The client of the SDK insists on
// https in the text, and connects to a loopback server without it.
func (p *Plane) TaskGetCommandRouterAccess(_ context.Context, r *pb.TaskGetCommandRouterAccessRequest) (
	*pb.TaskGetCommandRouterAccessResponse, error) {
	if _, err := p.sandbox(r.GetTaskId()); err != nil {
		return nil, err
	}
	return pb.TaskGetCommandRouterAccessResponse_builder{Url: "https://" + p.addr, Jwt: jwt()}.Build(), nil
}

// execution finds a command.
func (p *Plane) execution(task, id string) (*execution, error) {
	s, err := p.sandbox(task)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.execs[id]; e != nil {
		return e, nil
	}
	return nil, status.Errorf(codes.NotFound, "there is no command %q", id)
}

// TaskExecStart implements the service.
func (p *Plane) TaskExecStart(_ context.Context, r *pb.TaskExecStartRequest) (*pb.TaskExecStartResponse, error) {
	s, err := p.sandbox(r.GetTaskId())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.result != nil {
		return nil, status.Error(codes.FailedPrecondition, "the sandbox has ended")
	}
	if s.execs[r.GetExecId()] != nil {
		return &pb.TaskExecStartResponse{}, nil // a request that came twice
	}
	e := &execution{out: newOutput(), err: newOutput(), done: make(chan struct{})}
	if e.cmd = s.command(r.GetCommandArgs(), nil); e.cmd == nil {
		return nil, status.Error(codes.InvalidArgument, "there is no command")
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	e.cmd.Stdin, e.stdin = theirs, ours
	read := new(sync.WaitGroup)
	ends, err := pipes(e.cmd, e.out, e.err, read)
	if err == nil {
		err = e.cmd.Start()
	}
	for _, f := range append(ends, theirs) {
		_ = f.Close()
	}
	if err != nil {
		_ = ours.Close()
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	s.execs[r.GetExecId()] = e
	s.users++
	go func() {
		_ = e.cmd.Wait()
		read.Wait()
		e.out.end()
		e.err.end()
		close(e.done)
		s.idle()
	}()
	return &pb.TaskExecStartResponse{}, nil
}

// TaskExecStdinWrite implements the service. Bytes that were written before may come again.
func (p *Plane) TaskExecStdinWrite(_ context.Context, r *pb.TaskExecStdinWriteRequest) (*pb.TaskExecStdinWriteResponse,
	error) {
	e, err := p.execution(r.GetTaskId(), r.GetExecId())
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.GetOffset() > e.taken {
		return nil, status.Error(codes.OutOfRange, "bytes are missing before these")
	}
	if known := e.taken - r.GetOffset(); e.stdin != nil && known <= uint64(len(r.GetData())) {
		data := r.GetData()[known:]
		p.mu.Lock()
		p.uploads += len(data)
		if p.faults.BadUpload && len(data) > 100 {
			data[len(data)/2] ^= 1
		}
		p.mu.Unlock()
		if _, err := e.stdin.Write(data); err != nil {
			return nil, status.Error(codes.FailedPrecondition, "the command reads no more")
		}
		e.taken += uint64(len(data))
	}
	if r.GetEof() && e.stdin != nil {
		_ = e.stdin.Close()
		e.stdin = nil
	}
	return &pb.TaskExecStdinWriteResponse{}, nil
}

// TaskExecStdioRead implements the service.
func (p *Plane) TaskExecStdioRead(r *pb.TaskExecStdioReadRequest,
	to grpc.ServerStreamingServer[pb.TaskExecStdioReadResponse]) error {
	e, err := p.execution(r.GetTaskId(), r.GetExecId())
	if err != nil {
		return err
	}
	of := e.out
	if r.GetFileDescriptor() == pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR {
		of = e.err
	}
	for at := int(r.GetOffset()); ; {
		more, over := of.after(to.Context(), at)
		if len(more) == 0 {
			return to.Context().Err()
		}
		at += len(more)
		if err := to.Send(pb.TaskExecStdioReadResponse_builder{Data: more}.Build()); err != nil || over {
			return err
		}
	}
}

// TaskExecWait implements the service.
func (p *Plane) TaskExecWait(ctx context.Context, r *pb.TaskExecWaitRequest) (*pb.TaskExecWaitResponse, error) {
	e, err := p.execution(r.GetTaskId(), r.GetExecId())
	if err != nil {
		return nil, err
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	code := int32(e.cmd.ProcessState.ExitCode())
	if ws, ok := e.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		signal := int32(ws.Signal())
		return pb.TaskExecWaitResponse_builder{Signal: &signal}.Build(), nil
	}
	return pb.TaskExecWaitResponse_builder{Code: &code}.Build(), nil
}
