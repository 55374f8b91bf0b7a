// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/mycelya/mycelya/runtime/provider"
)

// client is a connection to Modal. Each instance has one, which ends with it.
type client struct {
	*sdk.Client
	user    atomic.Pointer[string]
	wayWait time.Duration // of the tunnels of its sandboxes
}

// connectWait bounds the first request. The library's constructor takes no context.
const connectWait = 20 * time.Second

// connect makes a client with the credentials of the environment or of Modal's file.
func connect(ctx context.Context) (*client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkServers(); err != nil {
		return nil, err
	}
	c := &client{wayWait: wayWait}
	made := make(chan error, 1)
	var abandoned atomic.Bool
	go func() {
		out, err := sdk.NewClientWithOptions(&sdk.ClientParams{
			Logger:                 slog.New(slog.DiscardHandler),
			GRPCUnaryInterceptors:  []grpc.UnaryClientInterceptor{c.unary},
			GRPCStreamInterceptors: []grpc.StreamClientInterceptor{stream},
		})
		if err == nil && abandoned.Load() {
			out.Close()
			return
		}
		c.Client = out
		made <- err
	}()
	timer := time.NewTimer(connectWait)
	defer timer.Stop()
	select {
	case err := <-made:
		if err != nil {
			return nil, explain(ctx, "let this client in", err)
		}
		return c, nil
	case <-ctx.Done():
		abandoned.Store(true)
		go c.closeLate(made)
		return nil, ctx.Err()
	case <-timer.C:
		abandoned.Store(true)
		go c.closeLate(made)
		return nil, provider.Errorf(provider.ErrUnavailable, "Modal does not answer within %v. Is the network up, and is "+
			"api.modal.com, port 443, reachable from here?", connectWait)
	}
}

// closeLate closes a client that was made at the moment when nobody wanted it any more.
func (c *client) closeLate(made <-chan error) {
	select {
	case err := <-made:
		if err == nil {
			c.Close()
		}
	case <-time.After(2 * connectWait): // the constructor has closed it
	}
}

// checkServers refuses servers to which the token would travel in clear.
func checkServers() error {
	servers := map[string]string{"MODAL_SERVER_URL": os.Getenv("MODAL_SERVER_URL")}
	if servers["MODAL_SERVER_URL"] == "" {
		path := os.Getenv("MODAL_CONFIG_PATH")
		if path == "" {
			home, _ := os.UserHomeDir()
			path = filepath.Join(home, ".modal.toml")
		}
		servers = serversOf(path)
	}
	for where, server := range servers {
		if u, err := url.Parse(server); err == nil && u.Scheme == "http" && !loopback(u.Hostname()) {
			return provider.Errorf(provider.ErrAuth, "%s is %q, to which your Modal token would travel in clear. Use https, "+
				"or remove the setting to use Modal's own server.", where, server)
		}
	}
	return nil
}

// serversOf lists the servers of the profiles that may be chosen from a file of Modal. A file that cannot be read is
// the library's to report.
func serversOf(path string) map[string]string {
	text, err := os.ReadFile(path)
	profiles := map[string]struct {
		Server string `toml:"server_url"`
		Active bool   `toml:"active"`
	}{}
	if err != nil || toml.Unmarshal(text, &profiles) != nil {
		return nil
	}
	out := map[string]string{}
	for name, p := range profiles {
		if chosen := os.Getenv("MODAL_PROFILE"); name == chosen || chosen == "" && p.Active {
			out["server_url of the profile "+name+" in "+path] = p.Server
		}
	}
	return out
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// observed is the key of a function in a context that gets each answer of the requests with that context.
type observed struct{}

// observe returns a context whose requests give their answers to f. The library hides parts of them: why a sandbox has
// ended, the log of a build, and what a list says of each sandbox.
func observe(ctx context.Context, f func(answer any)) context.Context {
	return context.WithValue(ctx, observed{}, f)
}

func tell(ctx context.Context, answer any) {
	if f, ok := ctx.Value(observed{}).(func(any)); ok {
		f(answer)
	}
}

// unary notes who the token says this is, and tells the observer.
func (c *client) unary(ctx context.Context, method string, r, answer any, cc *grpc.ClientConn, next grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	if md, ok := metadata.FromOutgoingContext(ctx); ok && c.user.Load() == nil {
		sum := sha256.Sum256([]byte(strings.Join(md.Get("x-modal-token-id"), "")))
		user := hex.EncodeToString(sum[:4])
		c.user.Store(&user)
	}
	err := next(ctx, method, r, answer, cc, opts...)
	if err == nil {
		tell(ctx, answer)
	}
	return err
}

// stream tells the observer what comes in on a stream.
func stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := next(ctx, desc, cc, method, opts...)
	return observedStream{s}, err
}

type observedStream struct{ grpc.ClientStream }

// RecvMsg implements grpc.ClientStream.
func (s observedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		tell(s.Context(), m)
	}
	return err
}

// who is a short name for the owner of the token, the same in each process. It is no secret.
func (c *client) who() string {
	if u := c.user.Load(); u != nil {
		return *u
	}
	return "unknown"
}

// known returns the error itself if it is one of ours.
func known(err error) error {
	var e *provider.Error
	if errors.As(err, &e) {
		return err
	}
	return nil
}

// first returns the text up to the first line break.
func first(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimRight(line, ". ")
}

// containsAny reports whether a text has one of the words, in any case.
func containsAny(text string, words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToLower(text), w) })
}
