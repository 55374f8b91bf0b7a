// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"fmt"
	"os"
	"testing"

	"github.com/mycelya/mycelya/worker/session"

	"github.com/stretchr/testify/require"
)

// must asks a question of a process, whose answer is no error.
func (l *lender) must(t testing.TB, pid uint64, q question) (answer, *os.File) {
	t.Helper()
	a, f := l.answer(pid, &q)
	require.Empty(t, a.Error)
	return a, f
}

func secret(n int) string { return fmt.Sprintf("secret-%016d", n) }

func TestALoan(t *testing.T) {
	l := newLender()
	l.join(1)
	l.join(2)
	a, f := l.must(t, 1, question{What: "lend", Bytes: 100_000})
	info, err := f.Stat()
	require.NoError(t, err)
	require.Equal(t, int64(128<<10), info.Size())
	_, err = f.WriteAt([]byte("x"), 128<<10)
	require.Error(t, err, "the process cannot take more memory")
	require.Error(t, f.Truncate(0))
	for _, q := range []question{
		{What: "pass", Draft: a.Draft, Name: secret(1), To: 2, Bytes: 1}, // of another process
		{What: "return", Draft: a.Draft}, {What: "taken", Draft: a.Draft}, {What: "take", Name: secret(1)},
	} {
		got, f := l.answer(2, &q)
		require.NotEmpty(t, got.Error, q.What)
		require.Nil(t, f)
	}
	l.must(t, 1, question{What: "pass", Draft: a.Draft, Name: secret(1), To: 2, Bytes: 100_000})
	got, _ := l.answer(1, &question{What: "return", Draft: a.Draft})
	require.NotEmpty(t, got.Error, "it is passed")
	got, _ = l.answer(1, &question{What: "take", Name: secret(1)})
	require.Equal(t, ErrNotPassed.Error(), got.Error)
	a, _ = l.must(t, 2, question{What: "take", Name: secret(1)})
	require.Equal(t, uint64(100_000), a.Bytes)
	l.must(t, 2, question{What: "taken", Draft: a.Draft})

	// It is lent again to the same process only.
	_, again := l.must(t, 1, question{What: "lend", Bytes: 70_000})
	require.Same(t, f, again)
	_, other := l.must(t, 2, question{What: "lend", Bytes: 70_000})
	require.NotSame(t, f, other)
}

func TestBoundsOfLoans(t *testing.T) {
	l := newLender()
	l.join(1)
	a, _ := l.answer(1, &question{What: "lend", Bytes: session.MaxPass + 1})
	require.NotEmpty(t, a.Error)
	a, _ = l.answer(3, &question{What: "lend", Bytes: 1})
	require.NotEmpty(t, a.Error, "there is no such process")
	var numbers []int
	for {
		a, _ := l.answer(1, &question{What: "lend", Bytes: session.MaxPass})
		if a.Error != "" {
			break
		}
		numbers = append(numbers, a.Draft)
	}
	require.Len(t, numbers, maxLoanBytes/session.MaxPass)
	for _, n := range numbers {
		l.must(t, 1, question{What: "return", Draft: n})
	}
	require.Len(t, l.live[1].spare, maxSpare/session.MaxPass)
	require.Zero(t, l.live[1].bytes)
	l.trim()
	require.Empty(t, l.live[1].spare)
	for range maxLoans {
		l.must(t, 1, question{What: "lend", Bytes: 1})
	}
	a, _ = l.answer(1, &question{What: "lend", Bytes: 1})
	require.NotEmpty(t, a.Error)
}

// TestTheEndsOfProcesses: no end of a process leaves memory behind, and what was passed to others stays.
func TestTheEndsOfProcesses(t *testing.T) {
	for name, end := range map[string][]uint64{"the lender's first": {1, 2}, "the taker's first": {2, 1}} {
		t.Run(name, func(t *testing.T) {
			l := newLender()
			l.join(1)
			l.join(2)
			var files []*os.File
			lend := func() int {
				a, f := l.must(t, 1, question{What: "lend", Bytes: 1})
				files = append(files, f)
				return a.Draft
			}
			for i := range 4 {
				l.must(t, 1, question{What: "pass", Draft: lend(), Name: secret(i), To: 2, Bytes: 1})
			}
			lend() // and does not pass it
			l.must(t, 2, question{What: "take", Name: secret(0)})
			a, _ := l.must(t, 2, question{What: "take", Name: secret(1)})
			l.must(t, 2, question{What: "taken", Draft: a.Draft})
			l.leave(end[0])
			if end[0] == 1 {
				a, _ := l.must(t, 2, question{What: "take", Name: secret(2)})
				l.must(t, 2, question{What: "taken", Draft: a.Draft})
			}
			l.leave(end[1])
			l.leave(end[1])
			require.Empty(t, l.loans)
			require.Empty(t, l.names)
			require.Empty(t, l.live)
			for i, f := range files {
				_, err := f.Stat()
				require.Error(t, err, "file %d is open", i)
			}
		})
	}
}

// FuzzLoans: whatever two processes ask for, the bounds hold, and nothing is left when they have ended.
func FuzzLoans(f *testing.F) {
	f.Add([]byte{0, 0, 2, 1, 4, 0, 1, 6, 1})
	f.Fuzz(func(t *testing.T, text []byte) {
		l := newLender()
		l.join(1)
		l.join(2)
		var files []*os.File
		for i := 0; i+1 < len(text); i += 2 {
			what := []string{"lend", "pass", "return", "take", "taken"}[int(text[i])%5]
			pid := 1 + uint64(text[i]>>7)
			n := int(text[i+1])
			q := question{What: what, Draft: n % 8, Name: secret(n % 4), To: uint64(n>>2) % 4, Bytes: uint64(n) << (n % 24)}
			if _, file := l.answer(pid, &q); file != nil {
				files = append(files, file)
			}
			for _, b := range l.live {
				require.LessOrEqual(t, b.loans, maxLoans)
				require.LessOrEqual(t, b.bytes, uint64(maxLoanBytes))
			}
		}
		l.leave(1)
		l.leave(2)
		require.Empty(t, l.loans)
		require.Empty(t, l.names)
		for _, file := range files {
			_, err := file.Stat()
			require.Error(t, err)
		}
	})
}
