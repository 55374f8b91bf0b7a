// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/modal/fakeplane"
)

// TestFilesAreSentOnce: a volume keeps the worker's files, and a damaged copy is sent again.
func TestFilesAreSentOnce(t *testing.T) {
	plane := newPlane(t)
	s := spec("A100", "volume=keeps")
	start := func() int {
		before := plane.Uploads()
		in := started(t, s)
		serves(t, in)
		require.NoError(t, in.Stop(within(t), 0))
		return plane.Uploads() - before
	}
	require.Greater(t, start(), 1<<20)
	require.Zero(t, start())
	kept, err := filepath.Glob(filepath.Join(plane.Volume("keeps"), "files", "*"))
	require.NoError(t, err)
	require.Len(t, kept, 1)
	require.NoError(t, os.WriteFile(kept[0], []byte("#!/bin/sh\necho stolen\n"), 0o700))
	require.Greater(t, start(), 1<<20)
	require.Zero(t, start())
}

// TestStates: a machine has a folder of its own on a volume, also in its next sandbox, and without a name.
func TestStates(t *testing.T) {
	state := func(p provider.Provider, session string) string {
		made, is := p.(Provider)
		require.True(t, is)
		made.Backend = "ref"
		s := spec("", "volume=v")
		s.Session = session
		w, err := made.plan(s)
		require.NoError(t, err)
		return w.state
	}
	paths := provider.Paths{Worker: workerPath}
	first, second := New(paths), New(paths)
	require.Equal(t, state(first, ""), state(first, ""))
	require.NotEqual(t, state(first, ""), state(second, ""))
	require.Equal(t, state(first, "a/../b"), state(second, "a/../b"))
	require.Equal(t, "machines/a.2f.2e.2e.2fb", state(first, "a/../b"))
}

// TestImagesAreBuiltOnce: the file of ids spares requests, and an image that Modal has removed is built again.
func TestImagesAreBuiltOnce(t *testing.T) {
	plane := newPlane(t)
	s := spec("")
	s.Packages = []string{"numpy", "pillow==11.0"}
	for range 2 {
		require.NoError(t, started(t, s).Stop(within(t), 0))
		require.Equal(t, 2, plane.Builds(), "the base and one layer")
	}
	require.Len(t, imageIDs(), 1)
	plane.ForgetImages()
	require.NoError(t, started(t, s).Stop(within(t), 0))
	require.Equal(t, 4, plane.Builds())
	require.NoError(t, os.WriteFile(imageFile(), []byte("{damaged"), 0o600))
	require.NoError(t, started(t, s).Stop(within(t), 0))
	require.Equal(t, 4, plane.Builds())
}

// TestInstall: pip runs in the sandbox, with the packages as its arguments. A program stands for pip's Python.
func TestInstall(t *testing.T) {
	programs := t.TempDir()
	script := "#!/bin/sh\n[ \"$6\" != broken ] || { echo No matching distribution; exit 1; }\necho \"$HOME\" \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(programs, "python3"), []byte(script), 0o700))
	plane := newPlaneWith(t, fakeplane.Options{Path: programs + ":" + os.Getenv("PATH")})
	in := started(t, spec("A100"))
	out, err := in.Install(within(t), []string{"numpy", "pillow >= 11"})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(plane.Folder(), in.id)+
		" -m pip install --no-cache-dir --root-user-action=ignore numpy pillow >= 11\n", out)
	_, err = in.Install(within(t), []string{"broken"})
	require.ErrorContains(t, err, "broken could not be installed")
	require.ErrorContains(t, err, "No matching distribution")
	_, err = in.Install(within(t), []string{"--index-url=x"})
	require.ErrorIs(t, err, provider.ErrInvalidSpec)
	serves(t, in)
}

func TestLayers(t *testing.T) {
	w := plan{torch: "2.15.1", Spec: provider.Spec{Packages: []string{"numpy", "pillow[x]>=11,<12"}}}
	require.Equal(t, [][]string{
		{"RUN python3 -m pip install --no-cache-dir --root-user-action=ignore 'torch==2.15.1'"},
		{"RUN python3 -m pip install --no-cache-dir --root-user-action=ignore 'numpy' 'pillow[x]>=11,<12'"},
	}, w.layers())
}

func TestTorchVersion(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"__version__ = '2.15.1+cu130'\n":                               "2.15.1",
		"from typing import Optional\n__version__: str = \"2.16.0\"\n": "2.16.0",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "version.py"), []byte(text), 0o600))
		got, err := torchVersion(filepath.Join(dir, "lib"))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := torchVersion(filepath.Join(dir, "no", "lib"))
	require.ErrorIs(t, err, provider.ErrNotFound)
	require.ErrorContains(t, err, "Is torch installed")
}

// TestTags: any short text survives a tag, and tags have only characters that Modal takes.
func TestTags(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 40, 40).Draw(t, "text")
		tag := tagOf(text)
		require.Regexp(t, `^[A-Za-z0-9._-]{1,63}$`, tag)
		require.Equal(t, text, textOf(tag))
		long := tagOf(text + string(make([]byte, 100)))
		require.Regexp(t, `^[A-Za-z0-9._-]{1,63}$`, long)
	})
	require.Equal(t, "plain-name", tagOf("plain-name"))
}

// TestEscape: names of files are different for different texts, and lead nowhere else.
func TestEscape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		require.Equal(t, a == b, escape(a) == escape(b))
		require.NotContains(t, escape(a), "/")
		require.NotContains(t, escape(a), "..")
	})
}
