// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recorder is a testing.TB that stores failures.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper()      {}
func (r *recorder) Failed() bool { return len(r.failures) > 0 }
func (r *recorder) Error(args ...any) {
	r.failures = append(r.failures, fmt.Sprint(args...))
}
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(r)
}

func run(t *testing.T, text string, update bool, f func(c *Case)) (failures []string, after string) {
	path := filepath.Join(t.TempDir(), "case.txtar")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	r := &recorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(r) {
				panic(p)
			}
		}()
		runFile(r, path, update, func(_ *recorder, c *Case) { f(c) })
	}()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return r.failures, string(data)
}

const sample = "prose\npass: a b\n-- in --\nx\n-- out --\ny\n"

func read(got string) func(c *Case) {
	return func(c *Case) {
		c.Words("pass")
		c.File("in")
		c.Check("out", got)
	}
}

func TestCase(t *testing.T) {
	failures, after := run(t, sample, false, func(c *Case) {
		assert.Equal(t, "case", c.Name)
		assert.Equal(t, []string{"a", "b"}, c.Words("pass"))
		assert.Equal(t, "x\n", c.File("in"))
		assert.True(t, c.Has("out"))
		assert.False(t, c.Has("other"))
		c.Check("out", "y")
	})
	assert.Empty(t, failures)
	assert.Equal(t, sample, after)
}

func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		f    func(c *Case)
		want string
	}{
		"other output":  {read("z\n"), "out differs"},
		"no file":       {func(c *Case) { c.File("nothing") }, "no file nothing"},
		"no output":     {func(c *Case) { read("y")(c); c.Check("more", "1") }, "no file more"},
		"orphan header": {func(c *Case) { c.File("in"); c.Check("out", "y") }, "header pass:"},
		"orphan file":   {func(c *Case) { c.Words("pass"); c.Check("out", "y") }, "file in"},
		"fired":         {func(c *Case) { read("y")(c); c.Expect([]string{"r"}) }, "r fired"},
	} {
		failures, after := run(t, sample, false, test.f)
		require.Len(t, failures, 1, name)
		assert.Contains(t, failures[0], test.want, name)
		assert.Equal(t, sample, after, "%s: the file must stay", name)
	}
}

func TestExpect(t *testing.T) {
	text := "expect: r1 r2\nexpect-not: r3\n"
	for _, test := range []struct {
		fired []string
		fails int
	}{{[]string{"r1", "r2"}, 0}, {[]string{"r1"}, 1}, {[]string{"r1", "r2", "r3"}, 1}, {[]string{"r1", "r2", "r4"}, 1}} {
		failures, _ := run(t, text, false, func(c *Case) { c.Expect(test.fired) })
		assert.Len(t, failures, test.fails, "%v", test.fired)
	}
	failures, _ := run(t, "expect: r\nexpect-not: r\n", false, func(c *Case) { c.Expect([]string{"r"}) })
	assert.NotEmpty(t, failures, "a rule in both headers")
}

func TestSkip(t *testing.T) {
	failures, after := run(t, sample, true, func(c *Case) {
		c.Words("pass")
		c.Skip("in", "out", "other")
	})
	assert.Empty(t, failures)
	assert.Equal(t, sample, after)
}

// TestUpdateKeepsExpectations checks that -update does not accept a rule that fires despite "expect-not:".
func TestUpdateKeepsExpectations(t *testing.T) {
	const text = "expect-not: r\n-- out --\ny\n"
	failures, after := run(t, text, true, func(c *Case) {
		c.Expect([]string{"r"})
		c.Check("out", "z")
	})
	assert.Len(t, failures, 1)
	assert.Contains(t, failures[0], "expected r not to fire")
	assert.Equal(t, text, after)
}

func TestUpdate(t *testing.T) {
	failures, after := run(t, sample, true, func(c *Case) { read("z")(c); c.Check("more", "1") })
	assert.Empty(t, failures)
	assert.Equal(t, "prose\npass: a b\n-- in --\nx\n-- out --\nz\n-- more --\n1\n", after)

	_, after = run(t, sample, true, func(c *Case) { c.Check("out", "z") })
	assert.Equal(t, sample, after, "a failing case is not written")
}
