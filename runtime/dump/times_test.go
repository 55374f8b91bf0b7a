// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// callEvents are the lines of events.jsonl about calls.
func callEvents(t *testing.T, dir string) []string {
	data, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	require.NoError(t, err)
	lines := slices.Collect(strings.Lines(string(data)))
	return slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, `"event":"run"`) })
}

func named(names, places []string) func() ([]string, []string) {
	return func() ([]string, []string) { return names, places }
}

func TestTimesOfCalls(t *testing.T) {
	dir := t.TempDir()
	d := New(&Spec{To: dir, Times: true, Only: "a.py"}, About{}, os.Stderr, slog.Default())
	require.True(t, d.Times())
	const start = 1_800_000_000_000_000_000
	names := named([]string{"", "mm", ""}, []string{"", "x/a.py:1", "x/a.py:2"})
	d.Call(Call{Program: 3, Place: "a.py:1", Began: start, Took: 5000,
		Steps: []Step{{0, 0, 10}, {1, 1000, 2500}, {2, 3500, 1}}}, names)
	d.Call(Call{Program: 3, Place: "a.py:1", Began: start + 1_000_000_060, Took: 40}, nil) // the names are known
	d.Call(Call{Program: 4, Place: "b.py:1", Began: start, Took: 1}, nil)                  // of another line
	d.Call(Call{Device: 1, Program: 3, Place: "a.py:1", Began: start + 10, Took: 1}, names)
	require.Equal(t, []string{
		`{"event":"steps","device":0,"program":3,"names":["","mm",""],"places":["","x/a.py:1","x/a.py:2"]}` + "\n",
		`{"event":"call","device":0,"program":3,"began":0,"seconds":0.000005,"steps":[[1,0.000001,0.0000025]]}` + "\n",
		`{"event":"call","device":0,"program":3,"began":1.0000001,"seconds":0,"steps":[]}` + "\n",
		`{"event":"steps","device":1,"program":3,"names":["","mm",""],"places":["","x/a.py:1","x/a.py:2"]}` + "\n",
		`{"event":"call","device":1,"program":3,"began":0,"seconds":0,"steps":[]}` + "\n",
	}, callEvents(t, dir))
}

func TestBills(t *testing.T) {
	dir := t.TempDir()
	d := New(&Spec{To: dir, Times: true, Only: "a.py"}, About{}, os.Stderr, slog.Default())
	d.Bill(0, []Line{{Place: "x/a.py:1", Callers: []string{"y/c.py:3"}, RoundTrips: 2, Stalls: 1, StallSeconds: 0.5},
		{Place: "x/b.py:1", RoundTrips: 2}})
	d.Bill(1, nil)
	require.Equal(t, []string{`{"event":"bill","bill":0,"lines":[{"place":"x/a.py:1","callers":["y/c.py:3"],` +
		`"round_trips":2,"stalls":1,"stall_seconds":0.5}]}` + "\n"}, callEvents(t, dir))
	New(&Spec{To: dir}, About{}, os.Stderr, slog.Default()).Bill(0, []Line{{Place: "a.py:1"}})
	require.Len(t, callEvents(t, dir), 1)
}

func TestTimesAreBounded(t *testing.T) {
	dir := t.TempDir()
	d := New(&Spec{To: dir, Times: true}, About{}, os.Stderr, slog.Default())
	steps := make([]Step, maxTimed/4)
	for range 8 {
		d.Call(Call{Program: 1, Steps: steps}, named(make([]string, len(steps)), nil))
	}
	events := callEvents(t, dir)
	require.Len(t, events, 1+3+1) // the names, the calls, the end
	require.Equal(t, `{"event":"enough","text":"Only the first 500000 times are listed."}`+"\n", events[4])
}

func TestTimesAreOff(t *testing.T) {
	require.False(t, (*Dumper)(nil).Times())
	dir := t.TempDir()
	d := New(&Spec{To: dir}, About{}, os.Stderr, slog.Default())
	require.False(t, d.Times())
	d.Call(Call{Program: 1, Took: 1}, nil)
	require.Empty(t, tree(t, dir))
}
