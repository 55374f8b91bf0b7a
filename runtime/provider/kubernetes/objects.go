// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"crypto/sha256"
	"encoding/base32"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mycelya/mycelya/proto/transport"
)

const (
	// Port is where a worker listens in its pod.
	Port = 7070
	// ContainerName is that of a pod's only container.
	ContainerName = "worker"

	secretFolder = "/run/mycelya"
	secretFile   = "worker.pem"
	stateFolder  = "/var/lib/mycelya"
	weightsName  = "weights" // of the volume
	weightFolder = "/var/cache/mycelya"
	gpuResource  = corev1.ResourceName("nvidia.com/gpu")

	// Labels, by which Attach and Sweep find pods. A label's value has at most 63 characters of few kinds, so names are
	// hashes there, and annotations have them in full.
	labelApp     = "app.kubernetes.io/name"
	appName      = "mycelya"
	labelUser    = "mycelya.internal/user"
	labelSession = "mycelya.internal/session"
	labelBuild   = "mycelya.internal/build"

	noteSession = "mycelya.internal/session"
	noteIdle    = "mycelya.internal/idle-seconds"
	noteGPU     = "mycelya.internal/gpu"
	noteNonce   = "mycelya.internal/nonce" // says which call has made the pod

	// A worker that was asked to end has this long to answer what has arrived (--drain is 10 s), before it is killed.
	endSeconds = 15
	// The worker listens within a second of its start.
	probeSeconds, probes = 1, 120
)

// hash shortens texts to a name of 32 characters that labels and objects may have.
func hash(texts ...string) string {
	h := sha256.New()
	for _, t := range texts {
		h.Write([]byte(strconv.Itoa(len(t)) + ":" + t))
	}
	return strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)[:20]))
}

// buildLabel is the build as the value of a label.
func buildLabel() string {
	if len(validation.IsValidLabelValue(transport.Build)) == 0 {
		return transport.Build
	}
	return hash(transport.Build)
}

// selector selects the pods of a user.
func selector(user string) string { return labelApp + "=" + appName + "," + labelUser + "=" + user }

// labels are those of all objects of a machine.
func labels(user, session string) map[string]string {
	return map[string]string{labelApp: appName, labelUser: user, labelSession: hash(session), labelBuild: buildLabel()}
}

// podOf is the pod of a machine. nonce is part of the names of its Secret and its NetworkPolicy: those of an earlier
// pod with the same name may exist for some time after it.
func podOf(p *plan, user, name, nonce string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: labels(user, p.Session),
			Annotations: map[string]string{noteSession: p.Session, noteIdle: strconv.FormatInt(seconds(p.Idle), 10),
				noteNonce: nonce},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         ptr(seconds(p.Lease)),
			TerminationGracePeriodSeconds: ptr(int64(endSeconds)),
			// The worker uses neither the cluster's API nor its services.
			AutomountServiceAccountToken: ptr(false),
			EnableServiceLinks:           ptr(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsUser: &p.user, RunAsGroup: &p.user, FSGroup: &p.user, RunAsNonRoot: ptr(p.user != 0),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{container(p)},
			Volumes: []corev1.Volume{
				{Name: "credentials", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
					SecretName: name + "-" + nonce, DefaultMode: ptr(int32(0o400))}}},
				{Name: "state", VolumeSource: stateVolume(p.volume)},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}
	if p.weights != "" {
		claim := corev1.Volume{Name: weightsName, VolumeSource: stateVolume(p.weights)}
		pod.Spec.Volumes = append(pod.Spec.Volumes, claim)
	}
	if p.pullSecret != "" {
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: p.pullSecret}}
	}
	if p.GPUs > 0 {
		pod.Annotations[noteGPU] = p.GPU
		// Nodes with GPUs usually refuse pods that do not tolerate this.
		pod.Spec.Tolerations = []corev1.Toleration{{Key: string(gpuResource), Operator: corev1.TolerationOpExists}}
	}
	if len(p.gpuProducts) > 0 {
		pod.Spec.Affinity = affinity(p.gpuLabel, p.gpuProducts)
	}
	return pod
}

// stateVolume is a claim, or a folder that ends with the pod.
func stateVolume(claim string) corev1.VolumeSource {
	if claim == "" {
		return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	}
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
}

// affinity is the wish for a node whose label has one of some values.
func affinity(label string, values []string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: label, Operator: corev1.NodeSelectorOpIn, Values: values}},
		}}},
	}}
}

