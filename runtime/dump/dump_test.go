// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/proto/transport"
)

func TestParse(t *testing.T) {
	s, err := Parse("-,passes,only=train.py,max=3,plan,why,wire,times")
	require.NoError(t, err)
	require.Equal(t, &Spec{To: "-", Why: true, Passes: true, Plan: true, Wire: true, Times: true, Only: "train.py",
		Max: 3}, s)
	s, err = Parse("/tmp/x")
	require.NoError(t, err)
	require.Equal(t, &Spec{To: "/tmp/x"}, s)
	s, err = Parse("")
	require.NoError(t, err)
	require.Nil(t, s)

	for value, want := range map[string]string{
		"-,kernel": `MYCELYA_DUMP has no word "kernel"`,
		"-,pases":  `MYCELYA_DUMP has no word "pases"`,
		"-,max=no": `MYCELYA_DUMP has no word "max=no"`,
		"-,plan=1": `MYCELYA_DUMP has no word "plan=1"`,
		"-,":       `MYCELYA_DUMP has no word ""`,
		",plan":    `MYCELYA_DUMP begins with - for stderr, or with a folder`,
		"plan":     `MYCELYA_DUMP begins with - for stderr, or with a folder, not with the word "plan" (./plan is a folder)`,
	} {
		_, err := Parse(value)
		require.EqualError(t, err, want+`. It is - or a folder, then any of these words, with commas between:
  why        on stderr, each cut with its line and cause, and why each program had to be compiled, too
  passes     on stderr, the graph after each pass that changed it, not only after the last
  all        passes that changed nothing too
  rules      on stderr, the rules that passes have applied, to which lines, and why nodes are not fused, too
  plan       on stderr, the steps, parameters and memory of each program too
  kernels    on stderr, what kernels compute together, too
  data       the numbers that each program is first called with, in a folder as data.txt
  wire       each frame that is sent or received, in a folder as wire.txt
  times      in a folder, the worker's time for each program, op and line: tables and a timeline in index.html
  only=TEXT  only cuts and programs with TEXT in their place, such as train.py:41
  max=N      graphs of only the first N programs`, value)
	}
}

// TestTheREADMEHasTheWords: the README lists the same words as the error.
func TestTheREADMEHasTheWords(t *testing.T) {
	data, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rows, _ := strings.Cut(string(data), "|---|---|\n")
	rows, _, _ = strings.Cut(rows, "\n\n")
	var want strings.Builder
	for _, w := range words {
		want.WriteString("| `" + w.word + "` | " + w.means + " |\n")
	}
	require.Equal(t, want.String(), rows+"\n")
}

// TestKernels: the list shows the values that a group reads and writes, and the number of values that stay inside.
func TestKernels(t *testing.T) {
	g, err := ir.Parse(`graph a.py:9 read {
  %0: f32[4] = input 0
  %1: f32[4] = input 1
  fuse map {
    %2: f32[4] = add %0 %1
    %3: f32[4] = relu %2
    %4: f32[4] = mul %2 %0
  }
  %5: f32[4] = aten.cumsum %3 0 none
  output %4 -> s2
  output %5 -> s3
}
`)
	require.NoError(t, err)
	require.Equal(t, `1 kernel of groups, 1 operator alone

group 1: map
  reads  %0 %1
  writes %3 %4
  inside 1 value
    %2: f32[4]             = add %0 %1
    %3: f32[4]             = relu %2
    %4: f32[4]             = mul %2 %0
`, kernels(g, 1))
	g.Groups = nil
	require.Empty(t, kernels(g, 0))
}

// TestSource: a kernel that two steps launch is one file, with its text once.
func TestSource(t *testing.T) {
	g, err := ir.Parse(`graph a.py:9 read {
  dims n=3000@0
  %0: f32[n] = input 0
  fuse map {
    %1: f32[n] = exp %0
    %2: f32[n] = relu %1
  }
  %3: f32[n] = aten.cumsum %2 0 none
  fuse map {
    %4: f32[n] = exp %3
    %5: f32[n] = relu %4
  }
  output %3 -> s1
  output %5 -> s2
}
`)
	require.NoError(t, err)
	c, err := codegen.Compile(g, codegen.Options{Kernels: true})
	require.NoError(t, err)
	params, err := c.FirstSeen(g)
	require.NoError(t, err)
	files := source(c, params)
	require.Len(t, files, 1)
	text := files["kernel_0.cu"]
	require.Equal(t, 1, strings.Count(text, "struct Args {"))
	require.Equal(t, 2, strings.Count(text, " launches pointwise: "), text)
}

func TestNumbers(t *testing.T) {
	g, err := ir.Parse(`graph a.py:9 read {
  %0: f64[] = param 0 # a.py:1
  %1: i64[] = param 1
  %2: b8[] = param 2
  %3: c128[] = param 3
  %4: f32[] = scalar 5
  %5: bf16[] = scalar 6
  %6: i8[] = scalar 7
  %7: u8[] = scalar 8
  %8: f16[] = scalar 9
  %9: i64[] = param 10
}
`)
	require.NoError(t, err)
	minus := func(n uint64) uint64 { return -n }
	words := []uint64{
		math.Float64bits(0.001), minus(3), 1, math.Float64bits(1), math.Float64bits(-2),
		uint64(math.Float32bits(0.1)), uint64(math.Float32bits(1.5)) >> 16, 0xfd, 200, 0x3c00,
	}
	require.Equal(t, `param 0     number        f64   0.001                    # a.py:1
param 1     number        i64   -3                       # ?
param 2     number        b8    true                     # ?
param 3     number        c128  (1, -2)                  # ?
param 5     0-dim tensor  f32   0.1                      # ?
param 6     0-dim tensor  bf16  1.5                      # ?
param 7     0-dim tensor  i8    -3                       # ?
param 8     0-dim tensor  u8    200                      # ?
param 9     0-dim tensor  f16   bits 3c00                # ?
param 10    number        i64   ?                        # ?
`, numbers(g, words))
}

