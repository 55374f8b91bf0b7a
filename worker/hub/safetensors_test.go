// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/worker/hub/hubtest"
)

// file is a file with a header and so many bytes of data.
func file(header string, data int) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), make([]byte, data)...)
}

func readFile(b []byte) ([]Tensor, error) { return ReadHeader(bytes.NewReader(b), int64(len(b))) }

func TestReadHeader(t *testing.T) {
	header := `{"b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},"__metadata__":{"format":"pt"},` +
		`"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},` +
		`"empty":{"dtype":"I64","shape":[0,7],"data_offsets":[26,26]},` +
		`"scalar":{"dtype":"BF16","shape":[],"data_offsets":[26,28]}}  `
	got, err := readFile(file(header, 28))
	require.NoError(t, err)
	require.Len(t, got, 4)
	var names []string
	at := uint64(8 + len(header))
	for _, g := range got {
		names = append(names, g.Name)
		require.Equal(t, at, g.Begin, g.Name)
		n, err := g.Bytes()
		require.NoError(t, err)
		require.Equal(t, g.Begin+n, g.End, g.Name)
		at = g.End
	}
	require.Equal(t, []string{"a", "b", "empty", "scalar"}, names)
	got, err = readFile(file("{}", 0))
	require.NoError(t, err)
	require.Empty(t, got)
	got, err = readFile(hubtest.Safetensors(map[string][]byte{"x": []byte("12"), "y": []byte("3")}))
	require.NoError(t, err)
	require.Len(t, got, 2)
}

// TestHostileHeaders: each is an error, and names what is wrong.
func TestHostileHeaders(t *testing.T) {
	entry := func(dtype, shape, offsets string) string {
		return `{"x":{"dtype":"` + dtype + `","shape":` + shape + `,"data_offsets":` + offsets + `}}`
	}
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"nothing":              {nil, "0 bytes"},
		"a short length":       {[]byte{1, 2}, "2 bytes"},
		"a huge header":        {binary.LittleEndian.AppendUint64(nil, 1<<63), "at most"},
		"a header that is cut": {append(binary.LittleEndian.AppendUint64(nil, 100), "{}"...), "at most"},
		"no JSON":              {file("hello", 0), "no JSON object"},
		"a list":               {file("[]", 0), "no JSON object"},
		"half an object":       {file(`{"x":`, 0), "does not decode"},
		"an open object":       {file(`{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, 0), "no JSON object"},
		"two objects":          {file(`{}{}`, 0), "behind the JSON object"},
		"a name twice": {file(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},`+
			`"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), "twice"},
		"metadata of numbers":  {file(`{"__metadata__":{"a":1}}`, 0), "metadata"},
		"a dtype":              {file(entry("F4", "[2]", "[0,1]"), 1), `no dtype "F4"`},
		"no dtype":             {file(entry("", "[2]", "[0,1]"), 1), "no dtype"},
		"a negative size":      {file(entry("U8", "[-1]", "[0,1]"), 1), "too large"},
		"a product that wraps": {file(entry("U8", "[4294967296,4294967296]", "[0,0]"), 0), "too large"},
		"a fraction":           {file(entry("U8", "[0.5]", "[0,1]"), 1), "does not decode"},
		"other bytes":          {file(entry("F32", "[2]", "[0,7]"), 7), "8 bytes lie at 0 to 7"},
		"an end before begin":  {file(entry("U8", "[1]", "[1,0]"), 1), "lie at 1 to 0"},
		"a negative offset":    {file(entry("U8", "[1]", "[-1,0]"), 1), "does not decode"},
		"one offset":           {file(entry("U8", "[1]", "[0]"), 1), "no begin and end"},
		"no offsets":           {file(`{"x":{"dtype":"U8","shape":[1]}}`, 1), "no begin and end"},
		"behind the file":      {file(entry("U8", "[2]", "[0,2]"), 1), "of 1 bytes"},
		"a gap":                {file(entry("U8", "[1]", "[1,2]"), 2), "not behind the one before"},
		"bytes of nobody":      {file(entry("U8", "[1]", "[0,1]"), 2), "1 bytes of tensors and 2"},
		"an overlap": {file(`{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},`+
			`"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "not behind the one before"},
		"many dimensions": {file(entry("U8", "["+strings.Repeat("1,", 64)+"1]", "[0,1]"), 1), "65 dimensions"},
		"a long name":     {file(`{"`+strings.Repeat("n", 2000)+`":{"dtype":"U8"}}`, 0), "2000 bytes"},
		"a deep header":   {file(`{"x":`+deep+`}`, 0), "does not decode"},
		"many tensors":    {file("{"+strings.Repeat(`"x":{},`, 2)+"}", 0), "no begin and end"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readFile(c.file)
			require.ErrorIs(t, err, errFormat)
			require.ErrorContains(t, err, c.want)
			require.Less(t, len(err.Error()), 1000)
		})
	}
}

func FuzzReadHeader(f *testing.F) {
	f.Add(file(`{}`, 0))
	f.Add(file(`{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"__metadata__":{"format":"pt"}}`, 24))
	f.Add(file(`{"a":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]},`+
		`"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, 1))
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<62))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readFile(b)
		if err != nil {
			require.Empty(t, got)
			return
		}
		at := uint64(0)
		for i, g := range got {
			n, err := g.Bytes()
			require.NoError(t, err)
			require.Equal(t, n, g.End-g.Begin)
			if i > 0 {
				require.Equal(t, at, g.Begin, "a gap or an overlap")
			}
			at = g.End
			require.LessOrEqual(t, g.End, uint64(len(b)))
		}
	})
}
