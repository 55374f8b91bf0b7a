// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package kubernetes runs a worker as a pod of a Kubernetes cluster, which it reaches through client-go. A pod is the
// only object that lives by itself: its Secret, which has the worker's credentials, and its NetworkPolicy belong to it
// and go with it. The package never puts a secret into arguments, environments or logs, and never trusts the cluster's
// network: all streams carry TLS of the client and the worker.
package kubernetes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

const (
	// How long a pod with a node may take until its worker listens. An image with PyTorch and CUDA has gigabytes.
	startWait = 15 * time.Minute
	// How long a pod may take to end beyond the time that it was given, until it is removed by force.
	endWait = 30 * time.Second
	// deleteWait bounds the request for the end of a pod: a process that ends does not wait longer for a network.
	deleteWait = 15 * time.Second
)

// Provider starts workers as pods.
type Provider struct{}

// New returns the provider. It needs none of the paths: the worker is in the pod's image.
func New(provider.Paths) provider.Provider { return Provider{} }

// opened is what each method begins with.
func opened(s provider.Spec) (*plan, *cluster, *state, error) {
	p, err := planOf(s)
	if err != nil {
		return nil, nil, nil, err
	}
	c, err := connect(p.context, p.namespace)
	if err != nil {
		return nil, nil, nil, err
	}
	st, err := openState()
	return p, c, st, err
}

// Start implements provider.Provider.
func (Provider) Start(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	p, c, st, err := opened(s)
	if err != nil {
		return nil, err
	}
	in, err := start(ctx, p, c, st)
	if err != nil {
		return nil, ended(ctx, err)
	}
	return in, nil
}

// start starts a worker.
func start(ctx context.Context, p *plan, c *cluster, st *state) (*instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	pods, err := c.podsOf(ctx, st.user)
	if err != nil {
		return nil, err
	}
	c.removeEnded(ctx, st, pods)
	client, worker, err := transport.Mint(p.Lease)
	if err != nil {
		return nil, provider.Errorf(provider.ErrUnavailable, "The credentials of the worker cannot be made: %v.", err)
	}
	secret, err := worker.Encode()
	if err != nil {
		return nil, provider.Errorf(provider.ErrUnavailable, "The credentials of the worker cannot be made: %v.", err)
	}
	name := podName(p, c, st)
	lock, err := st.use(name)
	if err != nil {
		return nil, err
	}
	pod, err := c.createPod(ctx, p, podOf(p, st.user, name, strings.ToLower(rand.Text())))
	if err != nil {
		_ = lock.Close()
		st.used(name, true)
		return nil, err
	}
	in := newInstance(c, st, p, pod, client, lock)
	if err = c.createRest(ctx, pod, secret); err == nil {
		err = in.awaitReady(ctx)
	}
	if err == nil && p.Detached {
		err = in.keep()
	}
	if err != nil {
		_ = in.Stop(context.WithoutCancel(ctx), 0)
		return nil, err
	}
	return in, nil
}

// podName is the name of a machine's pod. That of a machine that outlives its process says which machine it is: the
// cluster refuses a second one.
func podName(p *plan, c *cluster, st *state) string {
	if p.Detached {
		return detachedName(c, st, p.Session)
	}
	return appName + "-" + strings.ToLower(rand.Text())
}

func detachedName(c *cluster, st *state, session string) string {
	return appName + "-" + hash(st.user, c.host, c.namespace, session)
}

// createPod creates a pod. Everything else belongs to it, so that a process that is killed at any time leaves a pod
// whose clocks end it, and nothing else.
func (c *cluster) createPod(ctx context.Context, p *plan, pod *corev1.Pod) (*corev1.Pod, error) {
	for {
		// Not with ctx: if it ended now, nobody would know whether there is a pod.
		out, err := call(context.WithoutCancel(ctx), func(ctx context.Context) (*corev1.Pod, error) {
			return c.pods.Create(ctx, pod, metav1.CreateOptions{})
		})
		if err == nil {
			return out, nil
		}
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError {
			c.removeUncertain(context.WithoutCancel(ctx), pod)
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, c.explain("create pods", err)
		}
		if err := c.makeRoom(ctx, p, pod.Name); err != nil {
			return nil, err
		}
	}
}

