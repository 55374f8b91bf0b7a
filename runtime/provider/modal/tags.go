// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// Tags of a sandbox. They have no secret: everybody in the workspace can read them.
const (
	tagUser     = "mycelya-user"      // of the host that has created it, for people
	tagMachine  = "mycelya-machine"   // the machine's name
	tagSession  = "mycelya-session"   // a random name of this start
	tagBuild    = "mycelya-build"     // of the worker
	tagGPU      = "mycelya-gpu"       // as "H100-x2"
	tagLeaseEnd = "mycelya-lease-end" // seconds since 1970
	tagIdle     = "mycelya-idle"      // seconds
	tagClient   = "mycelya-client"    // host and process that use it; "detached"
)

// detachedClient is the client of a sandbox that outlives its process.
const detachedClient = "detached"

func (l *starter) tags(gpu string) map[string]string {
	client := hostKey() + "." + strconv.Itoa(os.Getpid())
	if l.plan.Detached {
		client = detachedClient
	}
	who := "unknown"
	if u, err := user.Current(); err == nil {
		who = u.Username
	}
	return map[string]string{
		tagUser: tagOf(who), tagMachine: tagOf(l.plan.Session), tagSession: strings.ToLower(rand.Text()),
		tagBuild: transport.Build, tagGPU: tagOf(strings.ReplaceAll(gpu, ":", "-x")), tagClient: client,
		tagLeaseEnd: strconv.FormatInt(time.Now().Add(l.plan.Lease).Unix(), 10),
		tagIdle:     strconv.Itoa(int(l.plan.Idle.Seconds())),
	}
}

// encoded begins a tag's value that is not the text itself.
const encoded = "b64."

// tagOf makes any short text a tag's value: letters, digits, dots, dashes and underscores, at most 63.
func tagOf(text string) string {
	if text != "" && len(text) <= 63 && !strings.HasPrefix(text, encoded) && whole(`[A-Za-z0-9._-]+`, text) {
		return text
	}
	if out := encoded + base64.RawURLEncoding.EncodeToString([]byte(text)); len(out) <= 63 {
		return out
	}
	sum := sha256.Sum256([]byte(text))
	return "sha256." + hex.EncodeToString(sum[:16])
}

// textOf is the inverse of tagOf for short texts.
func textOf(tag string) string {
	if rest, ok := strings.CutPrefix(tag, encoded); ok {
		if text, err := base64.RawURLEncoding.DecodeString(rest); err == nil {
			return string(text)
		}
	}
	return tag
}

// hostKey names this host to its own processes, and to nobody else.
func hostKey() string {
	name, _ := os.Hostname()
	sum := sha256.Sum256([]byte(name + "\n" + transport.Host()))
	return hex.EncodeToString(sum[:4])
}

// prefix begins the names of the sandboxes of the token's user. A sandbox has its name from the beginning on, and its
// tags a moment later: one whose client was killed between is found by its name.
func (c *client) prefix() string { return "mycelya-" + c.who() + "-" }

// nameOf is the name of the sandbox of a detached machine. Names are unique among the sandboxes that run.
func (c *client) nameOf(machine string) string {
	sum := sha256.Sum256([]byte(machine))
	return c.prefix() + "m-" + hex.EncodeToString(sum[:8])
}

// randomName is the name of a sandbox that ends with its client.
func (c *client) randomName() string { return c.prefix() + strings.ToLower(rand.Text()[:16]) }

// list lists the sandboxes of the token's user that have not ended.
func (c *client) list(ctx context.Context) ([]provider.Found, error) {
	app, err := c.Apps.FromName(ctx, appName, nil)
	if errors.As(err, new(sdk.NotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(ctx, "find its app", err)
	}
	about := map[string]*pb.SandboxInfo{}
	all, err := c.Sandboxes.List(observe(ctx, func(answer any) {
		if r, ok := answer.(*pb.SandboxListResponse); ok {
			for _, info := range r.GetSandboxes() {
				about[info.GetId()] = info
			}
		}
	}), &sdk.SandboxListParams{AppID: app.AppID})
	if err != nil {
		return nil, explain(ctx, "list the sandboxes", err)
	}
	var out []provider.Found
	for sb, err := range all {
		if err != nil {
			return out, explain(ctx, "list the sandboxes", err)
		}
		if info := about[sb.SandboxID]; info != nil && strings.HasPrefix(info.GetName(), c.prefix()) {
			out = append(out, foundOf(info))
		}
	}
	return out, nil
}

// foundOf is what the plane tells of a sandbox.
func foundOf(info *pb.SandboxInfo) provider.Found {
	tags := map[string]string{}
	for _, t := range info.GetTags() {
		tags[t.GetTagName()] = t.GetTagValue()
	}
	since := time.UnixMicro(int64(info.GetCreatedAt() * 1e6))
	f := provider.Found{
		Detached: tags[tagClient] == detachedClient,
		Handle:   provider.Handle{Provider: "modal", ID: info.GetId(), Session: textOf(tags[tagMachine])},
		Since:    since, Until: since.Add(time.Duration(info.GetTimeoutSecs()) * time.Second),
		Idle: time.Duration(info.GetIdleTimeoutSecs()) * time.Second, Used: used(tags[tagClient]),
	}
	if end, err := strconv.ParseInt(tags[tagLeaseEnd], 10, 64); err == nil {
		f.Until = time.Unix(end, 0)
	}
	if idle, err := strconv.Atoi(tags[tagIdle]); err == nil {
		f.Idle = time.Duration(idle) * time.Second
	}
	gpu, count, many := strings.Cut(textOf(tags[tagGPU]), "-x")
	if f.GPU = gpu; gpu != "" {
		f.GPUs = 1
	}
	if n, err := strconv.Atoi(count); many && err == nil {
		f.GPUs = n
	}
	return f
}

// used says whether the process that has created a sandbox may still use it. Of processes of other hosts nothing is
// known; their sandboxes end by their idle time if they have gone.
func used(client string) bool {
	host, process, _ := strings.Cut(client, ".")
	pid, err := strconv.Atoi(process)
	if client == "" || client == detachedClient || err != nil {
		return false
	}
	return host != hostKey() || syscall.Kill(pid, 0) != syscall.ESRCH
}
