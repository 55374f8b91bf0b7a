// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package launch_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/worker/conformance"
)

// result is a line of testdata/run.py.
type result struct {
	Case, Error   string
	Waited        int `json:"waited"`
	Tried         int `json:"tried"`
	Wrong         int `json:"wrong"`
	GroupsFused   int `json:"groups_fused"`
	GroupsUnfused int `json:"groups_unfused"`
	Launched      int `json:"kernels_launched"`
	Ops           int `json:"fused_ops"`
	Same          bool
	Waits         int
	Texts         []string
}

// TestPython runs cases of tests/e2e/kernels.py in Python on the emulated device: as operators, and later as kernels.
// Groups that draw random numbers stay operators.
func TestPython(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	all := map[string]result{}
	results, words := python(t, "", "layouts", "in place", "reductions", "numbers", "small", "norms", "dropouts",
		"training AdamW foreach=True")
	require.Empty(t, words)
	for _, r := range results {
		require.Empty(t, r.Error, r.Case)
		all[r.Case] = r
		t.Logf("%+v", r)
		if r.Case == "dropouts" {
			continue
		}
		require.Positive(t, r.Waited, r.Case)
		require.Positive(t, r.Tried, r.Case)
		require.Zero(t, r.Wrong, r.Case)
		require.Positive(t, r.GroupsFused, r.Case)
		require.GreaterOrEqual(t, r.Launched, r.GroupsFused)
		require.Greater(t, r.Ops, r.Launched)
		require.Zero(t, r.GroupsUnfused, r.Case)
	}
	require.Len(t, all, 8)
	require.Positive(t, all["dropouts"].GroupsUnfused)
}

// TestPythonIsWarned checks that the user gets one warning, and no error, if a kernel does not compile.
func TestPythonIsWarned(t *testing.T) {
	results, words := python(t, "exp(", "small")
	require.Len(t, results, 1)
	require.Empty(t, results[0].Error)
	require.Positive(t, results[0].GroupsUnfused)
	require.Equal(t, 1, strings.Count(words, "level=WARN"), words)
	require.Regexp(t, `A fused kernel could not be made for sm_90, so its programs run without it\. `+
		`.*/cubins without exp\(/[0-9a-f]{64}\.log has its source`, words)
}

// TestPythonRunsOperatorsForWrongKernels makes kernels wrong, and checks that each call has the operators' results, and
// that the warning names the group, its line and the difference.
func TestPythonRunsOperatorsForWrongKernels(t *testing.T) {
	t.Setenv("ATEN_EMULATED_TWIST", "exp(>1.5 + exp(")
	results, words := python(t, "", "small")
	require.Len(t, results, 1)
	r := results[0]
	require.Empty(t, r.Error)
	require.Positive(t, r.Wrong)
	require.Positive(t, r.GroupsUnfused)
	require.Regexp(t, `The kernels of fused .*exp.* \(.*/kernels\.py:\d+, program #\d+\) do not give what its `+
		`operators give: \d+ of \d+ elements differ by more than rounding; element \d+ is \S+ instead of \S+\. `+
		`The call has the operators' results`, words)
}

// TestPythonLosesABrokenDevice checks that a process whose device can do nothing any more ends, and that the client
// says so with the device's reason.
func TestPythonLosesABrokenDevice(t *testing.T) {
	t.Setenv("ATEN_EMULATED_BROKEN", "1")
	results, _ := python(t, "", "small")
	require.Len(t, results, 1)
	require.Contains(t, results[0].Error, "DeviceLostError: mycelya:0 is lost: ")
	require.Contains(t, results[0].Error, "ended with code 70")
	require.Contains(t, results[0].Error, "cannot use cpu any more: an emulated assertion failed.")
	require.Contains(t, results[0].Error, "Call torch.mycelya.restart(0) to use the device again.")
}

// TestPythonReadsIndicesOnTheHost checks operators that take indices. Those that the client has uploaded, or that come
// from such by cheap operators, are checked without a wait for the device, also when they have changed in place.
func TestPythonReadsIndicesOnTheHost(t *testing.T) {
	results, words := script(t, "indices.py", "")
	require.Empty(t, words)
	waits := map[string]int{"computed": 1, "large": 1, "changed": 1, "wrong": 2}
	require.Len(t, results, 7)
	for _, r := range results {
		require.True(t, r.Same, r.Case)
		require.Equal(t, waits[r.Case], r.Waits, r.Case)
	}
	require.Equal(t, []string{"index 10 is out of range", "index 19 is out of range", "index 10 is out of range"},
		results[6].Texts)
}

// python runs testdata/run.py and returns its output. The worker's compiler refuses a text that contains the string
// wrong.
func python(t *testing.T, wrong string, cases ...string) (out []result, words string) {
	return script(t, "run.py", wrong, cases...)
}

// script runs a script of testdata and returns its output. The worker is this test program.
func script(t *testing.T, name, wrong string, cases ...string) (out []result, words string) {
	t.Helper()
	torch(t)
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	path := filepath.Join(root, ".venv", "bin", "python")
	for _, needed := range []string{path, filepath.Join(conformance.Libraries(t, root, path), "libmycelya_device.so"),
		filepath.Join(root, "mycelya_torch", "lib", "libmycelya_go.so")} {
		if _, err := os.Stat(needed); err != nil {
			t.Skipf("the package is not built (%v); make builds it", err)
		}
	}
	self, err := os.Executable()
	require.NoError(t, err)
	link := filepath.Join(folder, "worker")
	if err := os.Symlink(self, link); !os.IsExist(err) {
		require.NoError(t, err)
	}
	run := exec.Command(path, append([]string{filepath.Join("testdata", name), link}, cases...)...)
	run.Env = append(os.Environ(), "MYCELYA_KERNELS=on", "MYCELYA_MACHINE=local", "PYTHONPATH="+root,
		"ATEN_EMULATED_WRONG="+wrong)
	var stderr bytes.Buffer
	run.Stderr = &stderr
	text, err := run.Output()
	require.NoError(t, err, stderr.String())
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var r result
		require.NoError(t, d.Decode(&r))
		out = append(out, r)
	}
	return out, stderr.String()
}