// removeUncertain removes a pod that may have been created although the answer was lost.
func (c *cluster) removeUncertain(ctx context.Context, pod *corev1.Pod) {
	there, err := c.pod(ctx, pod.Name)
	if err == nil && there.Annotations[noteNonce] == pod.Annotations[noteNonce] {
		_ = c.end(ctx, there, 0)
	}
}

// makeRoom removes a pod that has ended, so that another one can have its name.
func (c *cluster) makeRoom(ctx context.Context, p *plan, name string) error {
	pod, err := c.pod(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return c.explain("get pods", err)
	}
	if _, over := exitOf(pod); !over && pod.DeletionTimestamp == nil {
		return provider.Errorf(provider.ErrInvalidSpec, "The machine %q runs already, as pod %s. Use it with "+
			"RemoteMachine.attach(%q, \"kubernetes\"), or choose another name.", p.Session, name, p.Session)
	}
	return c.end(ctx, pod, 0)
}

// createRest creates what belongs to a pod. The container cannot start before its Secret exists, so the NetworkPolicy
// is there when it starts.
func (c *cluster) createRest(ctx context.Context, pod *corev1.Pod, secret []byte) error {
	// Not with ctx, as in createPod.
	_, err := call(context.WithoutCancel(ctx), func(ctx context.Context) (*networkingv1.NetworkPolicy, error) {
		return c.policies.Create(ctx, policyOf(pod), metav1.CreateOptions{})
	})
	if err != nil {
		return c.explain("create networkpolicies", err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, err = call(context.WithoutCancel(ctx), func(ctx context.Context) (*corev1.Secret, error) {
		return c.secrets.Create(ctx, secretOf(pod, secret), metav1.CreateOptions{})
	})
	return c.explain("create secrets", err)
}

// ended is the error of a context that has ended, or else err.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// awaitReady waits until the worker listens.
func (in *instance) awaitReady(ctx context.Context) error {
	var last *corev1.Pod
	within, cancel := context.WithTimeout(ctx, in.plan.wait)
	defer cancel()
	err := in.c.follow(within, in.name, in.uid, false, func(pod *corev1.Pod) (bool, error) {
		if pod == nil {
			return true, in.vanished()
		}
		last = pod
		if missingClaim(pod) {
			return true, in.c.noNode(in.plan, pod)
		}
		_, over := exitOf(pod)
		return over || scheduled(pod), nil
	})
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		if last == nil {
			return provider.Errorf(provider.ErrUnavailable, "%s does not answer.", in.c)
		}
		return in.c.noNode(in.plan, last)
	}
	if err != nil {
		return err
	}
	within, cancel = context.WithTimeout(ctx, startWait)
	defer cancel()
	err = in.c.follow(within, in.name, in.uid, false, func(pod *corev1.Pod) (bool, error) {
		if pod == nil {
			return true, in.vanished()
		}
		in.saw(pod)
		if exit, over := exitOf(pod); over {
			return true, in.endedEarly(within, exit)
		}
		return ready(pod), in.c.cannotStart(in.plan, pod)
	})
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return provider.Errorf(provider.ErrTimeout, "The pod %s was not ready within %v. %s describe pod %s tells why.",
			in.name, startWait, in.c.kubectl(), in.name)
	}
	return err
}

// vanished is the error of a pod that somebody has deleted during its start.
func (in *instance) vanished() error {
	return provider.Errorf(provider.ErrUnavailable, "Somebody has deleted the pod %s in the namespace %q during its "+
		"start.", in.name, in.c.namespace)
}

// endedEarly is the error of a worker that has ended before it could be used.
func (in *instance) endedEarly(ctx context.Context, exit provider.Exit) error {
	kind := provider.ErrUnavailable
	if exit.Reason == provider.Preempted {
		kind = provider.ErrCapacity
	}
	log := in.c.log(ctx, in.name)
	if log == "" {
		log = exit.Detail
	}
	return provider.Errorf(kind, "The worker (pod %s, image %q) %v before it could be used. %s", in.name, in.plan.image,
		exit, process.Tail(log))
}

