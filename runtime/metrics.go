// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/trace"
)

// metrics has the counters of all sessions since the last reset.
type metrics struct {
	cuts           [catalogue.NumCuts]atomic.Uint64
	programHits    atomic.Uint64
	programMisses  atomic.Uint64
	sizeMisses     atomic.Uint64
	hashCollisions atomic.Uint64
	programsResent atomic.Uint64
	messagesSent   atomic.Uint64
	bytesSent      atomic.Uint64
	programBytes   atomic.Uint64
	uploadBytes    atomic.Uint64
	uploadShared   atomic.Uint64
	// Bytes that did not have to be sent: the worker had kept them, or compression has made them fewer.
	uploadDeduped    atomic.Uint64
	uploadCompressed atomic.Uint64
	bytesReceived    atomic.Uint64
	roundTrips       atomic.Uint64
	guesses          atomic.Uint64 // reads that were sent before a caller asked
	guessed          atomic.Uint64 // reads that one of them has answered
	stalls           atomic.Uint64
	stallNanosecond  atomic.Int64
	compileNanosec   atomic.Int64
	kernelsCompiled  atomic.Uint64
	kernelsCached    atomic.Uint64
	kernelsNanosec   atomic.Uint64
	kernelsLaunched  atomic.Uint64
	fusedOps         atomic.Uint64
	groupsFused      atomic.Uint64
	groupsWaiting    atomic.Uint64
	groupsUnfused    atomic.Uint64
	groupsTried      atomic.Uint64
	groupsWrong      atomic.Uint64
	indexWaits       atomic.Uint64
	weightsFetched   atomic.Uint64 // bytes that workers have fetched over their networks
	weightsCached    atomic.Uint64 // bytes of weights that they had on their disks
	reconnects       atomic.Uint64
	replaced         atomic.Uint64
	errors           atomic.Uint64
	bill             bill
}

// Each of these counts something in total and, unless by is nil, for a place.

func (m *metrics) cut(reason uint32, by *charge) {
	if int(reason) < len(m.cuts) {
		m.cuts[reason].Add(1)
		by.cuts[reason].Add(1)
	}
}

// sent counts a message, or the last frame of one.
func (m *metrics) sent(bytes uint64, by *charge) {
	m.messagesSent.Add(1)
	m.held(bytes, by)
}

// held counts a frame that is sent in one message with the next one.
func (m *metrics) held(bytes uint64, by *charge) {
	m.bytesSent.Add(bytes)
	m.payer(by).sent.Add(bytes)
}

func (m *metrics) received(bytes uint64, by *charge) {
	m.bytesReceived.Add(bytes)
	m.payer(by).received.Add(bytes)
}

// payer returns by, or if by is nil the charge of no place in particular.
func (m *metrics) payer(by *charge) *charge {
	if by == nil {
		return m.bill.at(trace.Place{})
	}
	return by
}

func (m *metrics) uploaded(bytes uint64, by *charge) {
	m.uploadBytes.Add(bytes)
	by.uploaded.Add(bytes)
}

// kernels counts what a worker reports about fused groups and their machine code.
func (m *metrics) kernels(k *proto.Kernels) {
	if k == nil {
		return
	}
	m.groupsFused.Add(uint64(k.Groups))
	m.groupsWaiting.Add(uint64(k.Waiting))
	m.groupsUnfused.Add(uint64(k.Unfused))
	m.groupsTried.Add(uint64(k.Tried))
	m.groupsWrong.Add(uint64(k.Wrong))
	m.indexWaits.Add(uint64(k.Waits))
	m.kernelsLaunched.Add(uint64(k.Launched))
	m.fusedOps.Add(uint64(k.Ops))
	m.kernelsCompiled.Add(uint64(k.Compiled))
	m.kernelsCached.Add(uint64(k.Cached))
	m.kernelsNanosec.Add(k.CompileNanoseconds)
}

func (m *metrics) compiled(took time.Duration, by *charge) {
	m.programMisses.Add(1)
	m.compileNanosec.Add(int64(took))
	by.compiled.Add(1)
}

