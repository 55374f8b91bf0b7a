// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package providers

import (
	"bytes"
	"errors"
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

// TestTable walks every row: names are unique, and a served provider has a folder with a README and a device option.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for i, r := range Table() {
		for _, name := range append([]string{r.Name}, r.Aliases...) {
			require.Regexp(t, `^[a-z]+$`, name)
			require.False(t, seen[name], "%s names two providers", name)
			seen[name] = true
		}
		p, err := New(r.Name, provider.Paths{})
		if r.New == nil {
			require.NotZero(t, i, "the default provider must be served")
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorContains(t, err, "The provider '"+r.Name+"' is not part of this version, which has 'local'")
			continue
		}
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

func TestNames(t *testing.T) {
	for _, name := range []string{"", "local", "mock"} {
		p, err := New(name, provider.Paths{})
		require.NoError(t, err)
		require.NotNil(t, p)
	}
	_, err := New("aws", provider.Paths{})
	require.ErrorIs(t, err, provider.ErrInvalidSpec)
	require.EqualError(t, err, "'aws' is not a provider; the providers are 'local', 'modal', 'ssh', 'kubernetes'.")
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

    served: bool
    aliases: tuple[str, ...] = ()
    devices: str = ""
    device_help: str = ""
    chooses_gpu: bool = False
    options: tuple[tuple[str, str, str], ...] = ()  # name, values, help


TABLE = {
`)
	for _, r := range Table() {
		name := "    BackendProvider." + strings.ToUpper(r.Name)
		if r.New == nil {
			fmt.Fprintf(&b, "%s: Row(served=False),\n", name)
			continue
		}
		fmt.Fprintf(&b, "%s: Row(\n        served=True,\n        aliases=(", name)
		for _, a := range r.Aliases {
			fmt.Fprintf(&b, "%q,", a)
		}
		gpu := "False"
		if r.ChoosesGPU {
			gpu = "True"
		}
		fmt.Fprintf(&b, "),\n        devices=r%q,\n", r.Devices)
		fmt.Fprintf(&b, "        device_help=%q,\n        chooses_gpu=%s,\n        options=(\n", r.DeviceHelp, gpu)
		for _, o := range r.Options {
			fmt.Fprintf(&b, "            (\n                %q,\n                r%q,\n                %q,\n            ),\n",
				o.Name, o.Values, o.Help)
		}
		b.WriteString("        ),\n    ),\n")
	}
	b.WriteString("}\n")
	return b.Bytes()
}
