// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/kept"
	"github.com/mycelya/mycelya/worker/session"
)

// keeping is a client of a server that keeps state in a folder.
func keeping(t testing.TB, k kept.Keeper) (*serving, *client) {
	t.Helper()
	s := start(t, &session.Server{Load: refBackend, Keeper: k})
	return s, s.connect(t)
}

// ask asks for a StateReply.
func (c *client) ask(typ transport.Type, m protobuf.Message) *proto.StateReply {
	c.t.Helper()
	var r proto.StateReply
	c.expect(transport.StateReply, c.send(typ, m, nil), &r)
	return &r
}

func bytesOf(id uint64, sizes ...int64) *proto.Read {
	return &proto.Read{Storage: id, Dtype: kept.Bytes, Sizes: sizes, Strides: []int64{1}}
}

func TestSaveAndLoad(t *testing.T) {
	s, c := keeping(t, &kept.Folder{Path: t.TempDir()})
	c.upload(1, []byte("12345"))
	r := c.ask(transport.Save, &proto.Save{Name: "a", Tree: "tree", Views: []*proto.Read{bytesOf(1, 5), bytesOf(1, 2)}})
	require.Nil(t, r.Status)
	require.Equal(t, []string{"a"}, c.ask(transport.Names, &proto.Names{}).Names)

	c = s.connect(t) // another session
	seq := c.seq + 1
	r = c.ask(transport.Find, &proto.Find{Name: "a"})
	require.Equal(t, "tree", r.Tree)
	require.Len(t, r.Tensors, 2)
	require.Equal(t, []int64{5}, r.Tensors[0].Sizes)
	require.Nil(t, c.ask(transport.Drop, &proto.Drop{Name: "a"}).Status, "what is open stays")
	r = c.ask(transport.Load, &proto.Load{Found: seq, Storages: []uint64{7, 0}})
	require.Equal(t, uint64(5), r.Bytes)
	got, st := c.read(7, 5)
	require.Nil(t, st)
	require.Equal(t, "12345", string(got))
	require.Equal(t, uint64(1), c.sync().Storages)
	require.Contains(t, c.ask(transport.Find, &proto.Find{Name: "a"}).Status.Text, "there are no names")
}

// TestBreachesOfKeptState: each ends its session, and no other.
func TestBreachesOfKeptState(t *testing.T) {
	s, honest := keeping(t, &kept.Folder{Path: t.TempDir()})
	honest.upload(1, []byte("1"))
	require.Nil(t, honest.ask(transport.Save, &proto.Save{Name: "a", Views: []*proto.Read{bytesOf(1, 1)}}).Status)
	find := func(c *client) {
		require.Nil(t, c.ask(transport.Find, &proto.Find{Name: "a"}).Status)
	}
	for name, breach := range map[string]func(c *client){
		"a load of nothing": func(c *client) { c.send(transport.Load, &proto.Load{Found: 5}, nil) },
		"too few storages":  func(c *client) { find(c); c.send(transport.Load, &proto.Load{Found: c.seq}, nil) },
		"a storage that exists": func(c *client) {
			c.upload(3, nil)
			find(c)
			c.send(transport.Load, &proto.Load{Found: c.seq, Storages: []uint64{3}}, nil)
		},
		"a restore that is late": func(c *client) {
			c.upload(3, nil)
			c.send(transport.Restore, &proto.Restore{Session: "x"}, nil)
		},
		"a body":  func(c *client) { c.send(transport.Save, &proto.Save{}, []byte("x")) },
		"a reply": func(c *client) { c.send(transport.StateReply, &proto.StateReply{}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			c := s.connect(t)
			breach(c)
			require.NotEmpty(t, c.fault())
			require.Equal(t, []string{"a"}, honest.ask(transport.Names, &proto.Names{}).Names)
		})
	}
}