// sample is a graph that cse, simplify and dce change.
const sample = `graph a.py:9 read {
  dims n=4@0
  %0: f32[n]             = input 0                        # a.py:1
  %1: f32[n]             = relu %0                        # a.py:2
  %2: f32[n]             = relu %0                        # a.py:3
  %3: f32[n]             = neg %2                         # "odd </script>\" <b>.py":4
  %4: f32[n]             = neg %3                         # a.py:5
  %5: f32[n]             = add %1 %4                      # a.py:6
  output %5 -> s1
}
`

// parsed reads a graph whose records are the lines of its origins.
func parsed(t testing.TB, text string) *ir.Graph {
	g, err := ir.Parse(text)
	require.NoError(t, err)
	for i := range g.Nodes {
		g.Nodes[i].Record = int32(g.Nodes[i].Origin.Line)
	}
	return g
}

func key(b ...byte) Of {
	return Of{Number: 1, Place: "a.py:9", Reason: "read", Key: b, Torch: "2.15.0"}
}

// compile takes a graph through the passes and codegen as a session does.
func compile(t testing.TB, d *Dumper, of Of, text string) {
	d.Cut(Cut{
		Device: of.Device, Place: of.Place, Reason: of.Reason, Why: "a value was read", Ops: 5, Program: of.Number, New: true,
	})
	p := d.Program(of)
	opt := passes.Options{Check: 2, Only: []string{"views", "cse", "simplify", "dce"}}
	if p != nil {
		opt.Observer = p
	}
	g, err := passes.Run(parsed(t, text), opt)
	require.NoError(t, err)
	c, err := codegen.Compile(g, codegen.Options{Scratch: make([]bool, 9)})
	require.NoError(t, err)
	p.Plan(g, c)
	p.End(5, "Record 1 of 5 is the first that differs.\n  here:  <b> \"&\"", time.Millisecond)
}

// tree is the files of a folder by name, with 0 for each duration.
func tree(t testing.TB, dir string) map[string]string {
	out := map[string]string{}
	seconds := regexp.MustCompile(`"seconds":[0-9.e-]+`)
	require.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		data, err := os.ReadFile(path)
		out[name] = seconds.ReplaceAllString(string(data), `"seconds":0`)
		return err
	}))
	return out
}

func names(files map[string]string) []string { return slices.Sorted(maps.Keys(files)) }

func TestStderr(t *testing.T) {
	var out bytes.Buffer
	d := New(&Spec{To: "-", Only: "a.py", Max: 1}, About{}, &out, slog.Default())
	other := key(1)
	other.Place = "b.py:1"
	compile(t, d, other, sample)
	require.Empty(t, out.String())
	compile(t, d, key(0xab, 0xcd), sample)
	compile(t, d, key(1), sample) // there are max already
	require.Equal(t, 1, strings.Count(out.String(), "graph"))
	require.True(t, strings.HasPrefix(out.String(), "# program 1, key abcd\ngraph a.py:9 read {\n"), out.String())
	graphs, err := ir.ParseAll(out.String())
	require.NoError(t, err)
	require.Len(t, graphs, 1)

	out.Reset()
	compile(t, New(&Spec{To: "-", Why: true, Passes: true, All: true}, About{}, &out, slog.Default()), key(1), sample)
	graphs, err = ir.ParseAll(out.String()) // whatever is between them is a comment
	require.NoError(t, err)
	require.Len(t, graphs, 5)
	require.Contains(t, out.String(),
		"# cut 1 at a.py:9 because a value was read: 5 ops, program #1, a new one\n# program 1, key 01, after capture\n")
	require.Contains(t, out.String(), "#   #1: Record 1 of 5 is the first that differs.\n#     here:  <b> \"&\"\n")

	out.Reset()
	compile(t, New(&Spec{To: "-", Rules: true, Plan: true}, About{}, &out, slog.Default()), key(0xab, 0xcd), sample)
	require.Regexp(t, `(?s)key abcd, rules\n\d\d-simplify +NegOfNeg +a.py:5\n.*key abcd, plan\n`, out.String())

	out.Reset()
	d = New(&Spec{To: "-", Wire: true}, About{}, &out, slog.Default())
	d.Frame(0, true, transport.Call, 7, 120)
	d.Frame(1, false, transport.Done, 7, 1)
	require.Equal(t,
		"# sent     Call            7  120 bytes\n# received Done            7  1 byte of mycelya:1\n", out.String())
	New(&Spec{To: "-"}, About{}, nil, slog.Default()).Frame(0, true, transport.Call, 7, 120)
}

func TestANilDumperAndANilProgramDoNothing(t *testing.T) {
	d := New(nil, About{}, nil, nil)
	d.Cut(Cut{})
	d.Frame(0, true, transport.Call, 1, 2)
	p := d.Program(key(1))
	require.Nil(t, p)
	p.Failed(errors.New("no"))
	p.Plan(nil, nil)
	p.End(0, "", 0)
	require.Zero(t, testing.AllocsPerRun(10, func() { d.Frame(0, true, transport.Call, 1, 2); d.Cut(Cut{}) }))
}
