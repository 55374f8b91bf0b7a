// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/mycelya/mycelya/runtime/provider"
)

// signalBase is what a runtime of containers adds to the number of the signal that has ended a process.
const signalBase = 128

// taken are the reasons of a pod that the cluster has ended to use its node otherwise, or with its node. There are also
// "OutOfcpu" and others: the node had less than the scheduler thought.
var taken = []string{"Evicted", "Preempting", "Preempted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated",
	"NodeAffinity", "UnexpectedAdmissionError"}

// exitOf is how a pod's worker has ended; false: it has not.
func exitOf(pod *corev1.Pod) (provider.Exit, bool) {
	end := terminated(pod)
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	disruption := disruptionOf(pod)
	if end == nil && !over && !slices.Contains([]string{"DeletionByTaintManager", "DeletionByPodGC"}, disruption) {
		return provider.Exit{}, false
	}
	out := provider.Exit{Reason: provider.Unknown, Code: -1, Detail: pod.Status.Message}
	if end != nil {
		out.Code = int(end.ExitCode)
		signal := end.Signal
		if signal == 0 && end.ExitCode > signalBase {
			signal = end.ExitCode - signalBase
		}
		if signal != 0 {
			out.Signal, out.Code = syscall.Signal(signal).String(), -1
		}
		out.Reason = provider.Crashed
		if out.Signal == "" {
			out.Reason = provider.ReasonOf(out.Code)
		}
	}
	switch {
	case pod.Status.Reason == "DeadlineExceeded":
		out.Reason = provider.LeaseOver
	case disruption != "" || slices.Contains(taken, pod.Status.Reason), strings.HasPrefix(pod.Status.Reason, "OutOf"):
		out.Reason = provider.Preempted
	case end != nil && end.Reason == "OOMKilled":
		out.Reason = provider.OutOfMemory
	}
	return out, true
}

// terminated is how the worker's container has ended; nil: it has not, or nobody knows.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == ContainerName {
			return s.State.Terminated
		}
	}
	return nil
}

// disruptionOf is the reason for which the cluster ends a pod, "" if it does not.
func disruptionOf(pod *corev1.Pod) string {
	for _, cond := range pod.Status.Conditions {
		if cond.Type == corev1.DisruptionTarget && cond.Status == corev1.ConditionTrue {
			return cond.Reason
		}
	}
	return ""
}

// removed is how the worker of a pod has ended that does not exist any more. last is what was seen of it last, nil if
// nothing was.
func removed(last *corev1.Pod) provider.Exit {
	if last == nil {
		return provider.Exit{Reason: provider.Done}
	}
	if out, over := exitOf(last); over {
		return out
	}
	if disruptionOf(last) != "" {
		return provider.Exit{Reason: provider.Preempted, Code: -1}
	}
	return provider.Exit{Reason: provider.Done} // somebody has deleted the pod
}
