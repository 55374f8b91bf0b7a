// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// instance is a sandbox with a worker.
type instance struct {
	client      *client
	id, session string
	tls         *transport.Credentials
	log         *log
	machine     *machine // if it is detached
	tunnels     tunnels
	answered    atomic.Bool // the worker has answered this process

	process.Life
	life    context.Context // ends with the instance
	release context.CancelFunc
	logs    sync.WaitGroup
}

func newInstance(c *client, id, session string, tls *transport.Credentials) *instance {
	life, release := context.WithCancel(context.Background())
	return &instance{client: c, id: id, session: session, tls: tls, log: new(log), life: life, release: release,
		tunnels: tunnels{wait: c.wayWait}, Life: process.NewLife()}
}

// Handle implements provider.Instance.
func (in *instance) Handle() provider.Handle {
	return provider.Handle{Provider: "modal", ID: in.id, Session: in.session}
}

// Credentials implements provider.Instance.
func (in *instance) Credentials() *transport.Credentials { return in.tls }

// FDs implements provider.Instance. A forked child that keeps the connection to Modal's server does no harm: nothing
// waits for its end.
func (in *instance) FDs() []int { return nil }

// Dial implements provider.Instance.
func (in *instance) Dial(ctx context.Context) (net.Conn, error) {
	if err := in.usable(); err != nil {
		return nil, err
	}
	return in.tunnels.through(ctx, func(_ context.Context, c net.Conn) (net.Conn, error) { return c, nil })
}

// usable returns why no stream can be opened any more; nil: one can.
func (in *instance) usable() error {
	select {
	case <-in.Ended():
		return provider.Errorf(provider.ErrUnavailable, "The worker in the sandbox %s %v. %s", in.id, in.Exit(),
			in.log.tail())
	case <-in.Asked():
		return provider.Errorf(provider.ErrUnavailable, "The worker in the sandbox %s has been stopped.", in.id)
	default:
		return nil
	}
}

// Through implements provider.Chooser. The worker of a machine that another process starts may not listen yet.
func (in *instance) Through(
	ctx context.Context, use func(context.Context, net.Conn) (net.Conn, error),
) (net.Conn, error) {
	if err := in.usable(); err != nil {
		return nil, err
	}
	c, err := in.tunnels.through(ctx, use)
	if err != nil && ctx.Err() == nil && !in.answered.Load() {
		if err := in.awaitAnswer(ctx); err != nil {
			return nil, err
		}
		c, err = in.tunnels.through(ctx, use)
	}
	if err == nil {
		in.answered.Store(true)
	}
	return c, err
}

// Stop implements provider.Instance. Modal ends a sandbox at once.
func (in *instance) Stop(ctx context.Context, _ time.Duration) error {
	in.Ask()
	select {
	case <-in.Ended():
		return nil
	default:
	}
	if err := in.client.terminate(ctx, in.id, false); err != nil {
		select {
		case <-in.Ended(): // it has ended by itself meanwhile, and its client is closed
			return nil
		default:
			return err
		}
	}
	if !in.EndsWithin(context.WithoutCancel(ctx), terminateWait) {
		return provider.Errorf(provider.ErrTimeout, "The sandbox %s has not ended within %v after Modal was asked to end "+
			"it. https://modal.com/apps shows it.", in.id, terminateWait)
	}
	return nil
}

// Remove ends what this host keeps for a detached machine whose sandbox has ended.
func (in *instance) Remove() {
	if in.machine != nil {
		in.machine.remove(in.id)
	}
}

// Between requests that fail.
const (
	leastPause = 100 * time.Millisecond
	mostPause  = 10 * time.Second
)

// follow begins to read the sandbox's output and to wait for its end.
func (in *instance) follow() {
	in.logs.Go(in.readLogs)
	go in.watch()
}

