// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakeplane

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ImageGetOrCreate implements the service. The same commands on the same image are the same image.
func (p *Plane) ImageGetOrCreate(_ context.Context, r *pb.ImageGetOrCreateRequest) (*pb.ImageGetOrCreateResponse,
	error) {
	commands := r.GetImage().GetDockerfileCommands()
	if len(commands) == 0 || !strings.HasPrefix(commands[0], "FROM ") {
		return nil, status.Error(codes.InvalidArgument, "a Dockerfile begins with FROM")
	}
	hash := sha256.New()
	for _, c := range commands {
		hash.Write([]byte(c + "\n"))
	}
	for _, base := range r.GetImage().GetBaseImages() {
		hash.Write([]byte(base.GetImageId()))
	}
	key := hex.EncodeToString(hash.Sum(nil))
	p.mu.Lock()
	defer p.mu.Unlock()
	var of *image
	for _, i := range p.images {
		if i.key == key {
			of = i
		}
	}
	if of == nil {
		of = &image{id: "im-" + rand.Text(), key: key}
		p.images[of.id] = of
	}
	out := pb.ImageGetOrCreateResponse_builder{ImageId: of.id}
	if of.built {
		out.Result = pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS}.Build()
	}
	return out.Build(), nil
}

// ImageJoinStreaming implements the service.
func (p *Plane) ImageJoinStreaming(r *pb.ImageJoinStreamingRequest,
	s grpc.ServerStreamingServer[pb.ImageJoinStreamingResponse]) error {
	why := p.fault().Build
	line := pb.TaskLogs_builder{Data: "Building " + r.GetImageId() + "\n" + why}.Build()
	err := s.Send(pb.ImageJoinStreamingResponse_builder{EntryId: "1", TaskLogs: []*pb.TaskLogs{line}}.Build())
	if err != nil {
		return err
	}
	result := pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS}
	if why != "" {
		result.Status, result.Exception = pb.GenericResult_GENERIC_STATUS_FAILURE, "a command has failed"
	} else {
		p.mu.Lock()
		if of := p.images[r.GetImageId()]; of != nil && !of.built {
			of.built = true
			p.builds++
		}
		p.mu.Unlock()
	}
	return s.Send(pb.ImageJoinStreamingResponse_builder{EntryId: "2", Result: result.Build()}.Build())
}

// ImageFromId implements the service.
func (p *Plane) ImageFromId(_ context.Context, r *pb.ImageFromIdRequest) (*pb.ImageFromIdResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of := p.images[r.GetImageId()]; of == nil || !of.built {
		return nil, status.Errorf(codes.NotFound, "there is no image %q", r.GetImageId())
	}
	return pb.ImageFromIdResponse_builder{ImageId: r.GetImageId()}.Build(), nil
}
