// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cabi

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/runtime"
)

func TestCutEndsBetweenCharacters(t *testing.T) {
	require.Equal(t, "abc", Cut("abc", 3))
	require.Equal(t, "ab", Cut("abc", 2))
	require.Equal(t, "", Cut("abc", 0))
	require.Equal(t, "aé", Cut("aéb", 3))
	require.Equal(t, "a", Cut("aéb", 2))
	require.Equal(t, "", Cut("…", 2))
}

func TestWrite(t *testing.T) {
	room := []byte("123456")
	require.EqualValues(t, 3, Write("abc", unsafe.Pointer(&room[0]), 6))
	require.Equal(t, "abc\x0056", string(room))
	require.EqualValues(t, 9, Write("abcdefghi", unsafe.Pointer(&room[0]), 4), "the length that is needed")
	require.Equal(t, "abc\x0056", string(room))
	require.EqualValues(t, 2, Write("ab", nil, 0))
}

func TestKind(t *testing.T) {
	for _, c := range []struct {
		err  error
		kind int32
		text string
	}{
		{nil, 0, ""},
		{runtime.ErrPending, 100, ""},
		{errors.New("no"), int32(runtime.KindRuntime), "no"},
		{fmt.Errorf("outer: %w", &runtime.Error{Kind: runtime.KindValue, Text: "bad"}), 3, "outer: bad"},
	} {
		kind, text := Kind(c.err)
		require.Equal(t, c.kind, kind, "%v", c.err)
		require.Equal(t, c.text, text)
	}
	require.EqualValues(t, runtime.KindLost, Answer(&runtime.Error{Kind: runtime.KindLost}, nil))
}

func TestProtect(t *testing.T) {
	require.NoError(t, Protect(func() error { return nil }))
	require.EqualError(t, Protect(func() error { panic("lost count") }), "BUG: lost count. Please report this.")
}

func TestMaxText(t *testing.T) {
	require.Equal(t, 8187, MaxText)
	require.Len(t, Cut(strings.Repeat("x", 9000), MaxText), MaxText)
}

func TestSliceOfNothing(t *testing.T) {
	require.Nil(t, Slice[uint64](nil, 3))
	word := uint64(7)
	require.Nil(t, Slice[uint64](unsafe.Pointer(&word), 0))
	require.Equal(t, []uint64{7}, Slice[uint64](unsafe.Pointer(&word), 1))
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain, \u00e9\n\tmore": "plain, \u00e9\n\tmore",
		"\x1b[31mred\r\x07":     `\x1b[31mred\r\a`,
		"a\x00b\u009b2Jc\u202e": `a\x00b\u009b2Jc\u202e`,
		"cut \xff":              "cut \ufffd",
		"":                      "",
	} {
		require.Equal(t, want, Printable(text))
	}
}
