// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package fakeplane is a control plane of Modal for tests, in this process and on the loopback interface. Its sandboxes
// are processes of this host in folders of their own, so that the worker in them is the real one. It knows only tokens
// that it has invented, and never connects to Modal.
package fakeplane

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Options are a plane's.
type Options struct {
	Folder string // an empty folder, for those of sandboxes and volumes
	// Path is PATH in the sandboxes; "": that of this process.
	Path string
	// Serve passes the connections of a listener, a raw TCP tunnel, on to an address until the listener is closed. nil:
	// there is nothing between.
	Serve func(l net.Listener, to string)
}

// Faults are what goes wrong on a plane.
type Faults struct {
	NoCapacity  []string      // GPU types without capacity
	NeverStarts []string      // GPU types whose sandboxes wait for ever; "" is that of sandboxes without a GPU
	Quota       bool          // the workspace has reached its limit
	BadToken    bool          // the token is revoked
	Build       string        // why no image can be built; "": images can be built
	BlockRaw    bool          // connections to raw TCP tunnels open, and nothing answers
	BlockTLS    bool          // the same for tunnels with TLS
	Slow        time.Duration // each request takes so long
	// LoseCreate: a sandbox is created, and its creator learns of an error.
	LoseCreate bool
	BadUpload  bool // files arrive changed
}

// gpuTypes are the types that Modal has, in its words.
var gpuTypes = []string{"T4", "L4", "A10", "A10G", "L40S", "A100", "A100-40GB", "A100-80GB", "RTX-PRO-6000", "H100",
	"H100!", "H200", "B200", "B200+"}

var regions = []string{"us", "us-east", "us-west", "eu", "eu-west", "ap"}

// Plane is a control plane. All methods may be called concurrently.
type Plane struct {
	pb.UnimplementedModalClientServer
	pb.UnimplementedTaskCommandRouterServer

	options    Options
	server     *grpc.Server
	addr       string
	id, secret string // the token of Environ

	mu        sync.Mutex
	tokens    map[string]string // id to secret
	second    time.Duration     // that of the sandboxes' clocks
	faults    Faults
	apps      map[string]string            // name to id
	secrets   map[string]map[string]string // id to variables
	volumes   map[string]string            // name to id
	images    map[string]*image            // by id
	sandboxes []*sandbox                   // oldest first
	builds    int                          // images that were built
	uploads   int                          // bytes that came in on the stdin of commands
}

type image struct {
	id, key string
	built   bool
}

// Start starts a plane.
func Start(o Options) (*Plane, error) {
	if o.Path == "" {
		o.Path = os.Getenv("PATH")
	}
	p := &Plane{options: o, second: time.Second, id: "ak-" + rand.Text(), secret: "as-" + rand.Text(),
		apps: map[string]string{}, secrets: map[string]map[string]string{}, volumes: map[string]string{},
		images: map[string]*image{}}
	p.tokens = map[string]string{p.id: p.secret}
	err := shared().err
	if err == nil {
		err = os.WriteFile(filepath.Join(o.Folder, "roots.pem"), shared().text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.addr = l.Addr().String()
	p.server = grpc.NewServer(grpc.MaxRecvMsgSize(100<<20), grpc.UnaryInterceptor(p.unary),
		grpc.StreamInterceptor(p.stream))
	pb.RegisterModalClientServer(p.server, p)
	pb.RegisterTaskCommandRouterServer(p.server, p)
	go func() { _ = p.server.Serve(l) }()
	return p, nil
}

// Environ returns the variables with which a client uses the plane, and no account of its user.
func (p *Plane) Environ() map[string]string {
	return map[string]string{
		"MODAL_SERVER_URL":   "http://" + p.addr,
		"MODAL_TOKEN_ID":     p.id,
		"MODAL_TOKEN_SECRET": p.secret,
		"MODAL_CONFIG_PATH":  os.DevNull,
		"MODAL_ENVIRONMENT":  "",
		"MODAL_PROFILE":      "",
		// The roots of TLS: those of the tunnels alone.
		"SSL_CERT_FILE": filepath.Join(p.options.Folder, "roots.pem"),
		"SSL_CERT_DIR":  p.options.Folder,
	}
}

// Inject changes what goes wrong.
func (p *Plane) Inject(change func(*Faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.faults)
}

// AddToken lets another user of the workspace in.
func (p *Plane) AddToken(id, secret string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens[id] = secret
}

// Folder is that of the sandboxes and volumes.
func (p *Plane) Folder() string { return p.options.Folder }

// Hurry sets how long a second of the sandboxes' clocks lasts from now on, and in the past.
func (p *Plane) Hurry(second time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.second = second
}

// ForgetImages removes all images, as Modal removes those that nobody has used for long.
func (p *Plane) ForgetImages() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.images = map[string]*image{}
}

// Builds is how many layers of images were built, Uploads how many bytes commands have got.
func (p *Plane) Builds() int  { p.mu.Lock(); defer p.mu.Unlock(); return p.builds }
func (p *Plane) Uploads() int { p.mu.Lock(); defer p.mu.Unlock(); return p.uploads }

// Running returns the ids of the sandboxes that have not ended, oldest first.
func (p *Plane) Running() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sandboxes {
		if !s.over() {
			ids = append(ids, s.id)
		}
	}
	return ids
}

