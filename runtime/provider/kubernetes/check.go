// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"context"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mycelya/mycelya/runtime/provider"
)

// checkWait bounds a Check.
const checkWait = 10 * time.Second

// rights are what a start needs beside creating objects, which is tried.
var rights = []authorizationv1.ResourceAttributes{
	{Verb: "get", Resource: "pods"}, {Verb: "list", Resource: "pods"}, {Verb: "watch", Resource: "pods"},
	{Verb: "delete", Resource: "pods"}, {Verb: "create", Resource: "pods", Subresource: "portforward"},
}

// Check implements provider.Checker. It has the API server check the objects of a start without making them, so that
// rights, quotas, and rules of the namespace count. Whether a node has room is known only after a start.
func (Provider) Check(ctx context.Context, s provider.Spec) error {
	p, c, st, err := opened(s)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	return ended(ctx, c.check(within, p, st))
}

func (c *cluster) check(ctx context.Context, p *plan, st *state) error {
	pod := podOf(p, st.user, podName(p, c, st), "check")
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	if _, err := call(ctx, func(ctx context.Context) (*corev1.Pod, error) {
		return c.pods.Create(ctx, pod, dry)
	}); err != nil {
		return c.explain("create pods", err)
	}
	pod.UID = "00000000-0000-0000-0000-000000000000"
	if _, err := call(ctx, func(ctx context.Context) (*networkingv1.NetworkPolicy, error) {
		return c.policies.Create(ctx, policyOf(pod), dry)
	}); err != nil {
		return c.explain("create networkpolicies", err)
	}
	if _, err := call(ctx, func(ctx context.Context) (*corev1.Secret, error) {
		return c.secrets.Create(ctx, secretOf(pod, []byte("none")), dry)
	}); err != nil {
		return c.explain("create secrets", err)
	}
	for _, r := range rights {
		if p.direct && r.Subresource != "" {
			continue
		}
		if err := c.may(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// may asks whether this user may do something.
func (c *cluster) may(ctx context.Context, r authorizationv1.ResourceAttributes) error {
	what := r.Verb + " " + r.Resource
	if r.Subresource != "" {
		what += "/" + r.Subresource
	}
	r.Namespace = c.namespace
	review, err := call(ctx, func(ctx context.Context) (*authorizationv1.SelfSubjectAccessReview, error) {
		return c.reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r}}, metav1.CreateOptions{})
	})
	if err != nil {
		return c.explain("ask for its rights", err)
	}
	if review.Status.Allowed {
		return nil
	}
	return c.refused(what, metav1.Status{Reason: metav1.StatusReasonForbidden, Message: "its roles do not have it"}, nil)
}
