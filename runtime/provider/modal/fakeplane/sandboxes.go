// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakeplane

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// page is how many sandboxes one answer lists. Few, so that tests see several pages.
const page = 3

// sandbox finds a sandbox.
func (p *Plane) sandbox(id string) (*sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sandboxes {
		if s.id == id || s.task == id {
			return s, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no sandbox %q", id)
}

// refusal is why a sandbox cannot be created; nil: it can. The caller holds the lock.
func (p *Plane) refusal(r *pb.SandboxCreateRequest) error {
	d := r.GetDefinition()
	gpu := d.GetResources().GetGpuConfig().GetGpuType()
	image := p.images[d.GetImageId()]
	switch {
	case !slices.Contains(mapValues(p.apps), r.GetAppId()):
		return status.Errorf(codes.NotFound, "there is no app %q", r.GetAppId())
	case image == nil || !image.built:
		return status.Errorf(codes.NotFound, "there is no image %q", d.GetImageId())
	case gpu != "" && !slices.Contains(gpuTypes, gpu):
		return status.Errorf(codes.InvalidArgument, "GPU type %q is not supported", gpu)
	case p.faults.Quota:
		return status.Error(codes.ResourceExhausted, "the workspace has reached its limit of 10 GPUs")
	case gpu != "" && slices.Contains(p.faults.NoCapacity, gpu):
		return status.Errorf(codes.ResourceExhausted, "no capacity for GPU type %q", gpu)
	case d.GetTimeoutSecs() < 1 || d.GetTimeoutSecs() > 24*3600:
		return status.Error(codes.InvalidArgument, "the timeout must be between 1 second and 24 hours")
	}
	for _, region := range d.GetSchedulerPlacement().GetRegions() {
		if !slices.Contains(regions, region) {
			return status.Errorf(codes.InvalidArgument, "region %q does not exist", region)
		}
	}
	for _, s := range p.sandboxes {
		if s.name != "" && s.name == d.GetName() && s.app == r.GetAppId() && !s.over() {
			return status.Errorf(codes.AlreadyExists, "there is a sandbox with the name %q", s.name)
		}
	}
	return nil
}

func mapValues(m map[string]string) (out []string) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

// SandboxCreate implements the service.
func (p *Plane) SandboxCreate(_ context.Context, r *pb.SandboxCreateRequest) (*pb.SandboxCreateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refusal(r); err != nil {
		return nil, err
	}
	d := r.GetDefinition()
	s := newSandbox(p, rand.Text(), d)
	s.app = r.GetAppId()
	for _, id := range d.GetSecretIds() {
		env, ok := p.secrets[id]
		if !ok {
			return nil, status.Errorf(codes.NotFound, "there is no secret %q", id)
		}
		for name, value := range env {
			s.env[name] = value
		}
	}
	for _, m := range d.GetVolumeMounts() {
		if !slices.Contains(mapValues(p.volumes), m.GetVolumeId()) {
			return nil, status.Errorf(codes.NotFound, "there is no volume %q", m.GetVolumeId())
		}
		s.mounts[m.GetMountPath()] = filepath.Join(p.options.Folder, m.GetVolumeId())
	}
	p.sandboxes = append(p.sandboxes, s)
	go s.run(!slices.Contains(p.faults.NeverStarts, d.GetResources().GetGpuConfig().GetGpuType()))
	if p.faults.LoseCreate {
		return nil, status.Error(codes.FailedPrecondition, "the answer is lost")
	}
	return pb.SandboxCreateResponse_builder{SandboxId: s.id}.Build(), nil
}

// SandboxWait implements the service.
func (p *Plane) SandboxWait(ctx context.Context, r *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	s, err := p.sandbox(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if r.GetTimeout() > 0 {
		select {
		case <-s.done:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-time.After(time.Duration(float64(r.GetTimeout()) * float64(time.Second))):
		}
	}
	return pb.SandboxWaitResponse_builder{Result: s.how()}.Build(), nil
}

// SandboxTerminate implements the service.
func (p *Plane) SandboxTerminate(_ context.Context, r *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse,
	error) {
	s, err := p.sandbox(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	existing := s.how()
	s.end(pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_TERMINATED}.Build())
	return pb.SandboxTerminateResponse_builder{ExistingResult: existing}.Build(), nil
}

// SandboxGetTunnels implements the service.
func (p *Plane) SandboxGetTunnels(ctx context.Context, r *pb.SandboxGetTunnelsRequest) (*pb.SandboxGetTunnelsResponse,
	error) {
	s, err := p.sandbox(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	late := pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_TIMEOUT}.Build()
	select {
	case <-s.started:
		return pb.SandboxGetTunnelsResponse_builder{Tunnels: s.tunnels.data}.Build(), nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-s.done:
	case <-time.After(time.Duration(float64(r.GetTimeout()) * float64(time.Second))):
	}
	return pb.SandboxGetTunnelsResponse_builder{Result: late}.Build(), nil
}

// SandboxGetTaskId implements the service. A sandbox has a task once it runs.
func (p *Plane) SandboxGetTaskId(_ context.Context, r *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse,
	error) {
	s, err := p.sandbox(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	out := pb.SandboxGetTaskIdResponse_builder{TaskResult: s.how()}
	select {
	case <-s.started:
		out.TaskId = &s.task
	default:
	}
	return out.Build(), nil
}

// SandboxGetFromName implements the service.
func (p *Plane) SandboxGetFromName(_ context.Context, r *pb.SandboxGetFromNameRequest) (*pb.SandboxGetFromNameResponse,
	error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sandboxes {
		if s.name == r.GetSandboxName() && s.app == p.apps[r.GetAppName()] && !s.over() {
			return pb.SandboxGetFromNameResponse_builder{SandboxId: s.id}.Build(), nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no sandbox %q runs", r.GetSandboxName())
}

// SandboxList implements the service.
func (p *Plane) SandboxList(_ context.Context, r *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []*sandbox
	for _, s := range p.sandboxes {
		fits := s.app == r.GetAppId() && !s.over() && (r.GetBeforeTimestamp() == 0 || s.stamp() < r.GetBeforeTimestamp())
		for _, t := range r.GetTags() {
			fits = fits && s.tags[t.GetTagName()] == t.GetTagValue()
		}
		if fits {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, newestFirst)
	var out []*pb.SandboxInfo
	for _, s := range found[:min(page, len(found))] {
		idle := s.definition.GetIdleTimeoutSecs()
		out = append(out, pb.SandboxInfo_builder{Id: s.id, CreatedAt: s.stamp(), AppId: s.app, Tags: tagList(s.tags),
			Name: s.name, ImageId: s.definition.GetImageId(), TimeoutSecs: s.definition.GetTimeoutSecs(),
			IdleTimeoutSecs: &idle}.Build())
	}
	return pb.SandboxListResponse_builder{Sandboxes: out}.Build(), nil
}

func tagList(tags map[string]string) (out []*pb.SandboxTag) {
	for name, value := range tags {
		out = append(out, pb.SandboxTag_builder{TagName: name, TagValue: value}.Build())
	}
	return out
}

// maxTag bounds names and values of tags.
const maxTag = 63

// SandboxTagsSet implements the service.
func (p *Plane) SandboxTagsSet(_ context.Context, r *pb.SandboxTagsSetRequest) (*emptypb.Empty, error) {
	s, err := p.sandbox(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	tags := map[string]string{}
	for _, t := range r.GetTags() {
		for _, text := range []string{t.GetTagName(), t.GetTagValue()} {
			strange := strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
			if text == "" || len(text) > maxTag || strange != "" {
				return nil, status.Errorf(codes.InvalidArgument, "%q is not possible in a tag", text)
			}
		}
		tags[t.GetTagName()] = t.GetTagValue()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.tags = tags
	return &emptypb.Empty{}, nil
}

// SandboxTagsGet implements the service.
func (p *Plane) SandboxTagsGet(_ context.Context, r *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	s, err := p.sandbox(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return pb.SandboxTagsGetResponse_builder{Tags: tagList(s.tags)}.Build(), nil
}

// SandboxGetLogs implements the service. An entry's id is the number of bytes up to its end.
func (p *Plane) SandboxGetLogs(r *pb.SandboxGetLogsRequest, to grpc.ServerStreamingServer[pb.TaskLogsBatch]) error {
	s, err := p.sandbox(r.GetSandboxId())
	if err != nil {
		return err
	}
	of := s.out
	if r.GetFileDescriptor() == pb.FileDescriptor_FILE_DESCRIPTOR_STDERR {
		of = s.err
	}
	ctx, cancel := context.WithTimeout(to.Context(), time.Duration(float64(r.GetTimeout())*float64(time.Second)))
	defer cancel()
	text, _, _ := strings.Cut(r.GetLastEntryId(), "-")
	at, _ := strconv.Atoi(text)
	for {
		more, over := of.after(ctx, at)
		if len(more) == 0 && !over {
			return nil // the client asks again
		}
		at += len(more)
		line := pb.TaskLogs_builder{Data: strings.ToValidUTF8(string(more), "?"), FileDescriptor: r.GetFileDescriptor()}
		err := to.Send(pb.TaskLogsBatch_builder{EntryId: strconv.Itoa(at) + "-0", Items: []*pb.TaskLogs{line.Build()},
			Eof: over}.Build())
		if err != nil || over {
			return err
		}
	}
}