// keep writes what another process needs to use the machine.
func (in *instance) keep() error {
	text, err := in.credentials.Encode()
	if err != nil {
		return provider.Errorf(provider.ErrUnavailable, "The credentials of the client cannot be kept: %v.", err)
	}
	spec := in.plan.Spec
	spec.Kept, spec.Again = "", false
	return in.state.write(in.name, &record{Host: in.c.host, Namespace: in.c.namespace, UID: string(in.uid), Spec: spec,
		Credentials: string(text), Until: time.Now().Add(in.plan.Lease + startWait)})
}

// Keeps implements provider.Keeper: only a claim outlives a pod.
func (Provider) Keeps(s provider.Spec) error {
	if s.Options["volume"] == "" {
		return provider.Errorf(provider.ErrInvalidSpec, "What its worker keeps ends with the pod. Give volume=, the name of "+
			"a PersistentVolumeClaim, to the machine.")
	}
	return nil
}

// Attach implements provider.Provider.
func (Provider) Attach(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	s.Lease = max(s.Lease, time.Second) // that of the machine counts
	p, c, st, err := opened(s)
	if err != nil {
		return nil, err
	}
	kept, err := st.read(detachedName(c, st, s.Session))
	if err != nil {
		return nil, err
	}
	if s.Again {
		if kept == nil {
			return nil, provider.Errorf(provider.ErrNotFound, "The machine %q was stopped.", s.Session)
		}
		if p, err = planOf(kept.Spec); err != nil {
			return nil, err
		}
	}
	find := attach
	if s.Again {
		find = func(ctx context.Context, p *plan, c *cluster, st *state, _ *record) (*instance, error) {
			return start(ctx, p, c, st)
		}
	}
	in, err := find(ctx, p, c, st, kept)
	if err != nil {
		return nil, ended(ctx, err)
	}
	return in, nil
}

// attach finds the pod of a machine.
func attach(ctx context.Context, p *plan, c *cluster, st *state, kept *record) (*instance, error) {
	pods, err := c.podsOf(ctx, st.user)
	if err != nil {
		return nil, err
	}
	name := detachedName(c, st, p.Session)
	var others []string
	var pod *corev1.Pod
	for i := range pods {
		if !lives(&pods[i]) || pods[i].Name != detachedName(c, st, pods[i].Annotations[noteSession]) {
			continue // it has ended, or it ends with its process
		}
		if pods[i].Name == name {
			pod = &pods[i]
		}
		others = append(others, pods[i].Annotations[noteSession])
	}
	switch {
	case pod == nil:
		return nil, provider.Errorf(provider.ErrNotFound, "No machine with the name %q runs in the namespace %q. %s",
			p.Session, c.namespace, thereAre(others))
	case pod.Labels[labelBuild] != buildLabel():
		return nil, provider.Errorf(provider.ErrVersion, "The machine %q runs build %s, this package is build %s. Stop the "+
			"machine with the package that has started it, or use that package.", p.Session, pod.Labels[labelBuild],
			transport.Build)
	case kept == nil || kept.UID != string(pod.UID):
		return nil, provider.Errorf(provider.ErrAuth, "This host has no credentials of the machine %q: %s belongs to "+
			"another start of it. Use the host and the XDG_STATE_HOME that have started it, or end it: %s delete pod %s.",
			p.Session, st.path(name, fileSuffix), c.kubectl(), name)
	}
	credentials, err := kept.credentials()
	if err != nil {
		return nil, provider.Errorf(provider.ErrAuth, "The credentials of the machine %q cannot be read: %v.", p.Session, err)
	}
	lock, err := st.use(name)
	if err != nil {
		return nil, err
	}
	p.Detached = true
	in := newInstance(c, st, p, pod, credentials, lock)
	in.saw(pod)
	return in, nil
}

// lives says whether a pod's worker runs, or will.
func lives(pod *corev1.Pod) bool {
	_, over := exitOf(pod)
	return !over && pod.DeletionTimestamp == nil
}

