// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package tests

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/mycelya/mycelya/"

// layers lists the top folders from the lowest layer to the highest. A package imports only its own layer and lower
// ones.
var layers = []string{"catalogue", "ir", "kernel", "trace", "capture", "program", "proto", "fusion", "passes",
	"codegen", "runtime", "client", "worker", "bench", "tests"}

// matrix lists the packages of this module that a folder and its subfolders may import. The longest folder that fits
// counts. "x/..." stands for x and all folders below it.
var matrix = map[string][]string{
	"catalogue":               {},
	"catalogue/gen":           {"catalogue"},
	"ir":                      {"catalogue", "ir/..."},
	"trace":                   {"catalogue", "ir"},
	"capture":                 {"catalogue", "ir", "trace"},
	"capture/asm":             {"catalogue", "ir", "trace", "capture"}, // traces as text, for tests
	"client":                  {"..."},                                 // a main package, which connects the others
	"client/cabi":             {"catalogue", "ir", "runtime", "trace"},
	"client/mailbox":          {"catalogue", "client/cabi", "runtime", "trace"},
	"client/mailbox/recorder": {"catalogue", "trace"}, // for tests
	"passes":                  {"catalogue", "ir", "ir/decomp", "fusion"},
	"passes/cmd":              {"catalogue", "ir", "passes/..."},
	"passes/repro":            {"catalogue", "ir", "passes"},
	"codegen":                 {"catalogue", "ir", "ir/decomp", "fusion", "kernel", "program"},
	"kernel":                  {"catalogue"},
	"fusion":                  {"catalogue", "ir", "ir/decomp", "kernel"},
	"codegen/cuda":            {"catalogue", "kernel"},
	"codegen/bind":            {"catalogue", "codegen/cuda", "kernel", "program"},
	"program":                 {"catalogue", "kernel"},
	"program/lru":             {}, // programs within a bound of bytes
	"proto":                   {"catalogue", "proto/..."},
	"runtime": {"catalogue", "ir", "ir/cost", "trace", "passes", "codegen/...", "kernel", "program/...",
		"proto/...", "runtime/..."},
	"runtime/compare": {"catalogue", "ir", "ir/decomp"}, // the program of MYCELYA_CHECK=3
	"runtime/dump": {"catalogue", "ir", "ir/cost", "passes/...", "codegen/...", "kernel", "program",
		"proto/..."},
	"runtime/core":                  {"catalogue", "proto/..."}, // the session without clocks, sockets and goroutines
	"runtime/provider":              {"catalogue", "proto", "proto/link", "proto/transport", "runtime/provider/..."},
	"runtime/provider/providers":    {"catalogue", "runtime/provider/..."},
	"runtime/provider/providertest": {"catalogue", "proto/...", "runtime/provider/..."},
	"worker":                        {"catalogue", "worker/...", "program/...", "proto/...", "codegen/...", "kernel"},
	"worker/hub":                    {"worker/kept"},
	"worker/cmd":                    {"..."},
	"worker/ref":                    {"catalogue", "worker", "program", "proto/...", "kernel", "ir", "ir/eval"},
	"worker/conformance":            {"catalogue", "worker/...", "program", "proto/...", "ir", "ir/eval"},
	"runtime/provider/emulate":      {},
	"bench":                         {"catalogue", "bench/standin", "proto/...", "runtime/provider/emulate"},
	"bench/standin":                 {"proto/transport"},
	"tests":                         {"..."},

	// The providers, for the command line. proto is for its tests.
	"client/cmd": {"proto", "proto/transport", "runtime/provider/..."},

	"runtime/provider/modal": {"proto", "proto/link", "proto/transport", "runtime/provider", "runtime/provider/process",
		"runtime/provider/providertest"},
	"runtime/provider/modal/fakeplane": {"runtime/provider/modal/fakeplane"}, // Modal's control plane, for tests
}

// standardOnly lists the folders that import only the standard library and the packages of the matrix.
var standardOnly = []string{"catalogue", "ir", "trace", "fusion", "capture", "passes", "kernel", "program",
	"codegen/cuda"}

type goPackage struct {
	ImportPath, Name                   string
	Imports, TestImports, XTestImports []string
}