// Created is how many sandboxes there were.
func (p *Plane) Created() int { p.mu.Lock(); defer p.mu.Unlock(); return len(p.sandboxes) }

// Definition returns what a sandbox was created with, and its tags.
func (p *Plane) Definition(id string) (*pb.Sandbox, map[string]string) {
	s, err := p.sandbox(id)
	if err != nil {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.definition, s.tags
}

// End ends a sandbox from without, as the plane does with one whose host it needs.
func (p *Plane) End(id string, why pb.GenericResult_GenericStatus, text string) {
	if s, err := p.sandbox(id); err == nil {
		s.end(pb.GenericResult_builder{Status: why, Exception: text}.Build())
		<-s.done
	}
}

// Kill kills the command of a sandbox.
func (p *Plane) Kill(id string) {
	if s, err := p.sandbox(id); err == nil {
		s.kill()
	}
}

// Close ends all sandboxes and the plane.
func (p *Plane) Close() {
	for _, id := range p.Running() {
		p.End(id, pb.GenericResult_GENERIC_STATUS_TERMINATED, "the plane ends")
	}
	p.server.Stop()
}

func (p *Plane) fault() Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// unary checks the token of each request.
func (p *Plane) unary(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := p.allowed(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return next(ctx, r)
}

func (p *Plane) stream(of any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := p.allowed(s.Context(), info.FullMethod); err != nil {
		return err
	}
	return next(of, s)
}

// allowed refuses requests without the token. Those to a command router carry a token of a sandbox instead.
func (p *Plane) allowed(ctx context.Context, method string) error {
	f := p.fault()
	select {
	case <-time.After(f.Slow):
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if pb.TaskCommandRouter_ServiceDesc.ServiceName == filepath.Dir(method)[1:] {
		if len(md.Get("authorization")) == 1 {
			return nil
		}
		return status.Error(codes.Unauthenticated, "no token of the sandbox")
	}
	id, secret := md.Get("x-modal-token-id"), md.Get("x-modal-token-secret")
	p.mu.Lock()
	known := len(id) == 1 && len(secret) == 1 && secret[0] != "" && p.tokens[id[0]] == secret[0]
	p.mu.Unlock()
	if f.BadToken || !known {
		return status.Error(codes.Unauthenticated, "Token ID is malformed or has been revoked")
	}
	return nil
}

// jwt is a token that says until when it is valid. Clients read that and check no signature.
func jwt() string {
	claims := fmt.Sprintf(`{"exp":%d}`, time.Now().Add(24*time.Hour).Unix())
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"none"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("x"))
}

// AuthTokenGet implements the service.
func (p *Plane) AuthTokenGet(context.Context, *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	return pb.AuthTokenGetResponse_builder{Token: jwt()}.Build(), nil
}

// creates says whether a request asks for an object that may not exist yet.
func creates(t pb.ObjectCreationType) bool {
	return t != pb.ObjectCreationType_OBJECT_CREATION_TYPE_UNSPECIFIED
}

// object returns the id of a named object.
func (p *Plane) object(of map[string]string, prefix, name string, t pb.ObjectCreationType) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of[name] == "" && !creates(t) {
		return "", status.Errorf(codes.NotFound, "there is no %q", name)
	}
	if of[name] == "" {
		of[name] = prefix + rand.Text()
	}
	return of[name], nil
}

// AppGetOrCreate implements the service.
func (p *Plane) AppGetOrCreate(_ context.Context, r *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	id, err := p.object(p.apps, "ap-", r.GetAppName(), r.GetObjectCreationType())
	return pb.AppGetOrCreateResponse_builder{AppId: id}.Build(), err
}

// VolumeGetOrCreate implements the service. A volume is a folder.
func (p *Plane) VolumeGetOrCreate(_ context.Context, r *pb.VolumeGetOrCreateRequest) (*pb.VolumeGetOrCreateResponse,
	error) {
	id, err := p.object(p.volumes, "vo-", r.GetDeploymentName(), r.GetObjectCreationType())
	if err == nil {
		err = os.MkdirAll(filepath.Join(p.options.Folder, id), 0o700)
	}
	return pb.VolumeGetOrCreateResponse_builder{VolumeId: id}.Build(), err
}

// Volume returns the folder of a volume.
func (p *Plane) Volume(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return filepath.Join(p.options.Folder, p.volumes[name])
}

// SecretGetOrCreate implements the service, for secrets without a name.
func (p *Plane) SecretGetOrCreate(_ context.Context, r *pb.SecretGetOrCreateRequest) (*pb.SecretGetOrCreateResponse,
	error) {
	if r.GetObjectCreationType() != pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL {
		return nil, status.Errorf(codes.NotFound, "there is no secret %q", r.GetDeploymentName())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	id := "st-" + rand.Text()
	p.secrets[id] = r.GetEnvDict()
	return pb.SecretGetOrCreateResponse_builder{SecretId: id}.Build(), nil
}
