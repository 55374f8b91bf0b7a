// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// source is one text file of the repository.
type source struct {
	path  string // from the root of the repository
	text  string
	lines []string
	// generated files have the standard line of generated code; no limit holds for them.
	generated bool
	// table files state in their header why they are long: "Table: reason". Limits on lengths of files and functions do
	// not hold for them.
	table bool
}

var (
	generatedMark = regexp.MustCompile(`(?m)^(//|#|<!--|/\*) ?Code generated .* DO NOT EDIT\.`)
	tableMark     = regexp.MustCompile(`(?m)^\s*(//|#|/?\*) ?Table: \S`)
)

// headerLines is the number of lines at the start of a file that may hold a mark.
const headerLines = 40

// codeSuffixes end the names of files that hold code.
var codeSuffixes = []string{
	".go", ".py", ".pyi", ".c", ".cpp", ".h", ".inc", ".cu", ".proto", ".sh", ".js", ".css", ".html",
}

// sources lists the files with one of these suffixes that git tracks or does not ignore.
func sources(t *testing.T, suffixes ...string) []source {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-co", "--exclude-standard")
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	var all []source
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		if !slices.Contains(suffixes, filepath.Ext(path)) {
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", path))
		if os.IsNotExist(err) { // deleted, and not yet committed
			continue
		}
		require.NoError(t, err)
		all = append(all, newSource(path, string(text)))
	}
	require.NotEmpty(t, all)
	return all
}

func newSource(path, text string) source {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	head := strings.Join(lines[:min(headerLines, len(lines))], "\n")
	return source{path: path, text: text, lines: lines,
		generated: generatedMark.MatchString(head), table: tableMark.MatchString(head)}
}
