// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/passes"
)

// chain is a graph with this number of ops. cse merges every second op with an earlier one.
func chain(ops int) string {
	var b strings.Builder
	b.WriteString("graph big.py:1 read {\n  dims n=4@0\n  %0: f32[n] = input 0 # big.py:1\n")
	value := 0
	for i := 1; i <= ops; i++ {
		switch i % 4 {
		case 1, 2:
			fmt.Fprintf(&b, "  %%%d: f32[n] = exp %%%d # big.py:%d\n", i, value, i+1)
		case 3:
			fmt.Fprintf(&b, "  %%%d: f32[n] = add %%%d %%%d # big.py:%d\n", i, i-1, i-2, i+1)
			value = i
		case 0:
			fmt.Fprintf(&b, "  %%%d: f32[n] = relu %%%d # big.py:%d\n", i, value, i+1)
			value = i
		}
	}
	fmt.Fprintf(&b, "  output %%%d -> s1\n}\n", ops)
	return b.String()
}

// stages takes a graph through all passes, as a folder shows it.
func stages(t testing.TB, text string) (*Program, string) {
	dir := t.TempDir()
	p := New(&Spec{To: dir, All: true}, About{Mycelya: "0.1.0"}, os.Stderr, slog.Default()).Program(key(1))
	_, err := passes.Run(parsed(t, text), passes.Options{Observer: p})
	require.NoError(t, err)
	return p, p.html()
}

var tags = regexp.MustCompile(`<[^>]*>`)

func TestThePageHasTheTextOfTheStages(t *testing.T) {
	p, page := stages(t, sample)
	unescape := strings.NewReplacer("&lt;", "<", "&gt;", ">", "&#34;", `"`, "&#39;", "'", "&amp;", "&")
	columns := strings.Split(page, `<div class="lines">`)[1:]
	require.Len(t, columns, len(p.stages))
	for i, s := range p.stages {
		lines := strings.Split(strings.Split(columns[i], "</section>")[0], `<div class="line">`)[1:]
		require.Len(t, lines, len(s.lines))
		for j, l := range lines {
			require.Equal(t, s.lines[j].text, strings.TrimSuffix(unescape.Replace(tags.ReplaceAllString(l, "")), "\n"))
		}
	}
	require.Contains(t, page, `<li>NegOfNeg <i data-o="4"># a.py:5</i></li>`)
	require.Contains(t, page, `<i data-o="3"># odd &lt;/script&gt;&#34; &lt;b&gt;.py:4</i>`)
}

// TestNothingLeavesAPage: a page needs no other file, and no name can end its script or begin a tag.
func TestNothingLeavesAPage(t *testing.T) {
	dir := t.TempDir()
	d := New(&Spec{To: dir}, About{Mycelya: "</script><img src=x>"}, os.Stderr, slog.Default())
	of := key(1)
	of.Place = `</script><b>"'&.py:9`
	compile(t, d, of, strings.Replace(sample, "a.py:2", `"</script><img src=x>":2`, 1))
	for name, text := range tree(t, dir) {
		if !strings.HasSuffix(name, ".html") {
			continue
		}
		require.Equal(t, strings.Count(text, "<script"), strings.Count(text, "</script>"), name)
		for _, never := range []string{"http:", "https:", "//cdn", "<img", "src=\"", "@import", "url("} {
			require.NotContains(t, text, never, name)
		}
		require.NotContains(t, text, "{{", name)
	}
}

// TestTheIndexIsWholeAfterEachEvent: a process may end at any time.
func TestTheIndexIsWholeAfterEachEvent(t *testing.T) {
	dir := t.TempDir()
	d := New(&Spec{To: dir}, About{}, os.Stderr, slog.Default())
	for i := range 4 {
		compile(t, d, Of{Number: i + 1, Place: "a.py:9"}, sample)
		files := tree(t, dir)
		_, rest, ok := strings.Cut(files["index.html"], "<script type=\"application/jsonl\" id=\"events\">\n")
		require.True(t, ok)
		events, tail, ok := strings.Cut(rest, "</script>\n")
		require.True(t, ok)
		require.Equal(t, files["events.jsonl"], events)
		require.Equal(t, "  </body>\n</html>\n", tail)
		for line := range strings.Lines(events) {
			require.True(t, json.Valid([]byte(line)))
		}
	}
}

// TestALargePage: 2,000 ops in all stages are at most half a megabyte a stage.
func TestALargePage(t *testing.T) {
	p, page := stages(t, chain(2000))
	require.Equal(t, 1+len(passes.Pipeline()), len(p.stages))
	require.Equal(t, len(p.stages), strings.Count(page, `<section`))
	require.Less(t, len(page), len(p.stages)<<19) // some 250 bytes a line
}

func BenchmarkPage(b *testing.B) {
	text := chain(2000)
	for b.Loop() {
		stages(b, text)
	}
}
