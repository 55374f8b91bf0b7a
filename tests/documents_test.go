// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// listedPath matches the first cell of a table row that is a path, and a last cell that is one.
var listedPath = regexp.MustCompile("(?m)^\\| `([\\w./-]+)` \\||\\| `([\\w./-]+)` \\|$")

// TestContributing fails if CONTRIBUTING.md lists a file or folder that does not exist.
func TestContributing(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "CONTRIBUTING.md"))
	require.NoError(t, err)
	sections := strings.Split(string(text), "\n## ")
	for _, want := range []string{"an own op", "a kernel instruction", "an ATen operator", "a pass rule", "a pass",
		"a cut reason", "a provider", "a test"} {
		assert.Regexp(t, `(?m)\n## (Add|Describe) `+want+"$", string(text))
	}
	paths := 0
	for _, section := range sections[1:] {
		title, body, _ := strings.Cut(section, "\n")
		for _, m := range listedPath.FindAllStringSubmatch(body, -1) {
			path := m[1] + m[2]
			paths++
			_, err := os.Stat(filepath.Join("..", filepath.FromSlash(path)))
			assert.NoError(t, err, "%q lists %s", title, path)
		}
	}
	assert.Greater(t, paths, 30, "the tables of CONTRIBUTING.md are no longer found")
}

// TestWays fails if a way through the tree in ARCHITECTURE.md is longer than it may be, or has a file that does not
// exist.
func TestWays(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "ARCHITECTURE.md"))
	require.NoError(t, err)
	_, ways, _ := strings.Cut(string(text), "\n## Three ways through the tree\n")
	for title, most := range map[string]int{"An operator": 28, "An upload": 10, "An error": 8} {
		_, way, _ := strings.Cut(ways, "\n**"+title+"**")
		way, _, _ = strings.Cut(way, "\n**")
		paths := listedPath.FindAllStringSubmatch(way, -1)
		assert.NotEmpty(t, paths, title)
		assert.LessOrEqual(t, len(paths), most, title)
		for _, m := range paths {
			_, err := os.Stat(filepath.Join("..", filepath.FromSlash(m[1]+m[2])))
			assert.NoError(t, err, title)
		}
	}
}

// TestGlossary fails if GLOSSARY.md defines a term twice, or if its rows are no longer found.
func TestGlossary(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "GLOSSARY.md"))
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \|$`).FindAllStringSubmatch(string(text), -1) {
		for term := range strings.SplitSeq(m[1], ", ") {
			if term == "term" {
				continue
			}
			assert.False(t, seen[term], "%s is defined twice", term)
			seen[term] = true
		}
	}
	assert.Greater(t, len(seen), 40)
}

func notWord(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// TestSecurity fails if SECURITY.md names a test that does not exist.
func TestSecurity(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "SECURITY.md"))
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(page), "\n| attack | test |\n")
	table, _, _ = strings.Cut(table, "\n## ")
	words := map[string]bool{}
	for _, s := range sources(t, ".go", ".cpp", ".py", ".txt") {
		for word := range strings.FieldsFuncSeq(s.text, notWord) {
			words[word] = true
		}
	}
	names := 0
	for _, m := range regexp.MustCompile("`([\\w/]+)`").FindAllStringSubmatch(table, -1) {
		names++
		if strings.Contains(m[1], "/") {
			assert.DirExists(t, filepath.Join("..", m[1]))
			continue
		}
		assert.True(t, words[m[1]], "no source has the test %s", m[1])
	}
	assert.Greater(t, names, 25, "the table of SECURITY.md is no longer found")
}
