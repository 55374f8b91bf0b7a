// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package providers is the table of providers. A new provider is a folder beside local and a row here; go test -update
// then writes the Python package's copy, mycelya_torch/_provider_table.py. The package never starts a worker.
package providers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/emulate"
	"github.com/mycelya/mycelya/runtime/provider/exec"
	"github.com/mycelya/mycelya/runtime/provider/kubernetes"
	"github.com/mycelya/mycelya/runtime/provider/local"
	"github.com/mycelya/mycelya/runtime/provider/modal"
	"github.com/mycelya/mycelya/runtime/provider/ssh"
)

// Row is one provider.
type Row struct {
	Name    string
	Aliases []string

	New func(provider.Paths) provider.Provider
	// Devices is the regular expression that a device option must match, in the syntax that Go and Python share;
	// DeviceHelp ends the sentence "use …" in the error of one that does not.
	Devices    string
	DeviceHelp string
	ChoosesGPU bool // takes a GPU type; otherwise a worker uses what its host has
	// Lease and Idle are the default times of Spec, in seconds; 0: none, for workers that end with their client.
	Lease, Idle int
	Packages    bool // can install Python packages
	Detaches    bool // has workers that outlive their process
	// Target is the option that the text after the colon of MYCELYA_MACHINE gives: "gpu_type", "device", or one of
	// Options. "" is "device".
	Target  string
	Options []Option
}

// Option is an option of a provider beside the device. "" is its default, also if Values does not match that.
type Option struct {
	Name   string
	Values string // the regular expression that a value must match
	Help   string // ends the sentence "use …" in the error of a value that does not
}

// Table returns all providers. The first row is the default.
func Table() []Row {
	return []Row{
		{
			Name: "local", Aliases: []string{"mock"}, New: local.New,
			Devices:    `|cpu|cuda(:[0-9]+)?`,
			DeviceHelp: "'cpu', 'cuda:<index>' or '' (CUDA if the host has it, else the CPU)",
			Detaches:   true,
			Options: []Option{{
				Name: "transport", Values: "unix|tcp",
				Help: "'unix' (a socket of this user, the default) or 'tcp' (TLS on 127.0.0.1)",
			}, {
				Name: "state", Values: `.+`,
				Help: "a folder for what save() and checkpoint() keep (default: one that ends with the machine)",
			}, {
				Name: "rtt", Values: emulate.RTTPattern,
				Help: "the round trip time of an emulated network before the worker: '50ms'",
			}, {
				Name: "rate", Values: emulate.RatePattern,
				Help: "the rate of that network in each direction: '100Mbit'",
			}},
		},
		modalRow(),
		sshRow(),
		{
			Name: "kubernetes", New: kubernetes.New,
			Devices:    `|cpu|cuda(:[0-9]+)?`,
			DeviceHelp: "'cpu', 'cuda:<index>' or '' (CUDA if gpu_type or gpu_count is given, else the CPU)",
			ChoosesGPU: true, Lease: 3600, Idle: 600, Detaches: true, Target: "context",
			Options: []Option{
				{"context", `.+`, "a context of the kubeconfig (default: its current one)"},
				{"namespace", `[a-z0-9]([-a-z0-9]*[a-z0-9])?`, "a namespace of the cluster (default: the context's)"},
				{"image", `[^ ]+`, "an image that has this build of mycelya-torch (default: '" + kubernetes.DefaultImage + "')"},
				{"pull_secret", `[a-z0-9]([-.a-z0-9]*[a-z0-9])?`, "the name of a secret with the login to the image's registry"},
				{"gpu_label", `[^ ]+`, "the label of nodes that names their GPU (default: '" + kubernetes.DefaultGPULabel + "')"},
				{"gpu_product", `[^ ]+`, "a value of this label (default: those of gpu_type)"},
				{"volume", `[a-z0-9]([-.a-z0-9]*[a-z0-9])?`,
					"the name of a PersistentVolumeClaim for what save() and checkpoint() keep (default: it ends with the pod)"},
				{"weights", `[a-z0-9]([-.a-z0-9]*[a-z0-9])?`, "the name of a PersistentVolumeClaim for weights from a hub, which " +
					"the pod may then fetch (default: it reaches no network)"},
				{"cpu", `[0-9.]+m?`, "a number of cores, as '4' (default: the namespace's)"},
				{"memory", `[0-9.]+([kMGTPE]i?)?`, "bytes, as '16Gi' (default: the namespace's)"},
				{"user", `[0-9]{1,9}`, "the number of the user that the worker runs as (default: '10001')"},
				{"direct", `yes|no`, "'yes' for a client in the same cluster, or 'no' (through the API server, the default)"},
				{"wait", `[0-9]{1,6}`, "the seconds for which a pod waits for a node (default: '120')"},
			},
		},
		{
			Name: "exec", New: exec.New,
			DeviceHelp: "'' (the command chooses the device: mycelya-worker --stdio --device …)",
			Target:     "command",
			Options: []Option{{
				Name: "command", Values: ".+",
				Help: "a command whose stdin and stdout are those of mycelya-worker --stdio",
			}},
		},
	}
}

