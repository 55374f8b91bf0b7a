// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakecluster

import (
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// orderKind is what the node is told to do with a pod.
type orderKind uint8

const (
	deleted     orderKind = iota // end it within order.grace
	killed                       // SIGKILL
	outOfMemory                  // SIGKILL of the kernel
	evicted
	overdue // its activeDeadlineSeconds have passed
)

type order struct {
	kind  orderKind
	grace time.Duration
}

// running is the node's part of a pod.
type running struct {
	c      *Cluster
	uid    types.UID
	orders chan order
	over   chan struct{} // closed when the node has done with the pod
	ended  bool          // nothing runs any more; guarded by the store
	pid    atomic.Int64  // of the process, 0 if there is none
	log    tail
}

// adopt makes the node's part of a pod.
func (c *Cluster) adopt(uid types.UID) *running {
	r := &running{c: c, uid: uid, orders: make(chan order, 16), over: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[string(uid)] = r
	return r
}

// disown undoes adopt.
func (c *Cluster) disown(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, string(uid))
}

// order gives an order. One that comes when many wait is not needed.
func (r *running) order(o order) {
	select {
	case r.orders <- o:
	default:
	}
}

// deletePod begins the end of a pod. grace 0: it is forgotten at once. uid "": any.
func (c *Cluster) deletePod(name string, uid types.UID, grace int64) {
	pod := c.store.pod(name)
	if pod == nil || uid != "" && pod.UID != uid {
		return
	}
	c.mu.Lock()
	r := c.pods[string(pod.UID)]
	c.mu.Unlock()
	if grace == 0 {
		c.store.remove(pod.UID)
		r.order(order{kind: killed})
		return
	}
	over := false
	c.store.changeUID(pod.UID, func(p *podObject) {
		at := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
		over = r.ended
	})
	if over {
		c.store.remove(pod.UID)
		return
	}
	r.order(order{deleted, time.Duration(grace) * time.Second})
}

// logOf is the log of a pod.
func (c *Cluster) logOf(name string) string {
	pod := c.store.pod(name)
	if pod == nil {
		return ""
	}
	c.mu.Lock()
	r := c.pods[string(pod.UID)]
	c.mu.Unlock()
	return r.log.String()
}

// setCondition sets a condition of a pod.
func setCondition(p *podObject, kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) {
	cond := corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message,
		LastTransitionTime: metav1.Now()}
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i >= 0 {
		p.Status.Conditions[i] = cond
		return
	}
	p.Status.Conditions = append(p.Status.Conditions, cond)
}

func setDisruption(p *podObject, reason string) {
	setCondition(p, corev1.DisruptionTarget, corev1.ConditionTrue, reason, "The pod must go.")
}

// setContainer sets the state of a pod's container.
func setContainer(p *podObject, s corev1.ContainerState) {
	of := p.Spec.Containers[0]
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: of.Name, Image: of.Image, State: s,
		Ready: s.Running != nil, Started: new(bool)}}
}

func waiting(p *podObject, reason, message string) {
	setContainer(p, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
}

// change changes the pod, if it exists.
func (r *running) change(f func(*podObject)) { r.c.store.changeUID(r.uid, f) }

// run is the life of a pod on the node.
func (r *running) run(pod *podObject) {
	defer close(r.over)
	if !r.place(pod) {
		r.finish(nil)
		return
	}
	address := newAddress()
	r.change(func(p *podObject) {
		now := metav1.Now()
		p.Spec.NodeName, p.Status.StartTime = "node", &now
		p.Status.PodIP, p.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
		setCondition(p, corev1.PodScheduled, corev1.ConditionTrue, "", "")
		waiting(p, "ContainerCreating", "")
	})
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil {
		timer := time.AfterFunc(time.Duration(*d)*time.Second, func() { r.order(order{kind: overdue}) })
		defer timer.Stop()
	}
	image, ok := r.pull(pod)
	if ok {
		ok = r.awaitSecrets(pod)
	}
	if !ok {
		r.finish(nil)
		return
	}
	p, err := r.start(pod, image, address)
	if err != nil {
		r.change(func(p *podObject) { waiting(p, "RunContainerError", err.Error()) })
		r.await(func() bool { return false })
		r.finish(nil)
		return
	}
	r.finish(r.watch(p, net.JoinHostPort(address, strconv.Itoa(int(pod.Spec.Containers[0].Ports[0].ContainerPort)))))
}

// await waits until done, which it asks after each change of the cluster. False: the pod must end first.
func (r *running) await(done func() bool) bool {
	for {
		_, changed, _ := r.c.store.after(1 << 62)
		if done() {
			return true
		}
		select {
		case <-changed:
		case o := <-r.orders:
			r.end(o, 0, false)
			return false
		}
	}
}

// place waits until the node has room.
func (r *running) place(pod *podObject) bool {
	said := ""
	return r.await(func() bool {
		why := r.c.noRoom(pod)
		if why != said {
			said = why
			r.change(func(p *podObject) {
				setCondition(p, corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, why)
			})
		}
		return why == ""
	})
}

// noRoom is the scheduler's reason why the node cannot take a pod.
func (c *Cluster) noRoom(pod *podObject) string {
	for _, v := range pod.Spec.Volumes {
		if claim := v.PersistentVolumeClaim; claim != nil && c.config.Claims[claim.ClaimName] == "" {
			return fmt.Sprintf("persistentvolumeclaim %q not found", claim.ClaimName)
		}
	}
	if !c.fits(pod) {
		return "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
	}
	used := 0
	for _, p := range c.store.pods() {
		if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
			used += gpus(p)
		}
	}
	if want := gpus(pod); want > 0 && used+want > c.config.GPUs {
		return "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
	}
	return ""
}