// waited counts waits for the worker that did not end at once, and their time.
func (m *metrics) waited(waits uint64, took time.Duration, by *charge) {
	m.stalls.Add(waits)
	by.stalls.Add(waits)
	m.stallNanosecond.Add(int64(took))
	by.stalled.Add(int64(took))
}

// JSON is the metrics as an object, with what the devices' links have measured. Counters of features that this version
// does not have are 0.
func (m *metrics) JSON(links map[int32]any) []byte {
	cuts := map[string]uint64{}
	for i := range m.cuts {
		if n := m.cuts[i].Load(); n > 0 {
			cuts[catalogue.Cuts[i].Name] = n
		}
	}
	b, err := json.Marshal(map[string]any{
		"cuts":                    cuts,
		"program_hits":            m.programHits.Load(),
		"program_misses":          m.programMisses.Load(),
		"size_misses":             m.sizeMisses.Load(),
		"hash_collisions":         m.hashCollisions.Load(),
		"programs_resent":         m.programsResent.Load(),
		"compile_seconds":         time.Duration(m.compileNanosec.Load()).Seconds(),
		"kernels_compiled":        m.kernelsCompiled.Load(),
		"kernels_cached":          m.kernelsCached.Load(),
		"kernels_seconds":         time.Duration(m.kernelsNanosec.Load()).Seconds(),
		"kernels_launched":        m.kernelsLaunched.Load(),
		"fused_ops":               m.fusedOps.Load(),
		"groups_fused":            m.groupsFused.Load(),
		"groups_waiting":          m.groupsWaiting.Load(),
		"groups_unfused":          m.groupsUnfused.Load(),
		"groups_tried":            m.groupsTried.Load(),
		"groups_wrong":            m.groupsWrong.Load(),
		"index_waits":             m.indexWaits.Load(),
		"messages_sent":           m.messagesSent.Load(),
		"bytes_sent":              m.bytesSent.Load(),
		"program_bytes_sent":      m.programBytes.Load(),
		"upload_bytes":            m.uploadBytes.Load(),
		"upload_bytes_shared":     m.uploadShared.Load(),
		"upload_bytes_deduped":    m.uploadDeduped.Load(),
		"upload_bytes_compressed": m.uploadCompressed.Load(),
		"weights_bytes_fetched":   m.weightsFetched.Load(),
		"weights_bytes_cached":    m.weightsCached.Load(),
		"bytes_received":          m.bytesReceived.Load(),
		"round_trips":             m.roundTrips.Load(),
		"reads_guessed":           m.guesses.Load(),
		"reads_answered":          m.guessed.Load(),
		"stalls":                  m.stalls.Load(),
		"stall_seconds":           time.Duration(m.stallNanosecond.Load()).Seconds(),
		"reconnects":              m.reconnects.Load(),
		"workers_replaced":        m.replaced.Load(),
		"errors":                  m.errors.Load(),
		"links":                   links,
	})
	if err != nil {
		panic("BUG: metrics don't encode: " + err.Error())
	}
	return b
}

func (m *metrics) reset() {
	for i := range m.cuts {
		m.cuts[i].Store(0)
	}
	for _, c := range []*atomic.Uint64{&m.programHits, &m.programMisses, &m.sizeMisses, &m.hashCollisions,
		&m.programsResent, &m.messagesSent, &m.bytesSent, &m.programBytes, &m.uploadBytes, &m.uploadShared,
		&m.uploadDeduped, &m.uploadCompressed, &m.weightsFetched, &m.weightsCached,
		&m.bytesReceived, &m.roundTrips, &m.guesses, &m.guessed, &m.stalls,
		&m.kernelsCompiled, &m.kernelsCached, &m.kernelsNanosec,
		&m.kernelsLaunched, &m.fusedOps, &m.groupsFused, &m.groupsWaiting, &m.groupsUnfused, &m.groupsTried,
		&m.groupsWrong, &m.indexWaits, &m.reconnects, &m.replaced,
		&m.errors} {
		c.Store(0)
	}
	m.bill.reset()
	m.stallNanosecond.Store(0)
	m.compileNanosec.Store(0)
}
