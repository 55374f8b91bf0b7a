// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

const (
	eventsFile   = "events.jsonl"
	eventsFormat = 1 // changes when a field's meaning does; README.md has the fields
)

type runEvent struct {
	Event   string `json:"event"`
	Format  int    `json:"format"`
	Mycelya string `json:"mycelya"`
	Passes  string `json:"passes"`
	Check   int    `json:"check"`
	Only    string `json:"only"`
	Max     int    `json:"max"`
}

type cutEvent struct {
	Event   string `json:"event"`
	Cut     int    `json:"cut"`
	Device  int    `json:"device"`
	Place   string `json:"place"`
	Reason  string `json:"reason"`
	Ops     int    `json:"ops"`
	Program int    `json:"program"`
	New     bool   `json:"new"`
}

// stepsEvent names the steps of a program whose calls are timed.
type stepsEvent struct {
	Event   string   `json:"event"`
	Device  int      `json:"device"`
	Program int      `json:"program"`
	Names   []string `json:"names"`  // by step; "": it takes no time
	Places  []string `json:"places"` // by step
}

type callEvent struct {
	Event   string       `json:"event"`
	Device  int          `json:"device"`
	Program int          `json:"program"`
	Began   float64      `json:"began"` // seconds since the first call
	Seconds float64      `json:"seconds"`
	Steps   [][3]float64 `json:"steps"` // number, seconds since the call has begun, seconds that it took
}

// enoughEvent ends the list of calls.
type enoughEvent struct {
	Event string `json:"event"`
	Text  string `json:"text"`
}

// billEvent replaces the one before with its number. Lines of all numbers add up.
type billEvent struct {
	Event string `json:"event"`
	Bill  int    `json:"bill"`
	Lines []Line `json:"lines"`
}

type passEvent struct {
	Event   string         `json:"event"`
	Device  int            `json:"device"`
	Program int            `json:"program"`
	Pass    string         `json:"pass"`
	Changed bool           `json:"changed"`
	Nodes   int            `json:"nodes"`
	Rules   map[string]int `json:"rules"` // how often each was applied
	Seconds float64        `json:"seconds"`
}

type compileEvent struct {
	Event   string  `json:"event"`
	Device  int     `json:"device"`
	Program int     `json:"program"`
	Place   string  `json:"place"`
	Reason  string  `json:"reason"`
	Key     string  `json:"key"`
	Ops     int     `json:"ops"`
	Nodes   int     `json:"nodes"`
	Steps   int     `json:"steps"`
	Buffers int     `json:"buffers"`
	Params  int     `json:"params"`
	Inputs  int     `json:"inputs"`
	Outputs int     `json:"outputs"`
	Why     string  `json:"why"`
	Error   string  `json:"error"`
	Folder  string  `json:"folder"` // "": its graphs are not shown
	Seconds float64 `json:"seconds"`
}
