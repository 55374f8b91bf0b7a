// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package providers

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/runtime/provider"
)

var update = flag.Bool("update", false, "write the Python package's copy of the table instead of comparing it")

// TestTable walks every row: names are unique, and each has a folder with a README and a device option.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Table() {
		for _, name := range append([]string{r.Name}, r.Aliases...) {
			require.Regexp(t, `^[a-z]+$`, name)
			require.False(t, seen[name], "%s names two providers", name)
			seen[name] = true
		}
		p, err := New(r.Name, provider.Paths{})
		require.NoError(t, err)
		require.NotNil(t, p)
		require.FileExists(t, filepath.Join("..", r.Name, "README.md"))
		require.Regexp(t, regexp.MustCompile("^("+r.Devices+")$"), "", "the default device must be valid")
		require.NotEmpty(t, r.DeviceHelp)
		for _, o := range r.Options {
			require.Regexp(t, `^[a-z_]+$`, o.Name)
			require.NotEmpty(t, o.Help)
			_, err := regexp.Compile(o.Values)
			require.NoError(t, err)
		}
	}
}

// TestKeepers says which machines can pause.
func TestKeepers(t *testing.T) {
	keeps := func(name string, options map[string]string) bool {
		p, err := New(name, provider.Paths{})
		require.NoError(t, err)
		keeper, ok := p.(provider.Keeper)
		return ok && keeper.Keeps(provider.Spec{Options: options}) == nil
	}
	volume := map[string]string{"volume": "v"}
	for name, want := range map[string][2]bool{ // without a volume, and with one
		"local": {true, true}, "ssh": {true, true}, "modal": {false, true}, "kubernetes": {false, true},
		"exec": {false, false},
	} {
		require.Equal(t, want, [2]bool{keeps(name, nil), keeps(name, volume)}, name)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", "local", "mock"} {
		p, err := New(name, provider.Paths{})
		require.NoError(t, err)
		require.NotNil(t, p)
	}
	_, err := New("aws", provider.Paths{})
	require.ErrorIs(t, err, provider.ErrInvalidSpec)
	require.EqualError(t, err, "'aws' is not a provider; the providers are 'local', 'modal', 'ssh', 'kubernetes', 'exec'.")
}

// TestPythonTable compares the Python package's copy of the table with the table; -update writes the copy.
func TestPythonTable(t *testing.T) {
	path := filepath.Join("..", "..", "..", "mycelya_torch", "_provider_table.py")
	want := python()
	if *update {
		require.NoError(t, os.WriteFile(path, want, 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "mycelya_torch/_provider_table.py is stale; run make golden")
}

// word is a truth value in Python.
func word(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// python is the table as a Python module.
func python() []byte {
	var b bytes.Buffer
	b.WriteString(`# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The providers. Generated from runtime/provider/providers by 'make golden'."""
# ruff: noqa: E501

from __future__ import annotations

import enum
from typing import NamedTuple


class BackendProvider(enum.Enum):
    """The source of a machine."""

`)
	for _, r := range Table() {
		fmt.Fprintf(&b, "    %s = %q\n", strings.ToUpper(r.Name), r.Name)
	}
	b.WriteString(`

class Row(NamedTuple):
    """One provider; the fields are those of Row in Go."""

    aliases: tuple[str, ...] = ()
    devices: str = ""
    device_help: str = ""
    chooses_gpu: bool = False
    lease: int = 0  # seconds
    idle: int = 0  # seconds
    packages: bool = False
    detaches: bool = False
    target: str = "device"
    options: tuple[tuple[str, str, str], ...] = ()  # name, values, help


TABLE = {
`)
	for _, r := range Table() {
		name := "    BackendProvider." + strings.ToUpper(r.Name)
		fmt.Fprintf(&b, "%s: Row(\n        aliases=(", name)
		for _, a := range r.Aliases {
			fmt.Fprintf(&b, "%q,", a)
		}
		fmt.Fprintf(&b, "),\n        devices=r%q,\n        device_help=%q,\n", r.Devices, r.DeviceHelp)
		fmt.Fprintf(&b, "        chooses_gpu=%s,\n        lease=%d,\n        idle=%d,\n", word(r.ChoosesGPU), r.Lease, r.Idle)
		fmt.Fprintf(&b, "        packages=%s,\n        detaches=%s,\n        target=%q,\n        options=(\n",
			word(r.Packages), word(r.Detaches), cmp.Or(r.Target, "device"))
		for _, o := range r.Options {
			fmt.Fprintf(&b, "            (\n                %q,\n                r%q,\n                %q,\n            ),\n",
				o.Name, o.Values, o.Help)
		}
		b.WriteString("        ),\n    ),\n")
	}
	b.WriteString("}\n")
	return b.Bytes()
}