// container is the pod's container. Its arguments and its environment have no secret: who may read pods sees them.
func container(p *plan) corev1.Container {
	command := []string{"mycelya-worker", "--listen", ":" + strconv.Itoa(Port),
		"--credentials", secretFolder + "/" + secretFile, "--state", stateFolder, "--lease", p.Lease.String(),
		"--device", p.Device, "--threads", strconv.Itoa(p.Threads), "--weights", ""}
	if p.weights != "" {
		command[len(command)-1] = weightFolder + "/weights"
	}
	if p.Idle > 0 {
		command = append(command, "--alone", p.Idle.String())
	}
	if p.Detached {
		command = append(command, "--single")
	}
	out := corev1.Container{
		Name:    ContainerName,
		Image:   p.image,
		Command: command,
		// The image's user may have no home. Caches of compiled kernels lie there.
		Env:   []corev1.EnvVar{{Name: "HOME", Value: "/tmp"}},
		Ports: []corev1.ContainerPort{{Name: "mycelya", ContainerPort: Port, Protocol: corev1.ProtocolTCP}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "credentials", MountPath: secretFolder, ReadOnly: true},
			{Name: "state", MountPath: stateFolder},
			{Name: "tmp", MountPath: "/tmp"},
		},
		// Once the worker listens, nothing connects to it but its clients.
		StartupProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(Port)}},
			PeriodSeconds: probeSeconds, FailureThreshold: probes,
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr(false),
			ReadOnlyRootFilesystem:   ptr(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}},
	}
	if p.weights != "" {
		out.VolumeMounts = append(out.VolumeMounts, corev1.VolumeMount{Name: weightsName, MountPath: weightFolder})
	}
	limits := out.Resources.Limits
	if p.GPUs > 0 {
		limits[gpuResource] = *resource.NewQuantity(int64(p.GPUs), resource.DecimalSI)
	}
	if !p.cpu.IsZero() {
		limits[corev1.ResourceCPU] = p.cpu
	}
	if !p.memory.IsZero() {
		limits[corev1.ResourceMemory] = p.memory
	}
	out.Resources.Requests = maps.Clone(limits)
	return out
}

// dependentName is the name of the objects that go with a pod.
func dependentName(pod *corev1.Pod) string { return pod.Spec.Volumes[0].Secret.SecretName }

// dependent is the metadata of an object that goes with a pod.
func dependent(pod *corev1.Pod) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: dependentName(pod), Labels: pod.Labels, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}}
}

// secretOf has the worker's credentials.
func secretOf(pod *corev1.Pod, credentials []byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: dependent(pod), Immutable: ptr(true), Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{secretFile: credentials}}
}

// policyOf lets connections in to the worker's port only, and none out, or those that fetch weights: of DNS and HTTPS.
func policyOf(pod *corev1.Pod) *networkingv1.NetworkPolicy {
	tcp, udp := corev1.ProtocolTCP, corev1.ProtocolUDP
	at, https, dns := intstr.FromInt32(Port), intstr.FromInt32(443), intstr.FromInt32(53)
	var out []networkingv1.NetworkPolicyEgressRule
	if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == weightsName }) {
		out = []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{
			{Protocol: &udp, Port: &dns}, {Protocol: &tcp, Port: &dns}, {Protocol: &tcp, Port: &https}}}}
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: dependent(pod),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: maps.Clone(pod.Labels)},
			Ingress: []networkingv1.NetworkPolicyIngressRule{
				{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &at}}},
			},
			Egress:      out,
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
}

func ptr[T any](v T) *T { return &v }

// gpusOf is how many GPUs a pod has.
func gpusOf(pod *corev1.Pod) int {
	if len(pod.Spec.Containers) == 0 {
		return 0
	}
	n := pod.Spec.Containers[0].Resources.Limits[gpuResource]
	return int(n.Value())
}

// idleOf is the time without a client after which a pod's worker ends.
func idleOf(pod *corev1.Pod) time.Duration {
	n, _ := strconv.ParseInt(pod.Annotations[noteIdle], 10, 32)
	return time.Duration(n) * time.Second
}

// untilOf is when the lease of a pod ends. It begins when the node knows of the pod.
func untilOf(pod *corev1.Pod) time.Time {
	if pod.Spec.ActiveDeadlineSeconds == nil {
		return time.Time{}
	}
	began := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		began = pod.Status.StartTime.Time
	}
	return began.Add(time.Duration(*pod.Spec.ActiveDeadlineSeconds) * time.Second)
}
