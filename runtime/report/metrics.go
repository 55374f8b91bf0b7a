// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package report counts what sessions do, in total and for each line of the user's program.
package report

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/trace"
)

// Metrics has the counters of all sessions since the last reset.
type Metrics struct {
	cuts [catalogue.NumCuts]atomic.Uint64
	counters
	Bill bill
}

// counters are the metrics that are one number each, with their public names. Those in seconds count nanoseconds.
type counters struct {
	ProgramHits      atomic.Uint64 `json:"program_hits"`
	ProgramMisses    atomic.Uint64 `json:"program_misses"`
	SizeMisses       atomic.Uint64 `json:"size_misses"`
	HashCollisions   atomic.Uint64 `json:"hash_collisions"`
	ProgramsResent   atomic.Uint64 `json:"programs_resent"`
	KernelsCompiled  atomic.Uint64 `json:"kernels_compiled"`
	KernelsCached    atomic.Uint64 `json:"kernels_cached"`
	KernelsLaunched  atomic.Uint64 `json:"kernels_launched"`
	FusedOps         atomic.Uint64 `json:"fused_ops"`
	GroupsFused      atomic.Uint64 `json:"groups_fused"`
	GroupsWaiting    atomic.Uint64 `json:"groups_waiting"`
	GroupsUnfused    atomic.Uint64 `json:"groups_unfused"`
	GroupsTried      atomic.Uint64 `json:"groups_tried"`
	GroupsWrong      atomic.Uint64 `json:"groups_wrong"`
	IndexWaits       atomic.Uint64 `json:"index_waits"`
	MessagesSent     atomic.Uint64 `json:"messages_sent"`
	BytesSent        atomic.Uint64 `json:"bytes_sent"`
	ProgramBytes     atomic.Uint64 `json:"program_bytes_sent"`
	UploadBytes      atomic.Uint64 `json:"upload_bytes"`
	UploadShared     atomic.Uint64 `json:"upload_bytes_shared"`
	UploadDeduped    atomic.Uint64 `json:"upload_bytes_deduped"`    // not sent: the worker had kept them
	UploadCompressed atomic.Uint64 `json:"upload_bytes_compressed"` // not sent: compression has made them fewer
	WeightsFetched   atomic.Uint64 `json:"weights_bytes_fetched"`   // that workers have fetched over their networks
	WeightsCached    atomic.Uint64 `json:"weights_bytes_cached"`    // of weights that they had on their disks
	BytesReceived    atomic.Uint64 `json:"bytes_received"`
	RoundTrips       atomic.Uint64 `json:"round_trips"`
	Guesses          atomic.Uint64 `json:"reads_guessed"`  // reads that were sent before a caller asked
	Guessed          atomic.Uint64 `json:"reads_answered"` // reads that one of them has answered
	Stalls           atomic.Uint64 `json:"stalls"`
	Reconnects       atomic.Uint64 `json:"reconnects"`
	Replaced         atomic.Uint64 `json:"workers_replaced"`
	Errors           atomic.Uint64 `json:"errors"`
	CompileTime      atomic.Uint64 `json:"compile_seconds"`
	KernelsTime      atomic.Uint64 `json:"kernels_seconds"`
	StallTime        atomic.Uint64 `json:"stall_seconds"`
}

// each visits the counters.
func (c *counters) each(visit func(name string, n *atomic.Uint64)) {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		visit(v.Type().Field(i).Tag.Get("json"), v.Field(i).Addr().Interface().(*atomic.Uint64))
	}
}

// Each of these counts something in total and, unless by is nil, for a place.

func (m *Metrics) Cut(reason uint32, by *Charge) {
	if int(reason) < len(m.cuts) {
		m.cuts[reason].Add(1)
		by.cuts[reason].Add(1)
	}
}

// Sent counts a message, or the last frame of one.
func (m *Metrics) Sent(bytes uint64, by *Charge) {
	m.MessagesSent.Add(1)
	m.Held(bytes, by)
}

// Held counts a frame that is sent in one message with the next one.
func (m *Metrics) Held(bytes uint64, by *Charge) {
	m.BytesSent.Add(bytes)
	m.payer(by).sent.Add(bytes)
}

// Asked counts a request with an answer.
func (m *Metrics) Asked(why Trip, by *Charge) {
	m.RoundTrips.Add(1)
	by.trips[why].Add(1)
}

// Foreseen counts a read that has come along with another one.
func (m *Metrics) Foreseen(by *Charge) {
	m.Guessed.Add(1)
	by.foreseen.Add(1)
}

func (m *Metrics) Received(bytes uint64, by *Charge) {
	m.BytesReceived.Add(bytes)
	m.payer(by).received.Add(bytes)
}

// payer returns by, or if by is nil the charge of no place in particular.
func (m *Metrics) payer(by *Charge) *Charge {
	if by == nil {
		return m.Bill.At(trace.Place{})
	}
	return by
}

func (m *Metrics) Uploaded(bytes uint64, by *Charge) {
	m.UploadBytes.Add(bytes)
	by.uploaded.Add(bytes)
}

// Kernels counts what a worker reports about fused groups and their machine code.
func (m *Metrics) Kernels(k *proto.Kernels) {
	if k == nil {
		return
	}
	m.GroupsFused.Add(uint64(k.Groups))
	m.GroupsWaiting.Add(uint64(k.Waiting))
	m.GroupsUnfused.Add(uint64(k.Unfused))
	m.GroupsTried.Add(uint64(k.Tried))
	m.GroupsWrong.Add(uint64(k.Wrong))
	m.IndexWaits.Add(uint64(k.Waits))
	m.KernelsLaunched.Add(uint64(k.Launched))
	m.FusedOps.Add(uint64(k.Ops))
	m.KernelsCompiled.Add(uint64(k.Compiled))
	m.KernelsCached.Add(uint64(k.Cached))
	m.KernelsTime.Add(k.CompileNanoseconds)
}

func (m *Metrics) Compiled(took time.Duration, by *Charge) {
	m.ProgramMisses.Add(1)
	m.CompileTime.Add(uint64(took))
	by.compiled.Add(1)
}

// Waited counts waits for the worker that did not end at once, and their time.
func (m *Metrics) Waited(waits uint64, took time.Duration, by *Charge) {
	m.Stalls.Add(waits)
	by.stalls.Add(waits)
	m.StallTime.Add(uint64(took))
	by.stalled.Add(int64(took))
}

// JSON is the metrics as an object, with what the devices' links have measured.
func (m *Metrics) JSON(links map[int32]any) []byte {
	cuts := map[string]uint64{}
	for i := range m.cuts {
		if n := m.cuts[i].Load(); n > 0 {
			cuts[catalogue.Cuts[i].Name] = n
		}
	}
	out := map[string]any{"cuts": cuts, "links": links}
	m.each(func(name string, n *atomic.Uint64) {
		if out[name] = n.Load(); strings.HasSuffix(name, "_seconds") {
			out[name] = time.Duration(n.Load()).Seconds()
		}
	})
	b, err := json.Marshal(out)
	if err != nil {
		panic("BUG: metrics don't encode: " + err.Error())
	}
	return b
}

func (m *Metrics) Reset() {
	for i := range m.cuts {
		m.cuts[i].Store(0)
	}
	m.each(func(_ string, n *atomic.Uint64) { n.Store(0) })
	m.Bill.reset()
}
