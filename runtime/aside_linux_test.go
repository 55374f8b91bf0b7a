// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// cores is what the thread may run on.
func cores(t *testing.T) unix.CPUSet {
	var out unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &out))
	return out
}

// stepped steps until it has found the thread where it says that the recording one is: in between the thread may move.
func stepped(t *testing.T, a *aside, core *atomic.Int64) int64 {
	for range 1000 {
		was := here()
		core.Store(was)
		if a.step(); a.left == was {
			return was
		}
	}
	t.Fatal("the thread never stepped aside")
	return 0
}

func TestAThreadLeavesTheCoreOfWhoRecordsAndTakesNoOther(t *testing.T) {
	var core atomic.Int64
	a := newAside(&core) // this test's thread ends with it
	all := cores(t)
	if all.Count() < 2 {
		t.Skip("owner: runtime. There is one core: nowhere to step")
	}
	a.step()
	require.Equal(t, all, cores(t), "nobody has recorded yet")

	first := stepped(t, a, &core)
	want := all
	want.Clear(int(first - 1))
	require.Equal(t, want, cores(t))
	require.NotEqual(t, first, here())

	second := stepped(t, a, &core) // the recording thread has moved to where this one is
	want = all
	want.Clear(int(second - 1))
	require.Equal(t, want, cores(t), "the first is free again")
	require.NotEqual(t, first, second)

	var one unix.CPUSet
	one.Set(int(first - 1))
	require.NoError(t, unix.SchedSetaffinity(0, &one))
	b := newAside(&core)
	core.Store(here())
	b.step()
	require.Equal(t, one, cores(t), "a thread with one core stays")
	require.Zero(t, b.left)
}
