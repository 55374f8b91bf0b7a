// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package golden runs the cases of a folder. A case is one txtar file, which holds all stages of the case.
//
//	pass: cse
//	expect: cse        or expect-not: cse
//	-- in.ir --
//	graph train.py:41 item {
//	…
//	-- out.ir --
//	…
//
// The text before the first file is the header: lines "key: words", and prose. Files that a test reads are the input of
// the case. Files that a test checks are its output, and go test -update writes them, unless the case fails. So -update
// cannot accept a rule that fires despite "expect-not:".
//
// These are errors: a header or a file that the test does not read, a file in the folder that is not a case, and a
// folder without cases. The package does not depend on the code under test.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the outputs of the golden cases instead of comparing them")

// Updating reports whether the tests run with -update.
func Updating() bool { return *update }

// Case is one txtar file.
type Case struct {
	Name string // of the file, without its suffix

	t       testing.TB
	archive *txtar.Archive
	headers map[string][]string
	used    map[string]bool // headers "key:", and files by name
	update  bool
	changed bool
}

var headerLine = regexp.MustCompile(`^([a-z][a-z-]*):(.*)$`)

// Run calls f with each case of dir as a subtest.
func Run(t *testing.T, dir string, f func(t *testing.T, c *Case)) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) == 0 {
		t.Fatalf("%s holds no cases", dir)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".txtar")
		if !ok || e.IsDir() {
			t.Errorf("%s is not a case: expected a file that ends in .txtar", filepath.Join(dir, e.Name()))
			continue
		}
		t.Run(name, func(t *testing.T) { runFile(t, filepath.Join(dir, e.Name()), *update, f) })
	}
}

func runFile[T testing.TB](t T, path string, update bool, f func(t T, c *Case)) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := &Case{
		Name: strings.TrimSuffix(filepath.Base(path), ".txtar"), t: t, archive: archive,
		headers: map[string][]string{}, used: map[string]bool{}, update: update,
	}
	for line := range strings.Lines(string(archive.Comment)) {
		if m := headerLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			c.headers[m[1]] = append(c.headers[m[1]], strings.Fields(m[2])...)
		}
	}
	f(t, c)
	c.finish(path)
}

// Words returns the words of all headers with this key, nil if there is none.
func (c *Case) Words(key string) []string {
	c.used[key+":"] = true
	return c.headers[key]
}

// Has reports whether the case has a file. It does not count as a read.
func (c *Case) Has(name string) bool { return c.file(name) != nil }

func (c *Case) file(name string) *txtar.File {
	i := slices.IndexFunc(c.archive.Files, func(f txtar.File) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &c.archive.Files[i]
}

// File returns an input. The case must have it.
func (c *Case) File(name string) string {
	c.t.Helper()
	c.used[name] = true
	f := c.file(name)
	if f == nil {
		c.t.Fatalf("the case has no file %s", name)
	}
	return string(f.Data)
}

// Skip counts these files as read, because another test reads them. The case need not have them.
func (c *Case) Skip(names ...string) {
	for _, name := range names {
		c.used[name] = true
	}
}

// Check compares an output with the file in the case.
func (c *Case) Check(name, got string) {
	c.t.Helper()
	c.used[name] = true
	if got != "" && !strings.HasSuffix(got, "\n") {
		got += "\n" // txtar stores only whole lines
	}
	f := c.file(name)
	switch {
	case f != nil && string(f.Data) == got:
	case c.update && f == nil:
		c.archive.Files = append(c.archive.Files, txtar.File{Name: name, Data: []byte(got)})
		c.changed = true
	case c.update:
		f.Data = []byte(got)
		c.changed = true
	case f == nil:
		c.t.Errorf("the case has no file %s; go test -update writes it:\n%s", name, got)
	default:
		c.t.Errorf("%s differs; go test -update accepts it. First difference at line %d\ngot:\n%s\nwant:\n%s",
			name, firstDifference(got, string(f.Data)), got, f.Data)
	}
}

// Expect compares the names of rules or passes that fired with the headers "expect:" and "expect-not:". A name that no
// header expects must not fire.
func (c *Case) Expect(fired []string) {
	c.t.Helper()
	want, not := c.Words("expect"), c.Words("expect-not")
	for _, w := range want {
		if !slices.Contains(fired, w) {
			c.t.Errorf("expected %s to fire; fired: %v", w, fired)
		}
	}
	for _, w := range not {
		if slices.Contains(fired, w) {
			c.t.Errorf("expected %s not to fire", w)
		}
	}
	for _, f := range fired {
		if !slices.Contains(want, f) && !slices.Contains(not, f) {
			c.t.Errorf("%s fired, and no header expects it", f)
		}
	}
}

func firstDifference(a, b string) int {
	al, bl := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(al), len(bl)) {
		if al[i] != bl[i] {
			return i + 1
		}
	}
	return min(len(al), len(bl)) + 1
}

// finish reports headers and files that no test has read, and writes the updated file.
func (c *Case) finish(path string) {
	for key := range c.headers {
		if !c.used[key+":"] {
			c.t.Errorf("no test reads the header %s:", key)
		}
	}
	kept := c.archive.Files[:0:0]
	for _, f := range c.archive.Files {
		if c.used[f.Name] {
			kept = append(kept, f)
			continue
		}
		c.t.Errorf("no test reads the file %s", f.Name)
	}
	if c.changed && !c.t.Failed() {
		c.archive.Files = kept
		if err := os.WriteFile(path, txtar.Format(c.archive), 0o644); err != nil {
			c.t.Error(err)
		}
	}
}
