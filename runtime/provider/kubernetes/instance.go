// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// instance is a pod with a worker.
type instance struct {
	c           *cluster
	state       *state
	plan        *plan
	name        string
	uid         types.UID
	handle      provider.Handle
	credentials *transport.Credentials
	lock        *os.File // says that this process uses the pod

	stopping sync.Mutex // held by Stop

	mu      sync.Mutex // guards what follows
	asked   bool       // Stop was called
	stopped bool       // Stop has ended the pod
	exit    *provider.Exit
	last    *corev1.Pod // as it was seen last
}

func newInstance(c *cluster, st *state, p *plan, pod *corev1.Pod, credentials *transport.Credentials,
	lock *os.File) *instance {
	return &instance{c: c, state: st, plan: p, name: pod.Name, uid: pod.UID, handle: handle(pod), credentials: credentials,
		lock: lock, last: pod}
}

// saw keeps a state of the pod.
func (in *instance) saw(pod *corev1.Pod) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.last = pod
}

// Handle implements provider.Instance.
func (in *instance) Handle() provider.Handle { return in.handle }

// Credentials implements provider.Instance.
func (in *instance) Credentials() *transport.Credentials { return in.credentials }

// FDs implements provider.Instance: as long as a forked child had the lock, the pod would count as used.
func (in *instance) FDs() []int {
	return process.FDs(in.lock)
}

// Wait implements provider.Instance.
func (in *instance) Wait(ctx context.Context) (provider.Exit, error) {
	if exit := in.known(); exit != nil {
		return *exit, nil
	}
	err := in.c.follow(ctx, in.name, in.uid, true, func(pod *corev1.Pod) (bool, error) { return in.see(ctx, pod), nil })
	if err != nil {
		return provider.Exit{}, err
	}
	return *in.known(), nil
}

// known is how the worker has ended, nil if that is not known.
func (in *instance) known() *provider.Exit {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.exit
}

// see takes a state of the pod, nil if it does not exist any more, and says whether the worker has ended.
func (in *instance) see(ctx context.Context, pod *corev1.Pod) bool {
	in.mu.Lock()
	last := in.last
	in.mu.Unlock()
	exit, over := removed(last), true
	if pod != nil {
		in.saw(pod)
		exit, over = exitOf(pod)
	}
	if !over {
		return false
	}
	if log := in.c.log(ctx, in.name); log != "" {
		exit.Detail = log
	}
	in.ended(exit)
	return true
}

// ended keeps how the worker has ended.
func (in *instance) ended(exit provider.Exit) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.exit != nil {
		return
	}
	if in.asked {
		exit.Reason = provider.Done
	}
	in.exit = &exit
}

// Stop implements provider.Instance.
func (in *instance) Stop(ctx context.Context, grace time.Duration) error {
	in.mu.Lock()
	in.asked = true
	pod := in.last
	in.mu.Unlock()
	in.stopping.Lock() // a second caller waits for the first one
	defer in.stopping.Unlock()
	in.mu.Lock()
	done := in.stopped
	in.mu.Unlock()
	if done {
		return nil
	}
	if err := in.c.end(ctx, pod, grace); err != nil {
		return err
	}
	in.ended(provider.Exit{Reason: provider.Done})
	_ = in.lock.Close()
	in.state.forget(in.name, string(in.uid))
	in.mu.Lock()
	in.stopped = true
	in.mu.Unlock()
	return nil
}

// Dial implements provider.Instance.
func (in *instance) Dial(ctx context.Context) (net.Conn, error) {
	if err := in.over(); err != nil {
		return nil, err
	}
	conn, err := in.dial(ctx)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	// The pod says more than the error.
	pod, podErr := in.c.pod(ctx, in.name)
	gone := apierrors.IsNotFound(podErr) || podErr == nil && pod.UID != in.uid
	if gone {
		pod = nil
	}
	if (gone || podErr == nil) && in.see(ctx, pod) {
		return nil, in.over()
	}
	return nil, ended(ctx, err)
}

// over is an error if the worker cannot be reached any more.
func (in *instance) over() error {
	in.mu.Lock()
	asked, exit := in.asked, in.exit
	in.mu.Unlock()
	switch {
	case asked:
		return provider.Errorf(provider.ErrUnavailable, "The worker has been stopped.")
	case exit != nil:
		return provider.Errorf(provider.ErrUnavailable, "The worker (pod %s) %v. %s", in.name, *exit,
			process.Tail(exit.Detail))
	}
	return nil
}

func (in *instance) dial(ctx context.Context) (net.Conn, error) {
	if !in.plan.direct {
		return in.c.forward(ctx, in.name)
	}
	in.mu.Lock()
	address := in.last.Status.PodIP
	in.mu.Unlock()
	if address == "" {
		return nil, provider.Errorf(provider.ErrUnavailable, "The pod %s has no address yet.", in.name)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(Port)))
	if err == nil {
		return conn, nil
	}
	remedy := "direct=\"yes\" is for processes in the same cluster; leave it out elsewhere."
	if errors.Is(err, syscall.ECONNREFUSED) {
		remedy = "Nothing listens there."
	}
	return nil, provider.Errorf(provider.ErrUnavailable, "The pod %s cannot be reached directly: %v. %s", in.name, err,
		remedy)
}

// Logs implements provider.Logger.
func (in *instance) Logs(ctx context.Context) (string, error) {
	if log := in.c.log(ctx, in.name); log != "" {
		return log, nil
	}
	if exit := in.known(); exit != nil {
		return exit.Detail, nil
	}
	return "", nil
}
