// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kept

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
)

// example is a file with tensors of every dtype, whose bytes count up.
func example(t testing.TB) (data []byte, tensors []Tensor) {
	for d := uint32(1); d < catalogue.NumDTypes; d++ {
		tensors = append(tensors, Tensor{DType: d, Sizes: []int64{2, int64(d % 3)}})
	}
	tensors = append(tensors, Tensor{DType: 7})
	var b bytes.Buffer
	n, err := Write(&b, map[string]string{"key": "value\x00\n"}, tensors, func(i int, to io.Writer) error {
		_, err := to.Write(bytes.Repeat([]byte{byte(i)}, int(must(tensors[i].Bytes()))))
		return err
	})
	require.NoError(t, err)
	require.Equal(t, uint64(b.Len()), n)
	return b.Bytes(), tensors
}

func must(n uint64, err error) uint64 {
	if err != nil {
		panic(err)
	}
	return n
}

func TestAFile(t *testing.T) {
	data, tensors := example(t)
	require.Zero(t, (8+binary.LittleEndian.Uint64(data))%8, "the data is aligned")
	f, err := read(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"key": "value\x00\n"}, f.Meta)
	require.Len(t, f.Tensors, len(tensors))
	for i, want := range tensors {
		got := f.Tensors[i]
		require.Equal(t, want.DType, got.DType)
		require.Equal(t, append([]int64{}, want.Sizes...), got.Sizes)
		dst := make([]byte, must(got.Bytes()))
		require.NoError(t, f.Fill(i, dst))
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, len(dst)), dst)
	}
}

func TestDamagedFiles(t *testing.T) {
	data, _ := example(t)
	for n := range data {
		_, err := read(bytes.NewReader(data[:n]), int64(n))
		require.ErrorIs(t, err, ErrFormat, "the first %d bytes", n)
	}
	_, err := read(bytes.NewReader(append(bytes.Clone(data), 0)), int64(len(data)+1))
	require.ErrorIs(t, err, ErrFormat)
	for _, c := range [][2]string{
		{`"F32"`, `"F33"`}, {`[2,1]`, `[2,9]`}, {`[2,1]`, `[-2,1]`}, {`"0":`, `"9":`},
		{`"data_offsets":[0,`, `"data_offsets":[1,`},
		{`{"key"`, `["key"`}, {`[2,1]`, `[9223372036854775807,9223372036854775807]`},
	} {
		header := data[8 : 8+binary.LittleEndian.Uint64(data)]
		changed := strings.Replace(string(header), c[0], c[1], 1)
		require.NotEqual(t, string(header), changed, c[0])
		bad := append(binary.LittleEndian.AppendUint64(nil, uint64(len(changed))), changed...)
		bad = append(bad, data[8+len(header):]...)
		_, err := read(bytes.NewReader(bad), int64(len(bad)))
		require.ErrorIs(t, err, ErrFormat, c[1])
	}
}

func TestATensorThatIsTooLarge(t *testing.T) {
	large := []int64{1 << 40, 1 << 40}
	for _, bad := range []Tensor{{DType: 0}, {DType: 7, Sizes: []int64{-1}}, {DType: 7, Sizes: large}} {
		_, err := Write(io.Discard, nil, []Tensor{bad}, nil)
		require.Error(t, err)
	}
}

func FuzzRead(f *testing.F) {
	data, _ := example(f)
	f.Add(data)
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		for i := range file.Tensors {
			n, err := file.Tensors[i].Bytes()
			require.NoError(t, err)
			require.LessOrEqual(t, n, uint64(len(data)), "more memory than the file has bytes")
			require.NoError(t, file.Fill(i, make([]byte, n)))
		}
	})
}

func keep(t testing.TB, k Keeper, kind Kind, name, text string) error {
	d, err := k.Create()
	require.NoError(t, err)
	_, err = d.File().WriteString(text)
	require.NoError(t, err)
	return d.Keep(kind, name)
}

func content(t testing.TB, k Keeper, kind Kind, name string) string {
	f, err := k.Open(kind, name)
	if errors.Is(err, ErrMissing) {
		return ""
	}
	require.NoError(t, err)
	defer f.Close()
	text, err := io.ReadAll(f)
	require.NoError(t, err)
	return string(text)
}

func TestAFolder(t *testing.T) {
	d := &Folder{Path: filepath.Join(t.TempDir(), "new", "folder")}
	names, err := d.Names(Saved)
	require.NoError(t, err)
	require.Empty(t, names, "the folder does not exist yet")
	require.ErrorIs(t, d.Forget(Saved, "a"), ErrMissing)

	require.NoError(t, keep(t, d, Saved, "a", "one"))
	require.NoError(t, keep(t, d, Checkpoint, "a", "checkpoint"))
	open, err := d.Open(Saved, "a")
	require.NoError(t, err)
	require.NoError(t, keep(t, d, Saved, "a", "two"))
	old, err := io.ReadAll(open)
	require.NoError(t, err)
	require.Equal(t, "one", string(old), "who has opened a name keeps what it was")
	require.NoError(t, open.Close())
	require.Equal(t, "two", content(t, d, Saved, "a"))
	require.NoError(t, d.Forget(Saved, "a"))
	require.Empty(t, content(t, d, Saved, "a"))
	require.Equal(t, "checkpoint", content(t, d, Checkpoint, "a"))

	dropped, err := d.Create()
	require.NoError(t, err)
	left, err := d.Create()
	require.NoError(t, err)
	dropped.Drop()
	files, _ := filepath.Glob(filepath.Join(d.Path, "draft-*"))
	require.Equal(t, []string{left.File().Name()}, files)
	info, err := os.Stat(files[0])
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "only this user can read it")
	d.Clear()
	files, _ = filepath.Glob(filepath.Join(d.Path, "draft-*"))
	require.Empty(t, files)
}

// TestNamesAreNoPaths: no name leads out of the folder of its kind.
func TestNamesAreNoPaths(t *testing.T) {
	d := &Folder{Path: t.TempDir()}
	names := []string{"..", ".", "../x", "/etc/passwd", "a/b", `a\b`, "a\x00b", "%2F", "ä", " ", strings.Repeat("x", 100)}
	for i, name := range names {
		require.NoError(t, keep(t, d, Saved, name, fmt.Sprint(i)))
	}
	got, err := d.Names(Saved)
	require.NoError(t, err)
	require.ElementsMatch(t, names, got)
	for i, name := range names {
		require.Equal(t, fmt.Sprint(i), content(t, d, Saved, name))
	}
	all, err := os.ReadDir(d.Path)
	require.NoError(t, err)
	for _, entry := range all {
		require.Contains(t, []string{"saved", "checkpoint", "upload"}, entry.Name())
	}
	for _, bad := range []string{"", strings.Repeat("x", 101), strings.Repeat("ä", 90)} {
		require.ErrorIs(t, keep(t, d, Saved, bad, ""), ErrName, bad)
		_, err := d.Open(Saved, bad)
		require.ErrorIs(t, err, ErrName)
	}
	require.Error(t, keep(t, d, "../../tmp", "x", ""))
	files, _ := filepath.Glob(filepath.Join(d.Path, "draft-*"))
	require.Empty(t, files)
}
