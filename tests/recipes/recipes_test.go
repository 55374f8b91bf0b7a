// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package recipes follows recipes of CONTRIBUTING.md in a copy of the sources.
package recipes

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// recipe is the changes that a section of CONTRIBUTING.md asks for, and the commands that must succeed then. Each file
// must be in the section's table, by its own name or by that of a folder.
type recipe struct {
	section  string
	edits    []edit
	commands []string
	slow     []string // only with MYCELYA_SOAK
}

// edit puts text behind a line of a file, or makes a file, if after is empty.
type edit struct{ file, after, text string }

var recipes = []recipe{
	{"Add an own op", []edit{
		{"catalogue/own.go", "cmplx.Exp(x) - 1 }}},", `	{Name: "sinh",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::sinh", "0"), Kernel: unary("sinh", 41),
		Meaning: Meaning{Float: math.Sinh, Complex: cmplx.Sinh}},`},
		{"catalogue/aten_elementwise.go", `{Name: "aten::expm1", Elementwise`,
			`	{Name: "aten::sinh", Elementwise: true, InPlace: "aten::sinh_"},`},
		{"ir/eval/testdata/gen.py", `"bit_not": aten.bitwise_not,`, `    "sinh": aten.sinh,`},
		{"csrc/exec/test/kernel_ops_test.cpp", "{MYC_K_EXPM1,", `    {MYC_K_SINH, "aten::sinh", "", 1, 4},`},
	}, []string{
		"scripts/gen.sh", ".venv/bin/python ir/eval/testdata/gen.py",
		"go test ./catalogue/... ./ir/... ./kernel ./fusion ./codegen/... ./worker/ref",
		"go test ./tests/cuda -run ^TestRandomKernels$",
	}, []string{"scripts/test_cpp.sh"}},

	{"Add a pass rule", []edit{
		{"passes/simplify.go", `{"NegOfNeg", "neg (neg x) -> x"`,
			"\t\t" + `{"CosOfNeg", "cos (neg x) -> cos x", ir.OpCos, innerIs(neg), signedNeg, innerBecomes(ir.OpCos)},`},
		{"passes/testdata/simplify/cos_of_neg.txtar", "", `cos is even.
pass: simplify
expect: CosOfNeg
-- in.ir --
graph f.py:1 read {
  %0: f32[2] = input 0
  %1: f32[2] = neg %0
  %2: f32[2] = cos %1
  output %2 -> s1
}
-- out.ir --
`},
		{"passes/testdata/simplify/cos_of_neg_not_unsigned.txtar", "", `Without a sign, neg is another number.
pass: simplify
expect-not: CosOfNeg
unguarded: value
-- in.ir --
graph f.py:1 read {
  %0: u8[2] = input 0
  %1: u8[2] = neg %0
  %2: f32[2] = cos %1
  output %2 -> s1
}
-- out.ir --
`},
	}, []string{"go test ./passes -run ^TestGolden$ -update", "go test ./passes/... -skip ^TestMutants$"}, nil},

	{"Add a pass", []edit{
		{"passes/ones.go", "", `// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import "github.com/mycelya/mycelya/ir"

// ones drops factors of one: mul x 1 is x, in every dtype. It leaves numbers alone that each call has anew.
func ones(g *ir.Graph) *ir.Graph {
	one := func(a ir.Arg) bool {
		n := &g.Nodes[g.Def[a.V]]
		return n.Op == ir.OpConst && g.Args[n.ArgLo] == ir.Arg{Kind: ir.ArgInt, V: 1}
	}
	to, found := make([]ir.ValueID, len(g.Types)), false
	for v := range to {
		to[v] = ir.ValueID(v)
	}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Op != ir.OpMul {
			continue
		}
		args := g.NodeArgs(ir.NodeID(i))
		if x := ir.ValueID(args[0].V); one(args[1]) && g.SameType(g.Types[x], g.Types[n.First]) && !writtenRoots(g)[x] {
			to[n.First], found = to[x], true
		}
	}
	if !found {
		return g
	}
	order := make([]ir.NodeID, len(g.Nodes))
	for i := range order {
		order[i] = ir.NodeID(i)
	}
	return g.Rewrite(order, to)
}
`},
		{"passes/pipeline.go", `{"fold", "constant folding`, `		{"ones", "drop factors of one", nil, without(ones)},`},
		{"passes/README.md", "| `fold` |", "| `ones` | drops factors of one | numbers that each call has anew |"},
		{"passes/testdata/ones/factor.txtar", "", `A product by one.
pass: ones dce
expect: ones dce
-- in.ir --
graph f.py:1 read {
  %0: f32[2] = input 0
  %1: i64[] = const 1
  %2: f32[2] = mul %0 %1
  %3: f32[2] = exp %2
  output %3 -> s1
}
-- out.ir --
`},
		{"passes/testdata/ones/not_two.txtar", "", `A product by two, and one by a number that each call has anew.
pass: ones
expect-not: ones
-- in.ir --
graph f.py:1 read {
  %0: f32[2] = input 0
  %1: i64[] = const 2
  %2: f32[2] = mul %0 %1
  %3: i64[] = param 0
  %4: f32[2] = mul %2 %3
  output %4 -> s1
}
-- out.ir --
`},
	}, []string{"go test ./passes -run ^TestGolden$ -update", "go test ./passes/... -skip ^TestMutants$"}, nil},
}

