// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package crash

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/bounds"
)

// newJournal makes a journal, and returns the file of its memory.
func newJournal(t testing.TB) (*Journal, *os.File) {
	t.Helper()
	p, f, err := NewProgress(true)
	require.NoError(t, err)
	p.Unmap()
	p, j, err := OpenProgress(f)
	require.NoError(t, err)
	require.NotNil(t, j)
	t.Cleanup(func() { p.Unmap(); _ = f.Close() })
	return j, f
}

// key is the key of a program.
func key(i int) [proto.KeyBytes]byte { return [proto.KeyBytes]byte{byte(i)} }

// caller makes the calls of one program as a client does: as differences, where it can.
type caller struct {
	noted Noted
	last  *proto.Call
	seq   uint64
}

func (c *caller) call(j *Journal, seq uint64, all *proto.Call) {
	sent := all
	if c.last != nil {
		if delta, ok := proto.AppendDelta(nil, c.last, all); ok {
			sent = &proto.Call{Base: c.seq, Delta: delta}
		}
	}
	c.last, c.seq = all, seq
	j.Call(seq, &c.noted, sent, all)
}

// TestJournalKeepsTheLastCalls: whole calls, of any number of programs and with short and long lists.
func TestJournalKeepsTheLastCalls(t *testing.T) {
	j, f := newJournal(t)
	rapid.Check(t, func(t *rapid.T) {
		clear(j.head)
		clear(j.log)
		*j = Journal{head: j.head, log: j.log, room: j.room, free: []span{{0, journalRoom / 8}}}
		longest := rapid.SampledFrom([]int{4, 100, 3000}).Draw(t, "longest")
		callers := make([]*caller, rapid.IntRange(1, 12).Draw(t, "programs"))
		for i := range callers {
			callers[i] = &caller{noted: j.Program(key(i), bytes.Repeat([]byte{byte(i)}, 1+i))}
		}
		n := func(name string) []uint64 {
			return make([]uint64, rapid.IntRange(0, longest).Draw(t, name))
		}
		lengths := make([]*proto.Call, len(callers))
		for i := range lengths {
			lengths[i] = &proto.Call{Params: n("params"), Inputs: n("inputs"), Outputs: n("outputs")}
		}
		calls := map[uint64]*proto.Call{}
		var last *caller
		lastSeq := uint64(0)
		for i := range uint64(rapid.IntRange(0, 300).Draw(t, "calls")) {
			seq, k := i+1, rapid.IntRange(0, len(callers)-1).Draw(t, "program")
			c := &proto.Call{Params: slices.Clone(lengths[k].Params), Inputs: slices.Clone(lengths[k].Inputs),
				Outputs: slices.Clone(lengths[k].Outputs), Frees: []uint64{seq, 2 * seq}[:seq%3]}
			for i := range c.Params {
				c.Params[i] = seq * uint64(i%7)
			}
			for i := range c.Inputs {
				c.Inputs[i] = seq + uint64(i)
			}
			if rapid.IntRange(0, 20).Draw(t, "skipped") == 0 { // a call that does not run is not noted
				callers[k].last, callers[k].seq = c, seq
				continue
			}
			last, lastSeq = callers[k], seq
			last.call(j, seq, c)
			calls[seq] = c
		}
		got, err := readJournal(f)
		require.NoError(t, err)
		if longest <= 100 {
			require.Len(t, got.calls, min(len(calls), keptCalls))
		}
		for i, c := range got.calls {
			want := calls[c.seq]
			require.NotNil(t, want)
			require.True(t, i == 0 || c.seq > got.calls[i-1].seq)
			if c.lists == nil { // in the log is no whole call that it differs from
				require.Greater(t, longest, 100)
				require.Less(t, i, len(got.calls)-1)
				continue
			}
			require.Equal(t, want.Params, c.lists.Params)
			require.Equal(t, want.Inputs, c.lists.Inputs)
			require.Equal(t, want.Outputs, c.lists.Outputs)
			require.True(t, slices.Equal(want.Frees, c.lists.Frees))
		}
		for i, p := range got.programs {
			require.NotContains(t, got.programs[:i], p)
			text, err := io.ReadAll(p.open(f))
			require.NoError(t, err)
			require.Len(t, text, int(text[0])+1)
		}
		if last != nil {
			require.Equal(t, last.noted.key, got.programs[0].key)
			require.Equal(t, lastSeq, got.calls[len(got.calls)-1].seq)
		}
	})
}

