// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package tests

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
)

// listed returns the first group of a pattern's match in a file.
func listed(t *testing.T, path, pattern string) string {
	text, err := os.ReadFile("../" + path)
	require.NoError(t, err)
	found := regexp.MustCompile(pattern).FindSubmatch(text)
	require.NotNil(t, found, "%s: nothing matches %s", path, pattern)
	return string(found[1])
}

// TestDocsListTheCutReasons compares each list of reasons in a document or comment with catalogue.Cuts.
func TestDocsListTheCutReasons(t *testing.T) {
	var names []string
	for _, c := range catalogue.Cuts {
		names = append(names, c.Name)
	}
	all := strings.Join(names, " ")
	require.Equal(t, all, listed(t, "ir/graph.go", `(?m)^\tReason\s+string // why: ([a-z ]+)$`))
	metrics := listed(t, "mycelya_torch/README.md", "(?m)^\\| `cuts` \\|.*`([a-z ]+)` \\|$")
	require.Equal(t, strings.TrimPrefix(all, "none "), metrics)
}

// TestHeaderExplainsEachTag checks that the grammar of the trace and that of programs mention each kind of argument.
func TestHeaderExplainsEachTag(t *testing.T) {
	header := listed(t, "csrc/abi/mycelya.h", `(?s)(.*)`)
	trace, program, found := strings.Cut(header, "// 3. The executor")
	require.True(t, found)
	for _, kind := range catalogue.ArgKinds {
		word := regexp.MustCompile(`\bMYC_W_` + kind.Word + `\b`)
		require.Regexp(t, word, trace, "the grammar of the trace")
		require.Regexp(t, word, program, "the grammar of programs")
	}
	for _, step := range catalogue.Steps {
		require.Regexp(t, regexp.MustCompile(`\bMYC_S_`+step.Word+`\b`), program)
	}
}

// TestGrammarListsTheWords checks that the grammar of the IR's text names the kinds of lists and the prefixes.
func TestGrammarListsTheWords(t *testing.T) {
	grammar := listed(t, "ir/grammar.txt", `(?s)(.*)`)
	for _, l := range catalogue.ListKinds {
		require.Contains(t, grammar, "'"+l.Name+"'")
	}
	for _, a := range catalogue.ArgKinds {
		if a.Prefix != catalogue.None {
			require.Contains(t, grammar, "'"+a.Prefix+":'")
		}
	}
	for _, d := range catalogue.DTypes {
		require.Contains(t, grammar, "'"+d.Name+"'")
	}
}
