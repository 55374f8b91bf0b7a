// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

const (
	// DefaultImage has the worker of this build. The Dockerfile beside this file makes such an image.
	DefaultImage = "docker.io/mycelya/worker:" + transport.Build
	// DefaultGPULabel is the label that NVIDIA's GPU operator gives to a node, with the product name of its GPUs.
	DefaultGPULabel = "nvidia.com/gpu.product"

	defaultUser = 10001
	// How long a pod waits for a node. An autoscaler needs minutes: the option "wait" makes it longer.
	defaultWait = 2 * time.Minute
)

// plan is what a Spec asks for, checked.
type plan struct {
	provider.Spec
	context, namespace string
	image, pullSecret  string
	gpuLabel           string
	gpuProducts        []string // values of gpuLabel that are right; none: any GPU
	volume, weights    string
	cpu, memory        resource.Quantity // zero: the namespace's default
	user               int64
	direct             bool
	wait               time.Duration
}

// planOf checks a Spec.
func planOf(s provider.Spec) (*plan, error) {
	p := &plan{Spec: s, image: DefaultImage, gpuLabel: DefaultGPULabel, user: defaultUser, wait: defaultWait}
	if s.Threads < 0 {
		return nil, provider.Errorf(provider.ErrInvalidSpec, "A worker cannot have %d threads.", s.Threads)
	}
	if s.Lease < time.Second {
		return nil, provider.Errorf(provider.ErrInvalidSpec,
			"A Kubernetes machine needs a time after which it ends, of at least a second: timeout=3600, for example.")
	}
	if len(s.Packages) > 0 {
		return nil, provider.Errorf(provider.ErrInvalidSpec, "A Kubernetes machine has the Python packages of its image; "+
			"%q cannot be installed. Make an image that has them, and give its name: image=….", s.Packages)
	}
	if s.Detached && s.Session == "" {
		return nil, provider.Errorf(provider.ErrInvalidSpec, "A machine that outlives its process needs a name.")
	}
	product := ""
	for name, value := range s.Options {
		if err := p.option(name, value, &product); err != nil {
			return nil, err
		}
	}
	if p.Threads == 0 && !p.cpu.IsZero() { // PyTorch counts the cores of the node, not those of the container
		p.Threads = max(1, int(p.cpu.Value()))
	}
	return p, p.chooseGPU(product)
}

// option takes an option of the provider. "" is the default of each.
func (p *plan) option(name, value string, product *string) error {
	if value == "" {
		return nil
	}
	var err error
	switch name {
	case "context":
		p.context = value
	case "namespace":
		p.namespace = value
	case "image":
		p.image = value
	case "pull_secret":
		p.pullSecret = value
	case "gpu_label":
		p.gpuLabel = value
	case "gpu_product":
		*product = value
	case "volume":
		p.volume = value
	case "weights":
		p.weights = value
	case "cpu":
		p.cpu, err = resource.ParseQuantity(value)
	case "memory":
		p.memory, err = resource.ParseQuantity(value)
	case "user":
		p.user, err = strconv.ParseInt(value, 10, 32)
	case "direct":
		p.direct = value == "yes"
	case "wait":
		var n uint64
		n, err = strconv.ParseUint(value, 10, 32)
		p.wait = time.Duration(max(n, 1)) * time.Second
	default:
		return provider.Errorf(provider.ErrInvalidSpec, "%s=%q is not an option of the Kubernetes machine.", name, value)
	}
	if err == nil {
		err = validOption(name, value)
	}
	if err != nil {
		return provider.Errorf(provider.ErrInvalidSpec, "%s=%q is not possible on the Kubernetes machine: %v.", name, value,
			err)
	}
	return nil
}

type invalid string

func (i invalid) Error() string { return string(i) }