// TestJournalOfLongCalls: the last calls are whole, and a call that is too long is there without its lists.
func TestJournalOfLongCalls(t *testing.T) {
	j, f := newJournal(t)
	c := &caller{noted: Noted{key: key(1)}}
	for seq := range uint64(100) {
		params := make([]uint64, largestCall-1)
		for i := range params {
			params[i] = seq * uint64(i) * 0x1234567
		}
		c.call(j, seq+1, &proto.Call{Params: params, Frees: []uint64{seq}})
	}
	got, err := readJournal(f)
	require.NoError(t, err)
	last := got.calls[len(got.calls)-1]
	require.EqualValues(t, 100, last.seq)
	require.Equal(t, c.last.Params, last.lists.Params)
	c.call(j, 101, &proto.Call{Params: make([]uint64, largestCall), Inputs: []uint64{1}})
	c.call(j, 102, &proto.Call{Params: make([]uint64, largestCall), Inputs: []uint64{2}})
	got, err = readJournal(f)
	require.NoError(t, err)
	last = got.calls[len(got.calls)-1]
	require.EqualValues(t, 102, last.seq)
	require.Nil(t, last.lists)
}

// TestRoomOfAJournal: parts of the room never overlap, and all of it is free when no program is left.
func TestRoomOfAJournal(t *testing.T) {
	j, f := newJournal(t)
	rapid.Check(t, func(t *rapid.T) {
		programs := map[byte]*Noted{}
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			i := byte(rapid.IntRange(1, 20).Draw(t, "program"))
			if p := programs[i]; p != nil {
				j.Forget(p)
				delete(programs, i)
				continue
			}
			n := rapid.SampledFrom([]int{1, 8, 100, 1 << 20, 8 << 20, 16 << 20}).Draw(t, "bytes")
			text := make([]byte, n)
			text[0], text[n-1] = i, i
			if p := j.Program(key(0), text); p.number != 0 {
				programs[i] = &p
			}
		}
		for i, p := range programs {
			r := pastProgram{key(0), p.number, 8 * p.span.at, p.Bytes}.open(f)
			require.NotNil(t, r)
			text, err := io.ReadAll(r)
			require.NoError(t, err)
			require.Equal(t, []byte{i, i}, []byte{text[0], text[len(text)-1]})
			j.Forget(p)
			require.Nil(t, pastProgram{key(0), p.number, 8 * p.span.at, p.Bytes}.open(f))
		}
		require.Equal(t, []span{{0, journalRoom / 8}}, j.free)
	})
}

// TestAJournalThatIsFull: a program without a place is called all the same.
func TestAJournalThatIsFull(t *testing.T) {
	j, f := newJournal(t)
	big := &caller{noted: j.Program(key(1), make([]byte, journalRoom-16))}
	require.NotZero(t, big.noted.number)
	small := &caller{noted: j.Program(key(2), []byte{1})}
	require.Zero(t, small.noted.number)
	small.call(j, 7, &proto.Call{Params: []uint64{3}})
	got, err := readJournal(f)
	require.NoError(t, err)
	require.Len(t, got.programs, 1)
	require.Nil(t, got.programs[0].open(f))
	require.Equal(t, []uint64{3}, got.calls[0].lists.Params)
	j.Forget(&small.noted)
	j.Forget(&big.noted)
	require.NotZero(t, j.Program(key(0), []byte{1}).number)
}

// patched is memory of a journal with changes.
type patched struct {
	head []byte // and the log
	room []byte
}

func (p *patched) ReadAt(b []byte, at int64) (int, error) {
	at -= progressBytes
	all := p.head
	if at >= int64(len(p.head)) {
		at -= int64(len(p.head))
		all = p.room
	}
	n := 0
	if at < int64(len(all)) {
		n = copy(b, all[at:])
	}
	clear(b[n:])
	return len(b), nil
}

// FuzzJournal reads a journal in which words were changed, and writes what it says into a folder.
func FuzzJournal(f *testing.F) {
	j, file := newJournal(f)
	c := &caller{noted: j.Program(key(1), []byte("a program"))}
	j.About("cpu\nname\n2.0")
	for seq := range uint64(200) {
		c.call(j, seq+1, &proto.Call{Params: []uint64{1, seq}, Inputs: []uint64{seq}, Frees: []uint64{seq}})
	}
	good := &patched{make([]byte, journalHead+8*journalLog), make([]byte, 4096)}
	_, err := file.ReadAt(good.head, progressBytes)
	require.NoError(f, err)
	_, err = file.ReadAt(good.room, progressBytes+journalHead+8*journalLog)
	require.NoError(f, err)
	// A change is the number of a word, of two bytes, and its value.
	word := func(at uint16, v uint64) []byte {
		return binary.NativeEndian.AppendUint64(binary.LittleEndian.AppendUint16(nil, at), v)
	}
	f.Add([]byte{})
	f.Add(word(0, 1<<63))
	f.Add(word(1+2*(199%journalCalls), ^uint64(0)-3))
	f.Add(append(word(2+2*(199%journalCalls), 1<<40), word(aboutAt, aboutBytes)...))
	for i := range uint16(12) {
		f.Add(word(journalHead/8+i, ^uint64(0)))
		f.Add(word(journalHead/8+i, 1))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, changes []byte) {
		memory := &patched{slices.Clone(good.head), slices.Clone(good.room)}
		for ; len(changes) >= 10; changes = changes[10:] {
			at := 8 * int(binary.LittleEndian.Uint16(changes))
			copy(memory.head[at%len(memory.head):], changes[2:10])
			copy(memory.room[at%len(memory.room):], changes[2:10])
		}
		got, err := readJournal(memory)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(got.calls), keptCalls)
		require.LessOrEqual(t, len(got.programs), keptPrograms)
		path, err := Write(dir, &proto.EndedReply{Pid: 1}, memory, "", time.Now())
		require.NoError(t, err)
		require.LessOrEqual(t, bounds.Size(path), int64(4<<20))
		require.NoError(t, os.RemoveAll(path))
	})
}

