// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakecluster

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validate checks what the API server would check of the objects of tests: names, labels, references and fields that
// exclude each other.
func validate(o object) (out field.ErrorList) {
	meta := field.NewPath("metadata")
	for _, wrong := range validation.IsDNS1123Subdomain(o.GetName()) {
		out = append(out, field.Invalid(meta.Child("name"), o.GetName(), wrong))
	}
	for k, v := range o.GetLabels() {
		for _, wrong := range append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...) {
			out = append(out, field.Invalid(meta.Child("labels"), k+"="+v, wrong))
		}
	}
	for k := range o.GetAnnotations() {
		for _, wrong := range validation.IsQualifiedName(strings.ToLower(k)) {
			out = append(out, field.Invalid(meta.Child("annotations"), k, wrong))
		}
	}
	for _, r := range o.GetOwnerReferences() {
		if r.UID == "" || r.Name == "" || r.Kind == "" || r.APIVersion == "" {
			out = append(out, field.Required(meta.Child("ownerReferences"), "each field"))
		}
	}
	if pod, ok := o.(*corev1.Pod); ok {
		out = append(out, validatePod(pod)...)
	}
	return out
}

func validatePod(pod *corev1.Pod) (out field.ErrorList) {
	spec := field.NewPath("spec")
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil && *d < 1 {
		out = append(out, field.Invalid(spec.Child("activeDeadlineSeconds"), *d, "must be at least 1"))
	}
	if len(pod.Spec.Containers) == 0 {
		out = append(out, field.Required(spec.Child("containers"), ""))
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
		for _, wrong := range validation.IsDNS1123Label(v.Name) {
			out = append(out, field.Invalid(spec.Child("volumes"), v.Name, wrong))
		}
		if v.Secret != nil && v.Secret.DefaultMode != nil && (*v.Secret.DefaultMode < 0 || *v.Secret.DefaultMode > 0o777) {
			out = append(out, field.Invalid(spec.Child("volumes"), *v.Secret.DefaultMode, "must be a mode"))
		}
	}
	for _, c := range pod.Spec.Containers {
		at := spec.Child("containers")
		if c.Image == "" || c.Name == "" {
			out = append(out, field.Required(at.Child("image"), ""))
		}
		paths := map[string]bool{}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				out = append(out, field.NotFound(at.Child("volumeMounts"), m.Name))
			}
			if paths[m.MountPath] || !strings.HasPrefix(m.MountPath, "/") {
				out = append(out, field.Invalid(at.Child("volumeMounts"), m.MountPath, "must be unique and absolute"))
			}
			paths[m.MountPath] = true
		}
		for name, limit := range c.Resources.Limits {
			if request, ok := c.Resources.Requests[name]; ok && request.Cmp(limit) > 0 {
				out = append(out, field.Invalid(at.Child("resources"), request.String(), "must be at most the limit"))
			}
		}
		for _, p := range c.Ports {
			wrongs := append(validation.IsValidPortNum(int(p.ContainerPort)), validation.IsValidPortName(p.Name)...)
			for _, wrong := range wrongs {
				out = append(out, field.Invalid(at.Child("ports"), p.ContainerPort, wrong))
			}
		}
	}
	return out
}
