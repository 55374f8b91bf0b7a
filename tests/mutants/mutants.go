// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package mutants changes one condition of a package at a time, and requires that a test of the package fails.
//
// A clause is an operand of && and ||, a whole condition that has neither, or a value of a case. A mutant makes a
// clause true or false, or changes its comparison: < to <=, == to !=, and so on. Conditions of loops are left alone.
//
// One build of the tests has all mutants. go test -overlay takes copies of the sources in which each clause asks for
// its mutant, and the environment variable MUTANT chooses one.
package mutants

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
)

// Package is the package whose folder is the working directory.
type Package struct {
	Files []string
	Skip  []string // functions that are not mutated
	Args  []string // of each run of the tests
	// Alive is a file with the mutants that no test can kill, as Mutant.String, one in a line, with the reasons as
	// comments. Run fails for one that is not there, and for one there that a test kills.
	Alive string
}

// Run mutates a package, prints a table of the mutants and fails for each one that survives. The test that calls it
// does not run again.
func Run(t *testing.T, p Package) {
	binary, all := build(t, p)
	if out, err := p.test(t, binary, -1); err != nil {
		t.Fatalf("the tests fail without a mutant: %v\n%s", err, out)
	}
	killers := make([]string, len(all))
	next := make(chan int)
	var wait sync.WaitGroup
	for range goruntime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := range next {
				if out, err := p.test(t, binary, i); err != nil {
					killers[i] = killer(out)
				}
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	wait.Wait()
	report(t, p, all, killers)
}

func report(t *testing.T, p Package, all []Mutant, killers []string) {
	data, err := os.ReadFile(p.Alive)
	must(t, err)
	alive := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			alive[line] = true
		}
	}
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "place\tclause\tmutant\tkilled by")
	survived := map[string]bool{}
	for i, m := range all {
		if killers[i] == "" {
			survived[m.String()] = true
			if killers[i] = "nothing"; !alive[m.String()] {
				t.Errorf("no test fails with this mutant: %s:%d: %s", m.File, m.Line, m)
			}
		}
		fmt.Fprintf(table, "%s:%d %s\t%s\t%s\t%s\n", m.File, m.Line, m.Func, m.Clause, m.As, killers[i])
	}
	for m := range alive {
		if !survived[m] {
			t.Errorf("%s lists a mutant that a test kills, or that is gone: %s", p.Alive, m)
		}
	}
	table.Flush()
	t.Logf("%d mutants\n%s", len(all), text.String())
}

// test runs the tests with a mutant, or with none.
func (p Package) test(t *testing.T, binary string, mutant int) ([]byte, error) {
	args := append([]string{"-test.failfast", "-test.v", "-test.timeout=1m", "-test.skip=^" + t.Name() + "$"}, p.Args...)
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "MUTANT="+strconv.Itoa(mutant))
	return cmd.CombinedOutput()
}

var failure = regexp.MustCompile(`(?m)^ *(?:--- FAIL: (\S+)|panic: (test timed out|endless))`)

// killer is the first test, or the first part of a test, that failed.
func killer(out []byte) string {
	best := "a crash"
	for _, m := range failure.FindAllSubmatch(out, -1) {
		if name := string(m[1]) + string(m[2]); best == "a crash" || strings.HasPrefix(name, best+"/") {
			best = name
		}
	}
	return best
}

// build makes the test binary with all mutants.
func build(t *testing.T, p Package) (binary string, all []Mutant) {
	dir := t.TempDir()
	here, err := os.Getwd()
	must(t, err)
	overlay := map[string]string{}
	put := func(name string, text []byte) {
		to := filepath.Join(dir, name)
		must(t, os.WriteFile(to, text, 0o644))
		overlay[filepath.Join(here, name)] = to
	}
	name := ""
	for _, file := range p.Files {
		source, err := os.ReadFile(file)
		must(t, err)
		m := mutator{file: file, source: source, skip: p.Skip, all: all}
		put(file, m.mutate(t))
		name, all = m.name, m.all
	}
	put("zz_mutant.go", []byte("package "+name+hook))
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o644))
	binary = filepath.Join(dir, "tests")
	out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"),
		"-o", binary, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary, all
}

// hook is what the changed sources call: the clause of mutant first, and its mutants in their order. A mutant that
// never ends reaches the limit, which is ten times what the tests of a package need.
const hook = `

import (
	"os"
	"strconv"
)

var mutantChosen = func() int {
	n, err := strconv.Atoi(os.Getenv("MUTANT"))
	if err != nil {
		panic(err)
	}
	return n
}()

var mutantCalls int

func mutantClause(first int, clause func() bool, mutants ...func() bool) bool {
	if mutantCalls++; mutantCalls > 50_000_000 {
		panic("endless")
	}
	if i := mutantChosen - first; i >= 0 && i < len(mutants) {
		return mutants[i]()
	}
	return clause()
}
`

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
