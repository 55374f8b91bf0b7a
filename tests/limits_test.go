// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/tests/golden"
)

// The limits of CONTRIBUTING.md.
const (
	maxFileLines     = 600
	maxFunctionLines = 80
	maxColumns       = 120
)

// offender is one place that breaks a limit. A line of testdata/limits.txt is its key.
type offender struct {
	key string // "<limit> <path> [<function>]"
	got string
}

// TestLimits fails for each place that breaks a limit and is not in testdata/limits.txt. It also fails for each line of
// that file without such a place. go test ./tests -update removes these lines, and never adds one.
func TestLimits(t *testing.T) {
	var found []offender
	found = append(found, longFiles(sources(t, codeSuffixes...))...)
	found = append(found, longGoFunctions(t, sources(t, ".go"))...)
	found = append(found, longCFunctions(sources(t, ".c", ".cpp", ".h", ".inc", ".cu"))...)
	found = append(found, longPythonFunctions(t, sources(t, ".py"))...)
	found = append(found, wideGoLines(sources(t, ".go"))...)
	found = append(found, wideMarkdownLines(sources(t, ".md"))...)
	found = append(found, wrongGuards(sources(t, ".h"))...)
	compareWithAllowed(t, found)
}

func compareWithAllowed(t *testing.T, found []offender) {
	const path = "testdata/limits.txt"
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	got := map[string]string{}
	for _, o := range found {
		got[o.key] = o.got
	}
	var kept strings.Builder
	allowed := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		key := strings.TrimSpace(line)
		comment := key == "" || strings.HasPrefix(key, "#")
		if why, ok := got[key]; ok {
			allowed[key] = true
			t.Logf("%s: %s (allowed)", key, why)
		} else if !comment && !golden.Updating() {
			t.Errorf("%s: %q no longer breaks the limit; go test ./tests -update removes the line", path, key)
		}
		if comment || allowed[key] {
			kept.WriteString(line)
		}
	}
	for _, o := range found {
		if !allowed[o.key] {
			t.Errorf("%s: %s", o.key, o.got)
		}
	}
	if golden.Updating() && kept.String() != string(data) {
		require.NoError(t, os.WriteFile(path, []byte(kept.String()), 0o644))
	}
}

func longFiles(all []source) (found []offender) {
	for _, s := range all {
		if n := len(s.lines); n > maxFileLines && !s.generated && !s.table {
			found = append(found, offender{"file " + s.path, fmt.Sprintf("%d lines, at most %d", n, maxFileLines)})
		}
	}
	return found
}

func longFunction(s source, name string, first, last int) []offender {
	n := last - first + 1
	if n <= maxFunctionLines || s.generated || s.table {
		return nil
	}
	got := fmt.Sprintf("%d lines from line %d, at most %d", n, first, maxFunctionLines)
	return []offender{{"function " + s.path + " " + name, got}}
}

func longGoFunctions(t *testing.T, all []source) (found []offender) {
	for _, s := range all {
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, s.path, s.text, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			ast.Inspect(d, func(n ast.Node) bool {
				name := ""
				switch n := n.(type) {
				case *ast.FuncDecl:
					name = n.Name.Name
				case *ast.FuncLit:
					name = "func"
				default:
					return true
				}
				found = append(found, longFunction(s, name, files.Position(n.Pos()).Line, files.Position(n.End()).Line)...)
				return false
			})
		}
	}
	return found
}

func longCFunctions(all []source) (found []offender) {
	for _, s := range all {
		functions, err := scanC(s.text)
		if err != nil {
			found = append(found, offender{"scan " + s.path, err.Error()})
		}
		for _, f := range functions {
			found = append(found, longFunction(s, f.name, f.first, f.last)...)
		}
	}
	return found
}

// listPython prints "path<tab>name<tab>first line<tab>last line" of each function of the files in its arguments.
const listPython = `
import ast, sys
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            print(path, node.name, node.lineno, node.end_lineno, sep="\t")
`

func longPythonFunctions(t *testing.T, all []source) (found []offender) {
	python := filepath.Join(".venv", "bin", "python")
	if _, err := os.Stat(filepath.Join("..", python)); err != nil {
		python = "python3"
	}
	byPath := map[string]source{}
	args := []string{"-c", listPython}
	for _, s := range all {
		byPath[s.path] = s
		args = append(args, s.path)
	}
	cmd := exec.Command(python, args...)
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		first, err := strconv.Atoi(f[2])
		require.NoError(t, err)
		last, err := strconv.Atoi(f[3])
		require.NoError(t, err)
		found = append(found, longFunction(byPath[f[0]], f[1], first, last)...)
	}
	return found
}

// wideGoLines counts characters; a tab is one.
func wideGoLines(all []source) (found []offender) {
	for _, s := range all {
		if s.generated {
			continue
		}
		found = append(found, wideLines(s, func(string) bool { return true })...)
	}
	return found
}

// wideMarkdownLines leaves out tables, code blocks and generated files.
func wideMarkdownLines(all []source) (found []offender) {
	for _, s := range all {
		if s.generated {
			continue
		}
		fenced := false
		found = append(found, wideLines(s, func(line string) bool {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			}
			return !fenced && !strings.HasPrefix(line, "    ") && !strings.HasPrefix(strings.TrimSpace(line), "|")
		})...)
	}
	return found
}

// wideLines returns at most one offender for a file. It lists the wide lines for which counts returns true.
func wideLines(s source, counts func(line string) bool) []offender {
	var at []string
	for i, line := range s.lines {
		if counts(line) && utf8.RuneCountInString(line) > maxColumns {
			at = append(at, strconv.Itoa(i+1))
		}
	}
	if at == nil {
		return nil
	}
	got := fmt.Sprintf("lines wider than %d: %s", maxColumns, strings.Join(at, " "))
	return []offender{{"columns " + s.path, got}}
}

// wrongGuards finds headers without the guard MYCELYA_<PATH>_H_. The path leaves out csrc, under which all headers lie.
func wrongGuards(all []source) (found []offender) {
	for _, s := range all {
		if s.generated && !strings.HasSuffix(s.path, ".h") {
			continue
		}
		want := guardOf(s.path)
		n := slices.IndexFunc(s.lines, func(l string) bool { return strings.HasPrefix(l, "#") })
		if n < 0 || n+1 >= len(s.lines) || s.lines[n] != "#ifndef "+want || s.lines[n+1] != "#define "+want {
			found = append(found, offender{"guard " + s.path, "the first directives must be the guard " + want})
		}
	}
	return found
}

func guardOf(path string) string {
	path = strings.TrimPrefix(path, "csrc/")
	name := strings.NewReplacer("/", "_", ".", "_", "-", "_").Replace(path)
	return "MYCELYA_" + strings.ToUpper(name) + "_"
}

func TestGuardOf(t *testing.T) {
	assert.Equal(t, "MYCELYA_DEVICE_RECORD_TURNS_H_", guardOf("csrc/device/record/Turns.h"))
}
