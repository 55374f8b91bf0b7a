// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package launch_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPython goes all the way from Python to the emulated device, with cases of tests/e2e/kernels.py: as operators, and as kernels when those are
// ready. The groups that draw random numbers stay operators.
func TestPython(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	type result struct {
		Case, Error   string
		Waited        int `json:"waited"`
		GroupsFused   int `json:"groups_fused"`
		GroupsUnfused int `json:"groups_unfused"`
		Launched      int `json:"kernels_launched"`
		Ops           int `json:"fused_ops"`
	}
	all := map[string]result{}
	for _, r := range python[result](t, "", "layouts", "in place", "folds", "numbers", "small", "norms", "dropouts", "training AdamW foreach=True") {
		require.Empty(t, r.Error, r.Case)
		all[r.Case] = r
		t.Logf("%+v", r)
		if r.Case == "dropouts" {
			continue
		}
		require.Positive(t, r.Waited, r.Case)
		require.Positive(t, r.GroupsFused, r.Case)
		require.GreaterOrEqual(t, r.Launched, r.GroupsFused)
		require.Greater(t, r.Ops, r.Launched)
		require.Zero(t, r.GroupsUnfused, r.Case)
	}
	require.Len(t, all, 8)
	require.Positive(t, all["dropouts"].GroupsUnfused)
}

// python runs testdata/run.py with this test as its worker, and gives what it prints.
func python[T any](t *testing.T, want string, cases ...string) (out []T) {
	torch(t)
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	path := filepath.Join(root, ".venv", "bin", "python")
	for _, needed := range []string{path, filepath.Join(root, "mycelya_torch", "lib", "libmycelya_device.so"), filepath.Join(root, "mycelya_torch", "lib", "libmycelya_go.so")} {
		if _, err := os.Stat(needed); err != nil {
			t.Skipf("the package isn't built (%v); make builds it", err)
		}
	}
	self, err := os.Executable()
	require.NoError(t, err)
	link := filepath.Join(folder, "worker")
	for _, l := range [][2]string{{self, link}, {filepath.Join(root, "tests", "cuda", "testdata", "emulate.h"), filepath.Join(folder, "emulate.h")}} {
		if err := os.Symlink(l[0], l[1]); !os.IsExist(err) {
			require.NoError(t, err)
		}
	}
	run := exec.Command(path, append([]string{filepath.Join("testdata", "run.py"), link}, cases...)...)
	run.Env = append(os.Environ(), "MYCELYA_KERNELS=on", "MYCELYA_MACHINE=local", "PYTHONPATH="+root)
	var words bytes.Buffer
	run.Stderr = &words
	text, err := run.Output()
	require.NoError(t, err, words.String())
	if want == "" {
		require.Empty(t, words.String())
	} else {
		require.Contains(t, words.String(), want)
	}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var r T
		require.NoError(t, d.Decode(&r))
		out = append(out, r)
	}
	return out
}