// modalRow is the row of Modal, where a worker costs money.
func modalRow() Row {
	row := Row{
		Name: "modal", New: modal.New,
		Devices:    `|cpu|cuda(:[0-9]+)?`,
		DeviceHelp: "'cuda:<index>', 'cpu' (without a GPU unless gpu_type names one) or '' (the first GPU)",
		ChoosesGPU: true, Lease: 3600, Idle: 600, Packages: true, Detaches: true, Target: "gpu_type",
	}
	for _, o := range modal.Options() {
		row.Options = append(row.Options, Option(o))
	}
	return row
}

// sshRow is the row of hosts that are reached by ssh.
func sshRow() Row {
	return Row{
		Name: "ssh", New: ssh.New,
		Devices:    `|cpu|cuda(:[0-9]+)?`,
		DeviceHelp: "'cpu', 'cuda:<index>' or '' (CUDA if the host has it, else the CPU)",
		// A worker outlives a lost connection, and then perhaps its client.
		Idle:     600,
		Detaches: true,
		Target:   "host",
		Options: []Option{{
			Name: "host", Values: ssh.HostPattern,
			Help: "what you give to ssh: 'name', 'user@name' or a Host of ~/.ssh/config",
		}, {
			Name: "python", Values: ssh.CommandPattern,
			Help: "the interpreter on the host that has torch, as '~/venv/bin/python' (default 'python3')",
		}, {
			Name: "ssh", Values: ssh.CommandPattern,
			Help: "the ssh program here, with its options if it needs some, as 'ssh -F file' (default 'ssh')",
		}, {
			Name: "folder", Values: ssh.FolderPattern,
			Help: "a folder on the host for the worker program (default '~/.cache/mycelya')",
		}, {
			Name: "state", Values: ssh.FolderPattern,
			Help: "a folder on the host for what save() and checkpoint() keep (default: one that ends with the machine)",
		}, {
			Name: "weights", Values: ssh.FolderPattern,
			Help: "a folder on the host for weights from a hub (default '~/.cache/mycelya/weights')",
		}},
	}
}

// New makes the provider with this name or alias, "" for the default. The error of an unknown name is
// provider.ErrInvalidSpec and lists the valid names.
func New(name string, paths provider.Paths) (provider.Provider, error) {
	table := Table()
	var valid []string
	for _, r := range table {
		if name == "" || r.Name == name || slices.Contains(r.Aliases, name) {
			return r.New(paths), nil
		}
		valid = append(valid, fmt.Sprintf("'%s'", r.Name))
	}
	return nil, provider.Errorf(provider.ErrInvalidSpec, "'%s' is not a provider; the providers are %s.",
		name, strings.Join(valid, ", "))
}