func TestSavesThatFail(t *testing.T) {
	_, c := keeping(t, &kept.Folder{Path: t.TempDir()})
	c.upload(1, []byte("12345"))
	for _, v := range []*proto.Read{bytesOf(9, 1), bytesOf(1, 6), bytesOf(1, -1), {Storage: 1, Dtype: 99}, {Storage: 1,
		Dtype: kept.Bytes, Sizes: []int64{1 << 40, 1 << 40}, Strides: []int64{1, 1}}} {
		r := c.ask(transport.Save, &proto.Save{Name: "a", Views: []*proto.Read{v}})
		require.NotNil(t, r.Status, "%v", v)
	}
	require.Empty(t, c.ask(transport.Names, &proto.Names{}).Names)
	r := c.ask(transport.Save, &proto.Save{Name: ""})
	require.Contains(t, r.Status.Text, "1 to 100 characters")

	_, c = keeping(t, nil)
	require.Contains(t, c.ask(transport.Names, &proto.Names{}).Status.Text, "--state")
	require.Contains(t, c.ask(transport.Checkpoint, &proto.Checkpoint{Session: "x"}).Status.Text, "--state")
}

// fullDisk is a folder whose new files cannot be written.
type fullDisk struct{ kept.Keeper }

type fullDraft struct {
	kept.Draft
	f *os.File
}

func (d fullDisk) Create() (kept.Draft, error) {
	draft, err := d.Keeper.Create()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	return fullDraft{draft, f}, err
}

func (d fullDraft) File() *os.File { return d.f }

func (d fullDraft) Drop() {
	_ = d.f.Close()
	d.Draft.Drop()
}

func TestAFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no /dev/full")
	}
	folder := &kept.Folder{Path: t.TempDir()}
	_, c := keeping(t, folder)
	c.upload(1, []byte("12345"))
	save := &proto.Save{Name: "a", Views: []*proto.Read{bytesOf(1, 5)}}
	require.Nil(t, c.ask(transport.Save, save).Status)
	s := start(t, &session.Server{Load: refBackend, Keeper: fullDisk{folder}})
	c = s.connect(t)
	c.upload(1, []byte("99999"))
	require.Contains(t, c.ask(transport.Save, save).Status.Text, "disk is full")
	require.Contains(t, c.ask(transport.Checkpoint, &proto.Checkpoint{Session: "x"}).Status.Text, "disk is full")
	require.Nil(t, c.ask(transport.Find, &proto.Find{Name: "a"}).Status)
	require.Nil(t, c.ask(transport.Load, &proto.Load{Found: c.seq, Storages: []uint64{2}}).Status)
	got, _ := c.read(2, 5)
	require.Equal(t, "12345", string(got), "what had the name is still there")
	files, _ := filepath.Glob(filepath.Join(folder.Path, "draft-*"))
	require.Empty(t, files)
}

// TestACheckpoint: another session has all storages, and skips calls if the first one did.
func TestACheckpoint(t *testing.T) {
	folder := &kept.Folder{Path: t.TempDir()}
	s, c := keeping(t, folder)
	c.upload(1, []byte("12345"))
	c.upload(2, nil)
	failure := &proto.Status{Kind: proto.ErrValue, Text: "why"}
	c.send(transport.Fail, &proto.Fail{Status: failure, Storages: []uint64{1, 8}}, nil)
	require.Nil(t, c.ask(transport.Checkpoint, &proto.Checkpoint{Session: "x"}).Status)
	first := c.seq

	c = s.connect(t)
	r := c.ask(transport.Restore, &proto.Restore{Session: "x", At: first})
	require.Nil(t, r.Status)
	require.Equal(t, first, r.At)
	require.Equal(t, uint64(3), c.sync().Storages)
	got, _ := c.read(1, 5)
	require.Equal(t, "12345", string(got), "a storage that existed keeps its content")
	_, st := c.read(8, 0)
	require.Equal(t, "why", st.Text)
	require.Contains(t, c.ask(transport.Save, &proto.Save{Name: "n"}).Status.Text, "why", "no call runs")
	c.send(transport.Resume, &proto.Resume{}, nil)
	require.Nil(t, c.ask(transport.Save, &proto.Save{Name: "n"}).Status)

	// Of older checkpoints only base stays.
	require.Nil(t, c.ask(transport.Checkpoint, &proto.Checkpoint{Session: "x", Base: first}).Status)
	second := c.seq
	require.Nil(t, c.ask(transport.Checkpoint, &proto.Checkpoint{Session: "x", Base: second}).Status)
	names, err := folder.Names(kept.Checkpoint)
	require.NoError(t, err)
	require.Len(t, names, 2)
	c = s.connect(t)
	r = c.ask(transport.Restore, &proto.Restore{Session: "x", At: first})
	require.Contains(t, r.Status.Text, "not on the worker's disk")
}
