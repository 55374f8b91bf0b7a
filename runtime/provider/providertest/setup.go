// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package providertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Main runs the tests of a package with the real worker program, which it builds at *path, and ends the process. before
// gets the folder of the program, which has a short path.
func Main(m *testing.M, path *string, before ...func(folder string)) {
	folder, err := os.MkdirTemp("", "mpt")
	if err != nil {
		panic(err)
	}
	*path = filepath.Join(folder, "mycelya-worker")
	// Without symbols, as in a package: some tests copy it often.
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", *path,
		"github.com/mycelya/mycelya/worker/cmd/mycelya-worker").CombinedOutput()
	code := 1
	if err != nil {
		fmt.Fprintf(os.Stderr, "building the worker: %v\n%s", err, out)
	} else {
		for _, f := range before {
			f(folder)
		}
		code = m.Run()
	}
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// Gone requires that a list becomes empty: the processes of an ended worker end a moment after it.
func Gone(t *testing.T, list func() []string) {
	t.Helper()
	left := list()
	for until := time.Now().Add(patience); len(left) > 0 && time.Now().Before(until); left = list() {
		time.Sleep(10 * time.Millisecond)
	}
	require.Empty(t, left)
}

// Processes lists the command lines that have a text in them.
func Processes(t *testing.T, text string) (out []string) {
	t.Helper()
	ps, err := exec.Command("ps", "-e", "-o", "args").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(ps)) {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}