// ours lists the packages of the module without their tests.
func ours(t *testing.T) []goPackage {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	var packages []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Name != "" { // a folder without Go files has none
			packages = append(packages, p)
		}
	}
	return packages
}

// folder returns the row of the matrix for a package, "" if there is none.
func folder(pkg string) string {
	for f := pkg; f != "."; f = path.Dir(f) {
		if _, ok := matrix[f]; ok {
			return f
		}
	}
	return ""
}

func allowed(patterns []string, imported string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		base, below := strings.CutSuffix(p, "...")
		return p == imported || below && strings.HasPrefix(imported+"/", base)
	})
}

// wrongImports lists the imports of a package that the matrix forbids.
func wrongImports(pkg string, imports []string, test bool) []string {
	row := folder(pkg)
	if row == "" {
		return []string{pkg + " has no row in the import matrix"}
	}
	var out []string
	for _, i := range imports {
		if i == "C" {
			continue
		}
		of, ok := strings.CutPrefix(i, module)
		switch {
		case !ok:
			third := strings.Contains(strings.Split(i, "/")[0], ".")
			if third && !test && slices.Contains(standardOnly, row) {
				out = append(out, pkg+" imports "+i+": only the standard library is allowed")
			}
		case of == pkg, allowed(matrix[row], of):
		case test && (strings.HasPrefix(of, "tests/") || strings.HasPrefix(of, "ir/") || strings.HasPrefix(of, pkg+"/")):
		default:
			out = append(out, pkg+" imports "+of)
		}
	}
	return out
}

// TestImports compares all imports with the matrix. Tests may also import tests/..., folders below their own, and
// ir/....
func TestImports(t *testing.T) {
	packages := ours(t)
	require.Greater(t, len(packages), 4)
	for _, p := range packages {
		pkg := strings.TrimPrefix(p.ImportPath, module)
		assert.Empty(t, wrongImports(pkg, p.Imports, false))
		assert.Empty(t, wrongImports(pkg, append(p.TestImports, p.XTestImports...), true), "in tests")
	}
}

// TestLayers checks that no package imports a package of a higher layer.
func TestLayers(t *testing.T) {
	layer := func(pkg string) int {
		name := strings.Split(strings.TrimPrefix(pkg, module), "/")[0]
		n := slices.Index(layers, name)
		require.GreaterOrEqual(t, n, 0, "%s is in no layer", pkg)
		return n
	}
	for _, p := range ours(t) {
		for _, i := range p.Imports {
			if strings.HasPrefix(i, module) {
				assert.LessOrEqual(t, layer(i), layer(p.ImportPath), "%s imports %s", p.ImportPath, i)
			}
		}
	}
}

// TestMatrixNamesPackages fails if a row of the matrix, or an entry of a row, matches no package.
func TestMatrixNamesPackages(t *testing.T) {
	var packages []string
	for _, p := range ours(t) {
		packages = append(packages, strings.TrimPrefix(p.ImportPath, module))
	}
	exists := func(pattern string) bool {
		return slices.ContainsFunc(packages, func(p string) bool { return allowed([]string{pattern}, p) })
	}
	for row, patterns := range matrix {
		assert.True(t, exists(row+"/..."), "the row %s of the import matrix matches no package", row)
		for _, p := range patterns {
			assert.True(t, exists(p), "the row %s of the import matrix allows %s, which is no package", row, p)
		}
	}
	for _, row := range standardOnly {
		assert.Contains(t, matrix, row, "standardOnly names a folder that is no row of the import matrix")
	}
}

