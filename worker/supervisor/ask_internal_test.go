// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/worker/kept"
	"github.com/mycelya/mycelya/worker/session"
)

// TestQuestionsOfAProcess: a process that does what it wants gets no file but those of kept state.
func TestQuestionsOfAProcess(t *testing.T) {
	folder := &kept.Folder{Path: t.TempDir()}
	var d drafts
	defer d.close()
	ask := func(q string) (answer, *os.File) { return d.answer(folder, []byte(q)) }
	for _, bad := range []string{
		``, `null`, `{`, `[]`, `{"What":"x"}`, `{"What":"keep","Draft":1}`, `{"What":"drop","Draft":-1}`,
		`{"What":"open","Kind":"saved","Name":"none"}`, `{"What":"open","Kind":"../..","Name":"passwd"}`,
		`{"What":"open","Kind":"saved","Name":"../../etc/passwd"}`, `{"What":"forget","Kind":"","Name":"x"}`,
		`{"What":"open","Kind":"saved","Name":""}`,
	} {
		a, f := ask(bad)
		require.NotEmpty(t, a.Error, bad)
		require.Nil(t, f, bad)
	}
	for i := range session.MaxDrafts {
		a, f := ask(`{"What":"create"}`)
		require.Empty(t, a.Error)
		require.Equal(t, i+1, a.Draft)
		require.NotNil(t, f)
	}
	a, _ := ask(`{"What":"create"}`)
	require.Contains(t, a.Error, "at most 4 files")
	a, _ = ask(`{"What":"keep","Draft":2,"Kind":"saved","Name":"n"}`)
	require.Empty(t, a.Error)
	a, _ = ask(`{"What":"keep","Draft":2,"Kind":"saved","Name":"m"}`)
	require.NotEmpty(t, a.Error, "it has its name")
	a, _ = ask(`{"What":"names","Kind":"saved"}`)
	require.Equal(t, []string{"n"}, a.Names)
	a, _ = d.answer(nil, []byte(`{"What":"create"}`))
	require.Contains(t, a.Error, "--state")
	d.close()
	files, _ := filepath.Glob(filepath.Join(folder.Path, "draft-*"))
	require.Empty(t, files, "the process has ended")
}

func FuzzQuestion(f *testing.F) {
	keep := question{What: "keep", Kind: kept.Saved, Name: "a", Draft: 1}
	for _, q := range []question{{What: "create"}, keep, {What: "names"}} {
		text, err := json.Marshal(q)
		require.NoError(f, err)
		f.Add(string(text))
	}
	root := f.TempDir()
	folder := &kept.Folder{Path: filepath.Join(root, "kept")}
	f.Fuzz(func(t *testing.T, text string) {
		var d drafts
		defer d.close()
		for q := range strings.SplitSeq(text, "\x00") {
			if _, file := d.answer(folder, []byte(q)); file != nil && len(d.open) == 0 {
				_ = file.Close()
			}
		}
		entries, err := os.ReadDir(root)
		require.NoError(t, err)
		require.LessOrEqual(t, len(entries), 1, "a file outside of the folder")
	})
}
