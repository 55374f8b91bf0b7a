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
	"client/cabi":             {"catalogue", "ir", "runtime", "runtime/report", "trace"},
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
	"runtime":                 {"catalogue", "ir", "trace", "codegen", "program", "proto/...", "runtime/..."},
	"runtime/compile": {"catalogue", "ir", "ir/cost", "trace", "passes", "codegen", "program/...", "proto",
		"proto/transport", "runtime/compare", "runtime/dump", "runtime/report", "runtime/settings"},
	"runtime/report":   {"catalogue", "ir", "proto", "trace"},
	"runtime/settings": {"passes", "proto/transport", "runtime/dump"},
	"runtime/compare":  {"catalogue", "ir", "ir/decomp"}, // the program of MYCELYA_CHECK=3
	"runtime/dump": {"catalogue", "ir", "ir/cost", "passes/...", "codegen/...", "kernel", "program",
		"proto/..."},
	"runtime/core":                  {"catalogue", "proto/..."}, // the session without clocks, sockets and goroutines
	"runtime/provider":              {"catalogue", "proto", "proto/link", "proto/transport", "runtime/provider/..."},
	"runtime/provider/providers":    {"catalogue", "runtime/provider/..."},
	"runtime/provider/providertest": {"catalogue", "proto/...", "runtime/provider/..."},
	"worker":                        {"worker/...", "program", "proto/..."}, // only tests
	"worker/hub":                    {"worker/kept"},
	"worker/kept":                   {"catalogue", "worker/bounds", "proto/..."},
	"worker/kernels":                {"codegen/cuda", "worker/bounds"},
	"worker/bounds":                 {},
	"worker/crash":                  {"program", "proto/...", "worker/bounds"},
	"worker/executor": {"catalogue", "program", "proto", "codegen/...", "kernel", "worker/crash",
		"worker/kernels"},
	"worker/session": {"catalogue", "program/...", "proto/...", "worker/crash", "worker/executor",
		"worker/hub", "worker/kept"},
	"worker/supervisor": {"proto/...", "worker/crash", "worker/hub", "worker/kept", "worker/session"},
	"worker/cmd":        {"..."},
	"worker/ref": {"catalogue", "worker/crash", "worker/executor", "program", "proto/...", "kernel", "ir",
		"ir/eval"},
	"worker/conformance":       {"catalogue", "worker/...", "program", "proto/...", "ir", "ir/eval"},
	"runtime/provider/emulate": {},
	"bench":                    {"catalogue", "bench/standin", "proto/...", "runtime/provider/emulate"},
	"bench/standin":            {"proto/transport"},
	"tests":                    {"..."},

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
		{"runtime/compile", module + "runtime", false, false},
		{"runtime/compile", module + "runtime/core", false, false},
		{"worker/session", module + "ir", false, false},
		{"worker/session", module + "worker/supervisor", false, false},
		{"worker/supervisor", module + "worker/executor", false, false},
		{"worker/ref", module + "ir/eval", false, true},
		{"worker/cmd/mycelya-worker", module + "worker/supervisor", false, true},
		{"elsewhere", "fmt", false, false},
	} {
		assert.Equal(t, test.ok, len(wrongImports(test.pkg, []string{test.imported}, test.test)) == 0, "%v", test)
	}
}

var include = regexp.MustCompile(`(?m)^\s*#\s*include\s+["<]([^">]+)[">]`)

// floors lists the folders of the two libraries of csrc from the lowest layer to the highest. A file includes only
// files of its own folder and of those before it. "." are the files that are in no folder.
var floors = map[string][]string{
	"device": {"client", "tensor", "rules", "record", "operators", "sparse", "graph", "collective", "pytorch"},
	"exec":   {".", "memory", "backend", "collective", "kernel", "guards", "program", "session", "operators", "run"},
}

// topFiles may include all of their library.
var topFiles = []string{"exec/Abi.cpp"}

// wrongInclude says why a file of csrc may not include another one; "" if it may. device and exec must not include each
// other, and abi must include neither. All may include abi.
func wrongInclude(root, file, included string) string {
	place := func(p string) (library, folder string) {
		library, rest, _ := strings.Cut(filepath.ToSlash(p), "/")
		return library, strings.Split(path.Dir(rest), "/")[0]
	}
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
			target = p
			break
		}
	}
	library, folder := place(file)
	otherLibrary, other := place(target)
	switch {
	case target == "" || library == otherLibrary && (folder == other || slices.Contains(topFiles, file)):
		return ""
	case library != otherLibrary && (otherLibrary != "abi" || library == "abi"):
		return "it is of another library"
	case library != otherLibrary || folder == "test":
		return ""
	}
	from, to := slices.Index(floors[library], folder), slices.Index(floors[library], other)
	switch {
	case from < 0 || to < 0:
		return "floors does not list both folders"
	case from < to:
		return "it is of a higher layer"
	}
	return ""
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
			assert.Empty(t, wrongInclude(root, rel, m[1]), "%s includes %s", p, m[1])
		}
		return nil
	})
	require.NoError(t, err)
	assert.Positive(t, files)
}

// TestFloors fails if a folder of floors is not there.
func TestFloors(t *testing.T) {
	for library, folders := range floors {
		for _, f := range folders {
			assert.DirExists(t, filepath.Join("..", "csrc", library, f))
		}
	}
}

// TestWrongInclude checks wrongInclude, with each way to write a path.
func TestWrongInclude(t *testing.T) {
	root := filepath.Join(t.TempDir(), "csrc")
	for _, f := range []string{"abi/mycelya.h", "device/record/Record.h", "device/tensor/Storage.h", "device/test/a.cpp",
		"device/new/New.h", "exec/Abi.cpp", "exec/Dtype.h", "exec/run/Run.h", "exec/run/Run.cpp"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(f)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, f), nil, 0o644))
	}
	const library, higher, none = "another library", "a higher layer", "does not list"
	for _, test := range []struct{ file, included, wrong string }{
		{"exec/run/Run.cpp", "Run.h", ""},
		{"exec/run/Run.cpp", "exec/run/Run.h", ""},
		{"exec/run/Run.cpp", "csrc/exec/run/Run.h", ""},
		{"exec/run/Run.cpp", "exec/Dtype.h", ""},
		{"exec/run/Run.cpp", "../../abi/mycelya.h", ""},
		{"exec/run/Run.cpp", "abi/mycelya.h", ""},
		{"exec/run/Run.cpp", "ATen/ATen.h", ""},
		{"exec/run/Run.cpp", "../../device/record/Record.h", library},
		{"exec/run/Run.cpp", "device/record/Record.h", library},
		{"exec/run/Run.cpp", "csrc/device/record/Record.h", library},
		{"exec/Dtype.h", "exec/run/Run.h", higher},
		{"exec/Abi.cpp", "exec/run/Run.h", ""},
		{"device/test/a.cpp", "../record/Record.h", ""},
		{"device/test/a.cpp", "../../exec/run/Run.h", library},
		{"device/record/Record.h", "device/tensor/Storage.h", ""},
		{"device/tensor/Storage.h", "device/record/Record.h", higher},
		{"device/tensor/Storage.h", "../record/Record.h", higher},
		{"device/new/New.h", "device/tensor/Storage.h", none},
		{"abi/mycelya.h", "device/record/Record.h", library},
	} {
		got := wrongInclude(root, test.file, test.included)
		assert.Contains(t, got, test.wrong, "%v", test)
		assert.Equal(t, test.wrong == "", got == "", "%v: %s", test, got)
	}
}
