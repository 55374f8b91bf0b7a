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

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/worker"
)

var execLib = flag.String("executor", "", "the executor library to test; default: the one in mycelya_torch/lib")

// Torch returns the built executor and the torch of the environment, or skips the test.
func Torch(t testing.TB) worker.Torch {
	t.Helper()
	_, here, _, _ := goruntime.Caller(0)
	root := filepath.Join(filepath.Dir(here), "..", "..")
	lib := *execLib
	if lib == "" {
		lib = filepath.Join(root, "mycelya_torch", "lib", "libmycelya_exec.so")
	}
	if _, err := os.Stat(lib); err != nil {
		t.Skipf("the executor is not built (%v); make builds it", err)
	}
	lib, err := filepath.Abs(lib)
	require.NoError(t, err)
	python := filepath.Join(root, ".venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	const where = "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
	out, err := exec.Command(python, "-c", where).Output()
	if err != nil {
		t.Skipf("%s has no torch (%v)", python, err)
	}
	return worker.Torch{Exec: lib, Lib: filepath.Join(strings.TrimSpace(string(out)), "lib"), Device: "cpu"}
}