// validOption finds values that the cluster would refuse with a longer message.
func validOption(name, value string) error {
	var wrong []string
	switch name {
	case "namespace":
		wrong = validation.IsDNS1123Label(value)
	case "pull_secret", "volume", "weights":
		wrong = validation.IsDNS1123Subdomain(value)
	case "gpu_label":
		wrong = validation.IsQualifiedName(value)
	case "gpu_product":
		wrong = validation.IsValidLabelValue(value)
	case "direct":
		if value != "yes" && value != "no" {
			return invalid("it is neither yes nor no")
		}
	}
	if len(wrong) > 0 {
		return invalid(wrong[0])
	}
	return nil
}

// chooseGPU decides how many GPUs the pod gets, and which.
func (p *plan) chooseGPU(product string) error {
	index, ok := deviceIndex(p.Device)
	if !ok {
		return provider.Errorf(provider.ErrInvalidSpec,
			"The device %q does not exist; a Kubernetes machine has \"cpu\" or \"cuda:<number>\".", p.Device)
	}
	if p.GPU != "" || product != "" {
		p.GPUs = max(p.GPUs, 1)
	}
	switch {
	case p.GPUs < 0:
		return provider.Errorf(provider.ErrInvalidSpec, "A machine cannot have %d GPUs.", p.GPUs)
	case p.Device == "cpu" && p.GPUs > 0:
		return provider.Errorf(provider.ErrInvalidSpec, "device=\"cpu\" and %d GPUs exclude each other. Leave one out.",
			p.GPUs)
	case index >= 0 && p.GPUs == 0:
		p.GPUs = index + 1
	case index >= p.GPUs && index > 0:
		return provider.Errorf(provider.ErrInvalidSpec, "A machine with %d GPUs has no device %q.", p.GPUs, p.Device)
	}
	if p.Device == "" {
		p.Device = "cpu"
		if p.GPUs > 0 {
			p.Device = "cuda:0"
		}
	}
	switch {
	case product != "":
		p.gpuProducts = []string{product}
	case p.GPU != "":
		p.gpuProducts = productsOf(p.GPU)
	}
	return nil
}

// deviceIndex is the index of a CUDA device, -1 for the others.
func deviceIndex(device string) (int, bool) {
	text, cuda := strings.CutPrefix(device, "cuda:")
	if !cuda {
		return -1, device == "" || device == "cpu"
	}
	i, err := strconv.Atoi(text)
	return i, err == nil && i >= 0 && strconv.Itoa(i) == text
}

// seconds is a time as Kubernetes takes it.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// products are the values of node labels for each type of GPU: those of NVIDIA's GPU feature discovery first, then
// those of cloud.google.com/gke-accelerator.
var products = []struct {
	gpu    string
	values []string
}{
	{"T4", []string{"Tesla-T4", "NVIDIA-T4", "nvidia-tesla-t4"}},
	{"L4", []string{"NVIDIA-L4", "nvidia-l4"}},
	{"A10G", []string{"NVIDIA-A10G"}},
	{"A100-40GB", []string{"NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB", "nvidia-tesla-a100"}},
	{"A100-80GB", []string{"NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe", "nvidia-a100-80gb"}},
	{"L40S", []string{"NVIDIA-L40S"}},
	{"H100", []string{"NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL", "nvidia-h100-80gb",
		"nvidia-h100-mega-80gb"}},
	{"H200", []string{"NVIDIA-H200", "NVIDIA-H200-NVL", "nvidia-h200-141gb"}},
	{"B200", []string{"NVIDIA-B200", "nvidia-b200"}},
	{"RTX-PRO-6000", []string{"NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
		"NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition", "nvidia-rtx-pro-6000"}},
}

// productsOf returns the label values of a type of GPU. The type itself is always one, so that nodes can have labels
// with these names. "A100" is any A100.
func productsOf(gpu string) []string {
	out := []string{gpu}
	for _, p := range products {
		if p.gpu == gpu || strings.HasPrefix(p.gpu, gpu+"-") {
			out = append(out, p.values...)
		}
	}
	slices.Sort(out)
	return out
}