// TestRecipes also logs the time of each recipe's commands.
func TestRecipes(t *testing.T) {
	text, err := os.ReadFile("../../CONTRIBUTING.md")
	require.NoError(t, err)
	for _, r := range recipes {
		t.Run(strings.ReplaceAll(r.section, " ", "_"), func(t *testing.T) {
			_, table, found := strings.Cut(string(text), "## "+r.section+"\n")
			require.True(t, found)
			table, _, _ = strings.Cut(table, "\n## ")
			dir := copied(t)
			for _, e := range r.edits {
				listed := strings.Contains(table, "`"+e.file+"`") || strings.Contains(table, "`"+filepath.Dir(e.file)+"`") ||
					strings.Contains(table, "`"+filepath.Dir(filepath.Dir(e.file))+"`") ||
					e.after == "" && filepath.Ext(e.file) == ".go" && strings.Contains(table, "file of its own")
				require.True(t, listed, "the recipe does not name %s", e.file)
				apply(t, filepath.Join(dir, e.file), e)
			}
			start := time.Now()
			if os.Getenv("MYCELYA_SOAK") != "" {
				r.commands = append(r.commands, r.slow...)
			}
			for _, c := range r.commands {
				words := strings.Fields(c)
				cmd := exec.Command(words[0], words[1:]...)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s\n%s", c, out)
			}
			t.Logf("%s: %v", r.section, time.Since(start).Round(time.Second))
		})
	}
}

// copied is a folder with the committed files, and with the Python environment of this checkout.
func copied(t *testing.T) string {
	dir := t.TempDir()
	list := exec.Command("git", "ls-files", "-z")
	list.Dir = "../.."
	names, err := list.Output()
	require.NoError(t, err)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join("../..", name))
		require.NoError(t, err)
		to := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		mode := os.FileMode(0o644)
		if bytes.HasPrefix(data, []byte("#!")) {
			mode = 0o755
		}
		require.NoError(t, os.WriteFile(to, data, mode))
	}
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(root, ".venv"), filepath.Join(dir, ".venv")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "build"), 0o755))
	return dir
}

func apply(t *testing.T, path string, e edit) {
	if e.after == "" {
		require.NoFileExists(t, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(e.text), 0o644))
		return
	}
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	at := strings.Index(string(data), e.after)
	require.GreaterOrEqual(t, at, 0, "%s has no %s", e.file, e.after)
	end := at + strings.IndexByte(string(data)[at:], '\n') + 1
	require.NoError(t, os.WriteFile(path, []byte(string(data[:end])+e.text+"\n"+string(data[end:])), 0o644))
}
