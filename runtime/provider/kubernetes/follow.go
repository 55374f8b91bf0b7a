// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// Pauses after a request that has failed, while a pod is followed.
const firstPause, lastPause = 100 * time.Millisecond, 5 * time.Second

// follow shows each state of a pod to see, until see returns true or an error, or ctx ends. A nil pod: it does not
// exist any more. The server ends each watch after some minutes, and a connection may end at any time, so follow asks
// again. patient: errors of the server are no reason to give up.
func (c *cluster) follow(ctx context.Context, name string, uid types.UID, patient bool,
	see func(*corev1.Pod) (bool, error)) error {
	pause := firstPause
	for {
		over, err := c.followOnce(ctx, name, uid, see)
		switch {
		case over:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			pause = firstPause
		case !patient && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err):
			return c.explain("watch pods", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		}
	}
}

// followOnce asks for a pod, and watches it until the watch ends. over: see has returned true or the error.
func (c *cluster) followOnce(ctx context.Context, name string, uid types.UID,
	see func(*corev1.Pod) (bool, error)) (over bool, err error) {
	var failed error // of see
	show := func(pod *corev1.Pod) bool {
		if pod != nil && pod.UID != uid {
			pod = nil // another one has the name
		}
		var done bool
		done, failed = see(pod)
		return done || failed != nil
	}
	pod, err := c.pod(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return show(nil), failed
	case err != nil:
		return false, err
	case show(pod):
		return true, failed
	}
	w, err := c.pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name,
		ResourceVersion: pod.ResourceVersion})
	if err != nil {
		return false, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return false, apierrors.FromObject(event.Object)
		}
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			continue // a bookmark
		}
		if show(pod) || event.Type == watch.Deleted && show(nil) {
			return true, failed
		}
	}
	return false, nil
}
