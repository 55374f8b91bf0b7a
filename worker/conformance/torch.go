// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package conformance

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/mycelya/mycelya/worker/executor"

	"github.com/stretchr/testify/require"
)

var execLib = flag.String("executor", "", "the executor library to test; default: the one of this checkout")

// Torch returns the built executor and the torch of the environment, or skips the test.
func Torch(t testing.TB) executor.Torch {
	t.Helper()
	_, here, _, _ := goruntime.Caller(0)
	root := filepath.Join(filepath.Dir(here), "..", "..")
	python := filepath.Join(root, ".venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	lib := *execLib
	if lib == "" {
		lib = filepath.Join(Libraries(t, root, python), "libmycelya_exec.so")
	}
	if _, err := os.Stat(lib); err != nil {
		t.Skipf("the executor is not built (%v); make builds it", err)
	}
	lib, err := filepath.Abs(lib)
	require.NoError(t, err)
	return executor.Torch{Exec: lib, Lib: filepath.Join(printed(t, root, python, "--print-torch"), "lib"), Device: "cpu"}
}

// Libraries is the folder of the C++ libraries for the torch of a Python, or skips the test.
func Libraries(t testing.TB, root, python string) string {
	t.Helper()
	return printed(t, root, python, "--print-libraries")
}

// printed is what scripts/build.py prints for an option.
func printed(t testing.TB, root, python, option string) string {
	t.Helper()
	out, err := exec.Command(python, filepath.Join(root, "scripts", "build.py"), option).Output()
	if err != nil {
		t.Skipf("%s has no torch (%v)", python, err)
	}
	return strings.TrimSpace(string(out))
}