// watch waits for the end of the sandbox, and keeps how it was.
func (in *instance) watch() {
	defer in.release()
	var result *pb.GenericResult
	ctx := observe(in.life, func(answer any) {
		if r, ok := answer.(*pb.SandboxWaitResponse); ok && r.GetResult() != nil {
			result = r.GetResult()
		}
	})
	pause := leastPause
	for result == nil {
		sb, err := in.client.Sandboxes.FromID(ctx, in.id)
		if err == nil && result == nil {
			_, err = sb.Wait(ctx)
		}
		if in.life.Err() != nil && result == nil {
			return
		}
		if errors.As(err, new(sdk.NotFoundError)) {
			break
		}
		if err != nil && result == nil {
			select {
			case <-time.After(pause):
				pause = min(2*pause, mostPause)
			case <-in.life.Done():
				return
			}
		}
	}
	in.drain()
	exit := exitOf(result)
	exit.Detail = strings.TrimSpace(result.GetException() + "\n" + in.log.String())
	in.End(exit)
}

// exitOf is how a sandbox has ended; nil: it is not known.
func exitOf(r *pb.GenericResult) provider.Exit {
	e := provider.Exit{Code: int(r.GetExitcode())}
	switch r.GetStatus() {
	case pb.GenericResult_GENERIC_STATUS_SUCCESS, pb.GenericResult_GENERIC_STATUS_FAILURE:
		e.Reason = provider.ReasonOf(e.Code)
		if containsAny(r.GetException(), "out of memory", "oom") {
			e.Reason = provider.OutOfMemory
		}
		if e.Code > 128 {
			e.Signal, e.Code = syscall.Signal(e.Code-128).String(), -1
		}
	case pb.GenericResult_GENERIC_STATUS_TERMINATED: // by another process, or by a person
		e.Reason = provider.Done
	case pb.GenericResult_GENERIC_STATUS_TIMEOUT:
		e.Reason = provider.LeaseOver
	case pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT:
		e.Reason = provider.IdleTooLong
	case pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE:
		e.Reason = provider.Preempted
	case pb.GenericResult_GENERIC_STATUS_INIT_FAILURE:
		e.Reason = provider.Crashed
	}
	return e
}

// readLogs reads the output of the sandbox until its end.
func (in *instance) readLogs() {
	sb, err := in.client.Sandboxes.FromID(in.life, in.id)
	if err != nil {
		return
	}
	for _, r := range []io.ReadCloser{sb.Stdout, sb.Stderr} {
		in.logs.Go(func() {
			stop := context.AfterFunc(in.life, func() { _ = r.Close() })
			defer stop()
			_, _ = io.Copy(in.log, r)
		})
	}
}

// drainWait bounds the wait for the last lines of a sandbox that has ended.
const drainWait = 2 * time.Second

// drain waits for the last lines of the log.
func (in *instance) drain() {
	read := make(chan struct{})
	go func() { in.logs.Wait(); close(read) }()
	select {
	case <-read:
	case <-time.After(drainWait):
	}
}

// Install implements provider.Installer.
func (in *instance) Install(ctx context.Context, packages []string) (string, error) {
	if err := checkPackages(packages); err != nil {
		return "", err
	}
	sb, err := in.client.Sandboxes.FromID(ctx, in.id)
	if err != nil {
		return "", explain(ctx, "find the sandbox", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = sb.Detach() })
	defer stop()
	defer func() { _ = sb.Detach() }()
	out, err := command(ctx, sb, append([]string{"sh", "-c", installScript, "install"}, packages...), "")
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", provider.Errorf(provider.ErrUnavailable, "The packages %s could not be installed in the sandbox %s: %v.",
			strings.Join(packages, ", "), in.id, err)
	}
	return out, nil
}

// installScript installs the packages in its arguments. What pip prints is its output; the end of it is its error.
const installScript = `out=$(python3 -m pip install --no-cache-dir --root-user-action=ignore "$@" 2>&1)
code=$?
printf '%s\n' "$out"
[ $code = 0 ] || { printf '%s\n' "$out" | tail -n 5 >&2; exit $code; }
`

// Logs implements provider.Logger.
func (in *instance) Logs(context.Context) (string, error) { return in.log.String(), nil }