func gpus(p *podObject) int {
	n := p.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"]
	return int(n.Value())
}

// fits says whether the node has the labels that a pod needs.
func (c *Cluster) fits(pod *podObject) bool {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		fits := true
		for _, e := range term.MatchExpressions {
			fits = fits && e.Operator == corev1.NodeSelectorOpIn && slices.Contains(e.Values, c.config.NodeLabels[e.Key])
		}
		if fits {
			return true
		}
	}
	return false
}

// pull gets the image of a pod. False: there is none, and the pod had to end.
func (r *running) pull(pod *podObject) (Image, bool) {
	name := pod.Spec.Containers[0].Image
	image, ok := r.c.config.Images[name]
	secrets := pod.Spec.ImagePullSecrets
	if ok && image.PullSecret != "" && !slices.Contains(secrets, corev1.LocalObjectReference{Name: image.PullSecret}) {
		ok = false
	}
	if ok {
		return image, true
	}
	r.change(func(p *podObject) { waiting(p, "ErrImagePull", "pull access denied") })
	r.change(func(p *podObject) { waiting(p, "ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q", name)) })
	r.await(func() bool { return false })
	return image, false
}

// awaitSecrets waits until the secrets of a pod's volumes exist.
func (r *running) awaitSecrets(pod *podObject) bool {
	return r.await(func() bool {
		for _, v := range pod.Spec.Volumes {
			if v.Secret != nil && r.c.store.get(key("secrets", pod.Namespace, v.Secret.SecretName)) == nil {
				return false
			}
		}
		return true
	})
}

// newAddress is an address of the loopback interface that no other pod has.
func newAddress() string {
	b := make([]byte, 3)
	_, _ = rand.Read(b)
	return fmt.Sprintf("127.%d.%d.%d", 1+b[0]%254, b[1], 1+b[2]%254)
}

// end writes into the pod why it has ended or must end. ran: a process has ended, with a code.
func (r *running) end(o order, code int, ran bool) {
	r.change(func(p *podObject) {
		reason := "Error"
		if code == 0 {
			reason = "Completed"
		}
		switch o.kind {
		case outOfMemory:
			reason = "OOMKilled"
		case evicted:
			p.Status.Reason, p.Status.Message = "Evicted", "The node was low on resource: ephemeral-storage."
			setDisruption(p, "TerminationByKubelet")
		case overdue:
			p.Status.Reason = "DeadlineExceeded"
			p.Status.Message = "Pod was active on the node longer than the specified deadline"
		}
		p.Status.Phase = corev1.PodFailed
		if ran {
			setContainer(p, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: int32(code),
				Reason: reason, FinishedAt: metav1.Now()}})
			if code == 0 && o.kind != overdue {
				p.Status.Phase = corev1.PodSucceeded
			}
		}
		setCondition(p, corev1.PodReady, corev1.ConditionFalse, "PodFailed", "")
	})
}

// finish notes that nothing runs any more. A pod that is being deleted goes.
func (r *running) finish(p *process) {
	if p != nil {
		r.end(p.last, p.code(), true)
	}
	remove := false
	if !r.c.store.changeUID(r.uid, func(p *podObject) {
		r.ended = true
		remove = p.DeletionTimestamp != nil
	}) {
		return
	}
	if remove {
		r.c.store.remove(r.uid)
	}
}