// TestMatrix checks wrongImports.
func TestMatrix(t *testing.T) {
	for _, test := range []struct {
		pkg, imported string
		test, ok      bool
	}{
		{"ir", "fmt", false, true},
		{"ir", "golang.org/x/tools/txtar", false, false},
		{"ir", "github.com/stretchr/testify/assert", true, true},
		{"ir/eval", module + "ir", false, true},
		{"ir", module + "passes", false, false},
		{"ir", module + "passes", true, false},
		{"capture", module + "ir", false, true},
		{"capture", module + "ir/eval", false, false},
		{"capture", module + "runtime", false, false},
		{"trace", module + "capture", false, false},
		{"client", module + "runtime", false, true},
		{"client/mailbox", module + "capture", false, false},
		{"client/mailbox", module + "client/mailbox/recorder", true, true},
		{"passes", module + "passes/repro", false, false},
		{"passes/repro", module + "passes", false, true},
		{"passes", module + "tests/golden", false, false},
		{"passes", module + "tests/golden", true, true},
		{"codegen", module + "passes", false, false},
		{"codegen/cuda", module + "ir", false, false},
		{"proto", module + "ir", false, false},
		{"proto/transport", module + "proto", false, true},
		{"runtime", module + "capture", false, false},
		{"runtime/provider/local", module + "runtime", false, false},
		{"worker", module + "ir", false, false},
		{"worker/ref", module + "ir/eval", false, true},
		{"worker/cmd/mycelya-worker", module + "worker", false, true},
		{"elsewhere", "fmt", false, false},
	} {
		assert.Equal(t, test.ok, len(wrongImports(test.pkg, []string{test.imported}, test.test)) == 0, "%v", test)
	}
}

var include = regexp.MustCompile(`(?m)^\s*#\s*include\s+["<]([^">]+)[">]`)

// wrongInclude reports whether a file of csrc includes a file of another library. device and exec must not include each
// other, and abi must include neither. All may include abi.
func wrongInclude(root, file, included string) bool {
	library := func(p string) string { return strings.Split(filepath.ToSlash(p), "/")[0] }
	from := library(file)
	target := ""
	for _, base := range []string{filepath.Dir(file), ".", ".."} { // relative to the file, to csrc, to the repository
		p := filepath.Join(base, included)
		if base == ".." {
			var err error
			if p, err = filepath.Rel("csrc", included); err != nil {
				continue
			}
		}
		if _, err := os.Stat(filepath.Join(root, p)); err == nil && !strings.HasPrefix(p, "..") {
			target = library(p)
			break
		}
	}
	return target != "" && target != from && (target != "abi" || from == "abi")
}

// TestIncludes checks all includes of csrc with wrongInclude.
func TestIncludes(t *testing.T) {
	root := filepath.Join("..", "csrc")
	files := 0
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".h", ".cpp", ".cu", ".inc"}, filepath.Ext(p)) {
			return err
		}
		files++
		text, err := os.ReadFile(p)
		require.NoError(t, err)
		rel, err := filepath.Rel(root, p)
		require.NoError(t, err)
		for _, m := range include.FindAllStringSubmatch(string(text), -1) {
			assert.False(t, wrongInclude(root, rel, m[1]), "%s includes %s", p, m[1])
		}
		return nil
	})
	require.NoError(t, err)
	assert.Positive(t, files)
}

// TestWrongInclude checks wrongInclude, with each way to write a path.
func TestWrongInclude(t *testing.T) {
	root := filepath.Join(t.TempDir(), "csrc")
	for _, f := range []string{"abi/mycelya.h", "device/Record.h", "device/test/a.cpp", "exec/Run.h", "exec/Run.cpp"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(f)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, f), nil, 0o644))
	}
	for _, test := range []struct {
		file, included string
		wrong          bool
	}{
		{"exec/Run.cpp", "Run.h", false},
		{"exec/Run.cpp", "exec/Run.h", false},
		{"exec/Run.cpp", "csrc/exec/Run.h", false},
		{"exec/Run.cpp", "../abi/mycelya.h", false},
		{"exec/Run.cpp", "abi/mycelya.h", false},
		{"exec/Run.cpp", "ATen/ATen.h", false},
		{"exec/Run.cpp", "../device/Record.h", true},
		{"exec/Run.cpp", "device/Record.h", true},
		{"exec/Run.cpp", "csrc/device/Record.h", true},
		{"device/test/a.cpp", "../Record.h", false},
		{"device/test/a.cpp", "../../exec/Run.h", true},
		{"abi/mycelya.h", "device/Record.h", true},
	} {
		assert.Equal(t, test.wrong, wrongInclude(root, test.file, test.included), "%v", test)
	}
}