func thereAre(names []string) string {
	if len(names) == 0 {
		return "None runs; RemoteMachine(\"kubernetes\", name=…, detached=True) starts one."
	}
	for i, n := range names {
		names[i] = fmt.Sprintf("%q", n)
	}
	return "There are " + strings.Join(names, ", ") + "."
}

// Sweep implements provider.Provider. It looks at the namespace of the current context.
func (Provider) Sweep(ctx context.Context, end func(provider.Found) bool) ([]provider.Found, error) {
	c, err := connect("", "")
	if err != nil {
		return nil, err
	}
	st, err := openState()
	if err != nil {
		return nil, err
	}
	pods, err := c.podsOf(ctx, st.user)
	if err != nil {
		return nil, ended(ctx, err)
	}
	c.removeEnded(ctx, st, pods)
	var out []provider.Found
	exists := map[string]bool{}
	for i := range pods {
		pod := &pods[i]
		exists[pod.Name] = true
		if !lives(pod) {
			continue
		}
		f := provider.Found{Handle: handle(pod), GPU: pod.Annotations[noteGPU], GPUs: gpusOf(pod),
			Since: pod.CreationTimestamp.Time, Until: untilOf(pod), Idle: idleOf(pod), Used: st.used(pod.Name, false),
			Detached: pod.Name == detachedName(c, st, pod.Annotations[noteSession])}
		if end(f) {
			if err := c.end(ctx, pod, 0); err != nil {
				return out, ended(ctx, err)
			}
			st.forget(pod.Name, string(pod.UID))
			f.Ended = true
		}
		out = append(out, f)
	}
	st.tidy(c.host, c.namespace, exists)
	return out, nil
}

// removeEnded removes pods that have ended and that no process uses: Kubernetes keeps them for ever.
func (c *cluster) removeEnded(ctx context.Context, st *state, pods []corev1.Pod) {
	for i := range pods {
		if _, over := exitOf(&pods[i]); over && pods[i].DeletionTimestamp == nil && !st.used(pods[i].Name, false) {
			if c.delete(ctx, &pods[i], 0) == nil {
				st.forget(pods[i].Name, string(pods[i].UID))
			}
		}
	}
}

// handle names a pod.
func handle(pod *corev1.Pod) provider.Handle {
	return provider.Handle{Provider: "kubernetes", ID: pod.Name, Session: pod.Annotations[noteSession]}
}

// delete asks for the end of a pod within a time, of which Kubernetes knows whole seconds. A pod that does not exist is
// no error.
func (c *cluster) delete(ctx context.Context, pod *corev1.Pod, grace time.Duration) error {
	return c.deleteWithin(ctx, pod.Name, pod.UID, max(1, seconds(grace)))
}

func (c *cluster) deleteWithin(ctx context.Context, name string, uid types.UID, grace int64) error {
	ctx, cancel := context.WithTimeout(ctx, deleteWait)
	defer cancel()
	err := c.pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace,
		Preconditions: metav1.NewUIDPreconditions(string(uid)), PropagationPolicy: ptr(metav1.DeletePropagationBackground)})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or another pod has its name
		return nil
	}
	return c.explain("delete pods", err)
}

// end ends a pod, and returns when it does not exist any more.
func (c *cluster) end(ctx context.Context, pod *corev1.Pod, grace time.Duration) error {
	ctx = context.WithoutCancel(ctx)
	if err := c.delete(ctx, pod, grace); err != nil {
		return err
	}
	gone := func(wait time.Duration) error {
		within, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		return c.follow(within, pod.Name, pod.UID, true, func(p *corev1.Pod) (bool, error) { return p == nil, nil })
	}
	if gone(grace+endWait) == nil {
		return nil
	}
	// The node does not answer. Kubernetes forgets the pod if it is told so.
	if err := c.deleteWithin(ctx, pod.Name, pod.UID, 0); err != nil {
		return err
	}
	if gone(endWait) != nil {
		return provider.Errorf(provider.ErrTimeout, "The pod %s does not end. Look at it with: %s describe pod %s.", pod.Name,
			c.kubectl(), pod.Name)
	}
	return nil
}
