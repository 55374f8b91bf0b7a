// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/capture/asm"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/trace"
)

// A round is a training of a network with two layers on random data, from its beginning.
const (
	steps     = 40 // of a round
	readEvery = 5  // steps between two reads of the loss
	largeSize = 1 << 20
	// answerWait bounds a wait for the worker. A fault costs some seconds, and several follow each other by chance.
	answerWait = 4 * time.Minute
)

// step is one step as the recorder would record it: the operands are the batch, both weights and the target.
const step = `
aten::mm %0:f32[64,32] %1:f32[32,48] -> %2:f32[64,48]
aten::relu %2 -> %3:f32[64,48]
aten::mm %3 %4:f32[48,8] -> %5:f32[64,8]
aten::sub.Tensor %5 %6:f32[64,8] 1 -> %7:f32[64,8]
aten::mul.Tensor %7 %7 -> %8:f32[64,8]
aten::mean %8 none -> %9:f32[]
aten::mm %3:f32[48,64]{1,48} %7 -> %10:f32[48,8]
aten::mm %7 %4:f32[8,48]{1,8} -> %11:f32[64,48]
aten::threshold_backward %11 %2 num=0 -> %12:f32[64,48]
aten::mm %0:f32[32,64]{1,32} %12 -> %13:f32[32,48]
aten::add_.Tensor %4! %10 num=-0.0001
aten::add_.Tensor %1! %13 num=-0.0001
`

const (
	batchSize  = 64 * 32
	firstSize  = 32 * 48
	secondSize = 48 * 8
	targetSize = 64 * 8
)

// training trains on device 0 of a runtime.
type training struct {
	rt    *runtime.Local
	names *capture.Table
	last  uint64   // the last id of a storage
	held  []uint64 // storages that are not free
	used  []uint64 // all ids of the round
}

// value is what the client has read: a loss, or at the end of a round the digest of both weights.
type value struct {
	step int
	text string
}

func (t *training) storage() uint64 {
	t.last++
	t.used = append(t.used, t.last)
	return t.last
}

// wait waits for a ticket that may be pending.
func (t *training) wait(ticket uint64, err error) error {
	for end := time.Now().Add(answerWait); errors.Is(err, runtime.ErrPending); {
		if time.Now().After(end) {
			return fmt.Errorf("there is no answer after %v", answerWait)
		}
		err = t.rt.Wait(ticket, time.Second)
	}
	return err
}

func (t *training) upload(data []byte) (uint64, error) {
	id := t.storage()
	t.held = append(t.held, id)
	return id, t.wait(t.rt.Upload(0, id, data, trace.Place{}))
}

func (t *training) read(id uint64, n int) ([]byte, error) {
	out := make([]byte, 4*n)
	view := runtime.View{Storage: id, DType: ir.F32, Sizes: []int64{int64(n)}, Strides: []int64{1}}
	ticket, err := t.rt.Read(0, view, out, trace.Place{})
	if err == nil {
		err = t.wait(ticket, runtime.ErrPending)
	}
	return out, err
}

// flush submits a trace. free: the storages that no tensor holds any more.
func (t *training) flush(bind, free []uint64, text string) error {
	list := func(word string, all []uint64) string {
		if len(all) == 0 {
			return ""
		}
		return word + strings.Trim(fmt.Sprint(all), "[]") + "\n"
	}
	tr, err := asm.Parse(list("bind ", bind)+list("frees ", free)+"cut sync\n"+text, t.names)
	if err != nil {
		return err
	}
	err = t.rt.Flush(0, tr, func() {})
	if errors.Is(err, runtime.ErrPending) { // too far ahead
		var ticket uint64
		if ticket, err = t.rt.Room(0, trace.Place{}); err == nil {
			err = t.wait(ticket, runtime.ErrPending)
		}
	}
	return err
}

// floats are n random numbers in [-scale, scale].
func floats(r *rand.Rand, n int, scale float32) (out []byte) {
	for range n {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits((2*r.Float32()-1)*scale))
	}
	return out
}

// round trains, and reports each value that it reads. The same seed gives the same values.
func (t *training) round(seed uint64, report func(value)) error {
	r := rand.New(rand.NewPCG(seed, 40))
	t.used, t.held = t.used[:0], t.held[:0]
	var all [3]uint64 // both weights and the target
	for i, n := range []int{firstSize, secondSize, targetSize} {
		var err error
		if all[i], err = t.upload(floats(r, n, 0.5)); err != nil {
			return err
		}
	}
	var lost []uint64 // the loss before, which no tensor holds
	for i := range steps {
		loss, err := t.step(r, all, lost)
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if lost = []uint64{loss}; i%readEvery != readEvery-1 {
			continue
		}
		got, err := t.read(loss, 1)
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		report(value{i, fmt.Sprintf("%x", got)})
	}
	digest := sha256.New()
	for i, n := range []int{firstSize, secondSize} {
		got, err := t.read(all[i], n)
		if err != nil {
			return err
		}
		digest.Write(got)
	}
	report(value{steps, fmt.Sprintf("%x", digest.Sum(nil)[:16])})
	if err := t.large(r); err != nil {
		return err
	}
	return t.flush(nil, append(lost, t.held...), "")
}

// step uploads a batch, submits a step, and returns the storage of the loss.
func (t *training) step(r *rand.Rand, all [3]uint64, free []uint64) (uint64, error) {
	batch := t.storage()
	if err := t.wait(t.rt.Upload(0, batch, floats(r, batchSize, 1), trace.Place{})); err != nil {
		return 0, err
	}
	var temporary [14]uint64
	for i := range temporary {
		temporary[i] = t.storage()
	}
	bind := temporary[:]
	bind[0], bind[1], bind[4], bind[6] = batch, all[0], all[1], all[2]
	return bind[9], t.flush(bind, free, "dead %0 %2 %3 %5 %7 %8 %10 %11 %12 %13"+step)
}

// large uploads many bytes and reads them.
func (t *training) large(r *rand.Rand) error {
	data := make([]byte, largeSize)
	for i := 0; i < len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], r.Uint64())
	}
	id, err := t.upload(data)
	if err != nil {
		return err
	}
	got, err := t.read(id, largeSize/4)
	if err == nil && !bytes.Equal(got, data) {
		err = errors.New("wrong bytes of a large upload")
	}
	return err
}

// nothingHeld checks that the worker has none of the storages of the last round.
func (t *training) nothingHeld() error {
	for _, id := range t.used {
		if _, err := t.read(id, 1); err == nil {
			return fmt.Errorf("the worker still has storage %d, which was freed", id)
		} else if !strings.Contains(err.Error(), "exist on the worker") {
			return err
		}
	}
	return nil
}
