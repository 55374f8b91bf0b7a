// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mycelya/mycelya/runtime/provider"
)

// explain makes a sentence with a remedy of an error of the API. what is what was not possible: "create pods".
func (c *cluster) explain(what string, err error) error {
	var known *provider.Error
	var status apierrors.APIStatus
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.As(err, &status):
		return c.refused(what, status.Status(), err)
	}
	// "Get \"https://…\": " is noise.
	text := err.Error()
	var request *url.Error
	if errors.As(err, &request) {
		text = request.Err.Error()
	}
	var unknown x509.UnknownAuthorityError
	var wrong *tls.CertificateVerificationError
	switch {
	case strings.Contains(text, "getting credentials"), errors.As(err, &unknown), errors.As(err, &wrong):
		return &provider.Error{Kind: provider.ErrAuth, Err: err, Text: fmt.Sprintf("%s and this user do not accept each "+
			"other: %s. Log in again, or correct the kubeconfig; %s auth can-i create pods tries it too.", c, text,
			c.kubectl())}
	}
	return &provider.Error{Kind: provider.ErrUnavailable, Err: err, Text: fmt.Sprintf("%s cannot be reached: %s. Check "+
		"the network and the VPN, and the address with: %s cluster-info.", c, text, c.kubectl())}
}

// String names the API server, as the beginning of a sentence.
func (c *cluster) String() string {
	if c.context == "" {
		return "The API server " + c.host
	}
	return fmt.Sprintf("The API server %s of the context %q", c.host, c.context)
}

// refused explains an answer of the API server that is an error.
func (c *cluster) refused(what string, s metav1.Status, err error) error {
	kind, text := provider.ErrUnavailable, ""
	switch {
	case s.Reason == metav1.StatusReasonUnauthorized:
		kind = provider.ErrAuth
		text = fmt.Sprintf("%s does not accept the credentials of the kubeconfig: %s. Log in again, or choose another "+
			"context=….", c, s.Message)
	case s.Reason == metav1.StatusReasonForbidden && strings.Contains(s.Message, "exceeded quota"):
		kind = provider.ErrQuota
		text = fmt.Sprintf("The quota of the namespace %q is used up: %s. End pods that are not needed (%s get pods), ask "+
			"for a larger quota, or choose another namespace=….", c.namespace, s.Message, c.kubectl())
	case s.Reason == metav1.StatusReasonForbidden && strings.Contains(s.Message, "violates PodSecurity"):
		kind = provider.ErrInvalidSpec
		text = fmt.Sprintf("The namespace %q does not take such a pod: %s. Leave the option user out, or choose another "+
			"namespace=….", c.namespace, s.Message)
	case s.Reason == metav1.StatusReasonForbidden:
		kind = provider.ErrAuth
		text = fmt.Sprintf("This user may not %s in the namespace %q: %s. Ask for a role that may (the page of the "+
			"provider \"kubernetes\" has one), or choose another namespace=….", what, c.namespace, s.Message)
	case s.Reason == metav1.StatusReasonNotFound && s.Details != nil && s.Details.Kind == "namespaces":
		kind = provider.ErrNotFound
		text = fmt.Sprintf("The namespace %q does not exist. Make it (kubectl create namespace %s), or choose another "+
			"namespace=….", c.namespace, c.namespace)
	case s.Reason == metav1.StatusReasonNotFound:
		kind = provider.ErrNotFound
		text = fmt.Sprintf("The API server does not know it: %s.", s.Message)
	case s.Reason == metav1.StatusReasonInvalid || s.Reason == metav1.StatusReasonBadRequest:
		kind = provider.ErrInvalidSpec
		text = fmt.Sprintf("The cluster does not take such an object: %s. Check the options of the machine.", s.Message)
	default:
		text = fmt.Sprintf("%s could not %s: %s. Try again later; %s get events tells more.", c, what, s.Message, c.kubectl())
	}
	return &provider.Error{Kind: kind, Text: text, Err: err}
}

// unschedulable is the scheduler's reason why a pod has no node, "" if it has given none.
func unschedulable(pod *corev1.Pod) string {
	for _, cond := range pod.Status.Conditions {
		if cond.Type == corev1.PodScheduled && cond.Status == corev1.ConditionFalse {
			return cond.Message
		}
	}
	return ""
}

// missingClaim says whether a pod has no node because its claim does not exist.
func missingClaim(pod *corev1.Pod) bool {
	why := unschedulable(pod)
	return strings.Contains(why, "persistentvolumeclaim") && strings.Contains(why, "not found")
}

// scheduled says whether a pod has a node.
func scheduled(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" }

// ready says whether the worker listens.
func ready(pod *corev1.Pod) bool {
	for _, cond := range pod.Status.Conditions {
		if cond.Type == corev1.PodReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

// noNode explains why a pod has no node.
func (c *cluster) noNode(p *plan, pod *corev1.Pod) error {
	why := strings.TrimSuffix(unschedulable(pod), ".")
	if missingClaim(pod) {
		return provider.Errorf(provider.ErrNotFound, "The namespace %q has no claim %q for volume=…: %s. List them with: %s "+
			"get pvc.", c.namespace, p.volume, why, c.kubectl())
	}
	if why == "" {
		why = "the scheduler has not looked at it"
	}
	text := fmt.Sprintf("No node of the cluster took the pod within %v: %s. ", p.wait, why)
	switch {
	case len(p.gpuProducts) > 0:
		text += fmt.Sprintf("It needs %d GPU(s) and a node whose label %s is one of %s; give gpu_label=… or gpu_product=… "+
			"if the nodes have others (%s get nodes -L %s). ", p.GPUs, p.gpuLabel, quoted(p.gpuProducts), c.kubectl(),
			p.gpuLabel)
	case p.GPUs > 0:
		text += fmt.Sprintf("It needs %d GPU(s). ", p.GPUs)
	}
	return &provider.Error{Kind: provider.ErrCapacity, Text: text + "Try again later, or give an autoscaler more time " +
		"with wait=\"900\"."}
}

// cannotStart explains why a container waits for something that will not come; nil if it may come.
func (c *cluster) cannotStart(p *plan, pod *corev1.Pod) error {
	for _, s := range pod.Status.ContainerStatuses {
		w := s.State.Waiting
		if s.Name != ContainerName || w == nil {
			continue
		}
		switch w.Reason {
		case "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable",
			"SignatureValidationFailed":
			return provider.Errorf(provider.ErrNotFound, "The node cannot get the image %q: %s: %s. Give the name of an image "+
				"that has this build of mycelya-torch with image=…, and pull_secret=… if its registry needs a login.", p.image,
				w.Reason, w.Message)
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
			"PreCreateHookError", "PreStartHookError", "PostStartHookError":
			return provider.Errorf(provider.ErrInvalidSpec, "The image %q cannot be run: %s: %s. It must have the program "+
				"mycelya-worker and run as user %d; user=… chooses another one.", p.image, w.Reason, w.Message, p.user)
		}
	}
	return nil
}