// TestADamagedJournal: what cannot be is left out, and the rest is there.
func TestADamagedJournal(t *testing.T) {
	j, f := newJournal(t)
	c := &caller{noted: Noted{key: key(1)}}
	for seq := range uint64(3) {
		c.call(j, seq+1, &proto.Call{Params: []uint64{seq}})
	}
	j.log[j.head[1+2]+9] = 1 << 50 // the length of the second call's delta
	got, err := readJournal(f)
	require.NoError(t, err)
	require.Len(t, got.calls, 3)
	require.NotNil(t, got.calls[0].lists)
	require.Nil(t, got.calls[1].lists)
	require.Nil(t, got.calls[2].lists, "it differs from an unknown one")
	j.head[aboutAt] = aboutBytes + 1
	_, err = readJournal(f)
	require.ErrorIs(t, err, errJournal)
}

func TestTheFolderOfCrashesIsBounded(t *testing.T) {
	j, f := newJournal(t)
	dir := filepath.Join(t.TempDir(), "a", "crashes")
	c := &caller{noted: j.Program(key(1), make([]byte, maxProgram))}
	c.call(j, 1, &proto.Call{})
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var paths []string
	for i := range 6 {
		path, err := Write(dir, &proto.EndedReply{Pid: 7}, f, "log", now.Add(time.Duration(i)*time.Second))
		require.NoError(t, err)
		paths = append(paths, path)
	}
	require.Equal(t, filepath.Join(dir, "20260102T030405.000Z-7"), paths[0])
	other := filepath.Join(dir, "notes of the user")
	old, young := filepath.Join(dir, unfinished+"1"), filepath.Join(dir, unfinished+"2")
	for _, d := range []string{other, old, young} {
		require.NoError(t, os.Mkdir(d, 0o700))
	}
	require.NoError(t, os.Chtimes(old, now, now))
	_, err := Bounds.Trim(dir)
	require.NoError(t, err)
	for i, path := range paths { // of 16 MiB and a little each
		if i < 3 {
			require.NoDirExists(t, path)
		} else {
			require.DirExists(t, path)
		}
	}
	require.NoDirExists(t, old)
	require.DirExists(t, young)
	require.DirExists(t, other)
	for i := range 12 {
		require.NoError(t, os.Mkdir(filepath.Join(dir, fmt.Sprintf("20260103T0304%02d.000Z-7", i)), 0o700))
	}
	_, err = Bounds.Trim(dir)
	require.NoError(t, err)
	left, err := filepath.Glob(filepath.Join(dir, "2026*"))
	require.NoError(t, err)
	require.Len(t, left, Bounds.Number)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o700, info.Mode())
}

// BenchmarkJournal is the cost of the journal in a repeated call.
func BenchmarkJournal(b *testing.B) {
	for _, n := range []int{4, 64, 1000} {
		b.Run(fmt.Sprintf("%d parameters", n), func(b *testing.B) {
			j, _ := newJournal(b)
			p := &Noted{key: key(1)}
			all := &proto.Call{Params: make([]uint64, n), Inputs: make([]uint64, n/4), Outputs: make([]uint64, n/4)}
			next := &proto.Call{Params: make([]uint64, n), Inputs: make([]uint64, n/4), Outputs: make([]uint64, n/4)}
			for i := range next.Inputs {
				next.Inputs[i], next.Outputs[i] = 1, 1
			}
			next.Params[0] = 1
			delta, _ := proto.AppendDelta(nil, all, next)
			seq := uint64(1)
			j.Call(seq, p, all, all)
			b.ResetTimer()
			for range b.N {
				j.Call(seq+1, p, &proto.Call{Base: seq, Delta: delta}, all)
				seq++
			}
		})
	}
}
