// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package providers is the table of providers. A new provider is a folder beside local and a row here; go test -update
// then writes the Python package's copy, mycelya_torch/_provider_table.py. The package never starts a worker.
package providers

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/local"
)

// Row is one provider. A row without New is a name that users may know but that this version does not serve.
type Row struct {
	Name    string
	Aliases []string

	New func(provider.Paths) provider.Provider
	// Devices is the regular expression that a device option must match, in the syntax that Go and Python share;
	// DeviceHelp ends the sentence "use …" in the error of one that does not.
	Devices    string
	DeviceHelp string
	ChoosesGPU bool // takes a GPU type; otherwise a worker uses what its host has
	Options    []Option
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
			Options: []Option{{
				Name: "transport", Values: "unix|tcp",
				Help: "'unix' (a socket of this user, the default) or 'tcp' (TLS on 127.0.0.1)",
			}, {
				Name: "state", Values: `.+`,
				Help: "a folder for what save() and checkpoint() keep (default: one that ends with the machine)",
			}, {
				Name: "detached", Values: `[0-9]{1,9}`,
				Help: "the seconds without a client after which a worker that outlives its process ends",
			}, {
				Name: "attach", Values: `yes`, Help: "RemoteMachine.attach(name)",
			}},
		},
		{Name: "modal"},
		{Name: "ssh"},
		{Name: "kubernetes"},
	}
}

// New makes the provider with this name or alias, "" for the default. The error of an unknown name is
// provider.ErrInvalidSpec and lists the valid names; that of a name that this version does not serve is
// errors.ErrUnsupported.
func New(name string, paths provider.Paths) (provider.Provider, error) {
	table := Table()
	var valid, served []string
	for _, r := range table {
		valid = append(valid, fmt.Sprintf("'%s'", r.Name))
		if r.New != nil {
			served = append(served, fmt.Sprintf("'%s'", r.Name))
		}
	}
	i := slices.IndexFunc(table, func(r Row) bool { return r.Name == name || slices.Contains(r.Aliases, name) })
	switch {
	case name == "":
		i = 0
	case i < 0:
		return nil, provider.Errorf(provider.ErrInvalidSpec, "'%s' is not a provider; the providers are %s.",
			name, strings.Join(valid, ", "))
	case table[i].New == nil:
		return nil, provider.Errorf(errors.ErrUnsupported, "The provider '%s' is not part of this version, which has %s.",
			table[i].Name, strings.Join(served, ", "))
	}
	return table[i].New(paths), nil
}
