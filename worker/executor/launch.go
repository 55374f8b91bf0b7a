// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package executor

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"log/slog"
	goruntime "runtime"
	"slices"
	"sync/atomic"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/codegen/bind"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/kernels"
)

// Kernels configures the compiler and the cache of kernels' machine code. Only a device that takes machine code uses
// it.
type Kernels struct {
	Compiler func() (kernels.Compiler, error) // nil: the NVRTC of torch's packages
	Folder   string                           // cubins on disk; "": memory only
	Disk     int64                            // limit of the folder in bytes; 0 is DefaultKernelBytes
	Threads  int                              // that compile; 0: half of the cores, at most four
}

const (
	// DefaultKernelBytes bounds the folder of cubins. A cubin has 5 to 37 KB, so there is room for about ten thousand.
	DefaultKernelBytes = 256 << 20
	// Bytes of loaded cubins that no program of a session uses now.
	kernelMemory = 256 << 20
	// maxPlans is how many plans of a program are kept, one for each set of sizes: batches have a few sizes,
	// sequences more.
	maxPlans = 16
)

// code is a loaded cubin: a word for each of its entries. It is unloaded when it is garbage.
type code struct {
	entries map[string]uint64
}

// launcher is shared by all sessions of a device.
type launcher struct {
	cache   *kernels.Cache
	device  cuda.Device
	warning atomic.Pointer[string] // the only one; nil while there is none
}

// newLauncher makes the launcher of a device that takes machine code. load loads a cubin; any thread may call it.
func newLauncher(
	k Kernels, torchLib string, info Info, log *slog.Logger, load func(cubin []byte, entries []string) (any, error),
) (*launcher, error) {
	l := &launcher{device: cuda.Device{SMs: info.Processors}}
	config := kernels.Config{
		Compiler: k.Compiler, Load: load, Arch: info.Arch, Options: cuda.Options[:],
		Folder: k.Folder, Disk: cmp.Or(k.Disk, DefaultKernelBytes), Memory: kernelMemory,
		Threads: cmp.Or(k.Threads, min(4, max(1, goruntime.NumCPU()/2))),
		Warn: func(text string) {
			l.warning.Store(&text)
			if log != nil {
				log.Warn(text)
			}
		},
	}
	if config.Compiler == nil {
		config.Compiler = func() (kernels.Compiler, error) {
			path := kernels.Find(torchLib)
			if path == "" {
				return nil, errors.New("torch has come without NVRTC, which is in its CUDA packages")
			}
			return kernels.Open(path)
		}
	}
	c, err := kernels.New(config)
	if err != nil { // the folder cannot be used: compiling again costs only time
		if log != nil {
			log.Warn("compiled kernels are not kept on disk", "error", err)
		}
		config.Folder = ""
		c, err = kernels.New(config)
	}
	l.cache = c
	return l, err
}

// plans has the launches of one program's kernels. Only the session's thread uses it.
type plans struct {
	l      *launcher
	p      *program.Program
	hashes [][sha256.Size]byte // of kernels
	groups []group
	shape  []uint32 // the parameters that launches depend on, without numbers
	made   map[choice]*kernels.Kernel
	recent []*plan // the most recently used first
	// Kernels that this program was the first to request, until they are ready.
	awaited []*kernels.Kernel
}

// group is a fused step that kernels may compute. A fused step that begins with calls that have results is not one:
// these calls draw random numbers as PyTorch's CPU does.
type group struct {
	step    uint32
	kernels []uint32 // indices of its kernel steps
}

// choice is a kernel of the program in one of its variants.
type choice struct {
	kernel  uint32
	variant string
}

// plan has the launches for one set of sizes.
type plan struct {
	shape   []uint64 // values of plans.shape
	groups  []planned
	pending int // groups with pending kernels; -1 before the first look
	words   []uint64
	numbers []number // where words has numbers of the call
}

// planned is a group with its launches. When no group is pending any more, launches is nil: the words have them.
type planned struct {
	step     uint32
	state    kernels.State // Failed also if the kernels do not fit the sizes
	launches []launch
	code     []*kernels.Kernel // keeps the code of the words loaded
}

type launch struct {
	cuda.Launch
	step uint32
	code *kernels.Kernel
	at   []program.Instance
}

// number is the position of a number of the call in the words of a plan.
type number struct {
	word  int
	arg   *program.Arg
	class kernel.Class
	value uint64 // of the parameter that the words were made for
	param uint32
}

// newPlans returns the plans of a valid program, nil if it has no group.
func newPlans(l *launcher, p *program.Program) *plans {
	s := &plans{l: l, p: p, made: map[choice]*kernels.Kernel{}}
	for i := 0; i < len(p.Steps); i++ {
		f, ok := p.Steps[i].(*program.Fused)
		if !ok {
			continue
		}
		g, draws := group{step: uint32(i)}, false
		for j := i + 1; j <= i+int(f.Kernels); j++ {
			switch s := p.Steps[j].(type) {
			case *program.Call:
				draws = draws || len(s.Results) > 0
			case *program.Kernel:
				g.kernels = append(g.kernels, uint32(j))
			}
		}
		if !draws {
			s.groups = append(s.groups, g)
			for _, j := range g.kernels {
				s.shape = bind.Shape(s.shape, p, p.Steps[j].(*program.Kernel))
			}
		}
		i += int(f.Kernels) + int(f.Plain)
	}
	if len(s.groups) == 0 {
		return nil
	}
	slices.Sort(s.shape)
	s.shape = slices.Compact(s.shape)
	for _, k := range p.Kernels {
		s.hashes = append(s.hashes, sha256.Sum256([]byte(k.String())))
	}
	return s
}

// launches returns the words of a call for the executor (csrc/abi/mycelya.h). The plan owns them; they are valid
// until the next call. waiting is the number of groups that are not launched because their kernels are pending.
func (s *plans) launches(params []uint64) (words []uint64, waiting int) {
	p := s.find(params)
	if p.pending != 0 {
		p.takeReady(params)
	}
	for i := range p.numbers {
		if n := &p.numbers[i]; params[n.param] != n.value {
			n.value = params[n.param]
			p.words[n.word] = bind.Number(n.arg, params).Bits(n.class)
		}
	}
	return p.words, p.pending
}

// find returns the plan for the sizes of a call.
func (s *plans) find(params []uint64) *plan {
	same := func(p *plan) bool {
		for i, at := range s.shape {
			if p.shape[i] != params[at] {
				return false
			}
		}
		return true
	}
	i := slices.IndexFunc(s.recent, same)
	if i < 0 {
		if len(s.recent) < maxPlans {
			s.recent = append(s.recent, nil)
		}
		i = len(s.recent) - 1
		s.recent[i] = s.plan(params)
	}
	if i > 0 { // to the front
		p := s.recent[i]
		copy(s.recent[1:i+1], s.recent[:i])
		s.recent[0] = p
	}
	return s.recent[0]
}

// plan makes the plan for the sizes of a call, and requests its kernels.
func (s *plans) plan(params []uint64) *plan {
	p := &plan{pending: -1}
	for _, at := range s.shape {
		p.shape = append(p.shape, params[at])
	}
	for _, g := range s.groups {
		out := planned{step: g.step, state: kernels.Pending}
		for _, step := range g.kernels {
			op := s.p.Steps[step].(*program.Kernel)
			k := s.p.Kernels[op.Kernel]
			instances, err := bind.Instances(k, s.p, op, params)
			if err != nil { // the group's operators run instead, and report the error if there is one
				out.state, out.launches = kernels.Failed, nil
				break
			}
			for _, l := range cuda.Launches(k, instances, s.l.device) {
				out.launches = append(out.launches, launch{l, step, s.want(op.Kernel, l.Variant), op.Instances})
			}
		}
		p.groups = append(p.groups, out)
	}
	return p
}

// want requests a kernel's variant from the cache.
func (s *plans) want(number uint32, v cuda.Variant) *kernels.Kernel {
	at := choice{number, v.String()}
	c, ok := s.made[at]
	if !ok {
		k, fresh := s.p.Kernels[number], false
		id := sha256.Sum256(append(s.hashes[number][:], at.variant...))
		c, fresh = s.l.cache.Want(id, func() cuda.Source { return cuda.Print(k, v) })
		s.made[at] = c
		if fresh {
			s.awaited = append(s.awaited, c)
		}
	}
	return c
}

// takeReady finds the groups that have become ready, and encodes the words of all ready groups.
func (p *plan) takeReady(params []uint64) {
	pending := 0
	for i := range p.groups {
		g := &p.groups[i]
		if g.state == kernels.Pending {
			g.look()
		}
		if g.state == kernels.Pending {
			pending++
		}
	}
	if pending == p.pending {
		return
	}
	p.pending = pending
	p.encode(params)
	if pending > 0 {
		return
	}
	for i := range p.groups {
		g := &p.groups[i]
		for _, l := range g.launches {
			if g.state == kernels.Ready && !slices.Contains(g.code, l.code) {
				g.code = append(g.code, l.code)
			}
		}
		g.launches = nil
	}
}

// look sets the state of a group. A group is launched as a whole.
func (g *planned) look() {
	g.state = kernels.Ready
	for _, l := range g.launches {
		switch l.code.State() {
		case kernels.Failed:
			g.state = kernels.Failed
			return
		case kernels.Pending:
			g.state = kernels.Pending
		}
	}
}

// encode encodes the words of all ready groups.
func (p *plan) encode(params []uint64) {
	p.words, p.numbers = p.words[:0], p.numbers[:0]
	for _, g := range p.groups {
		if g.state != kernels.Ready {
			continue
		}
		p.words = append(p.words, uint64(g.step), uint64(len(g.launches)))
		for _, l := range g.launches {
			p.launch(&l, params)
		}
	}
}

func (p *plan) launch(l *launch, params []uint64) {
	table := uint64(0)
	if l.Variant.Table {
		table = 1
	}
	entry := l.code.Code().(*code).entries[l.Entry]
	p.words = append(p.words, uint64(l.step), entry, uint64(l.Grid), uint64(l.Block[0]), uint64(l.Block[1]), table,
		uint64(l.Scratch), uint64(l.ScratchWord), uint64(len(l.Pointers)))
	for _, operand := range l.Pointers {
		p.words = append(p.words, uint64(operand))
	}
	p.words = append(p.words, uint64(len(l.Args[0])), uint64(len(l.Args)))
	for i, args := range l.Args {
		p.words = append(p.words, uint64(l.Instances[i]))
		first := len(p.words)
		p.words = append(p.words, args...)
		for _, w := range l.Numbers {
			arg := &l.at[l.Instances[i]].Numbers[w.Number]
			param, ok := bind.NumberParam(arg)
			if !ok {
				continue
			}
			n := number{word: first + w.Word, arg: arg, class: w.Class, value: params[param], param: param}
			p.words[n.word] = bind.Number(arg, params).Bits(w.Class)
			p.numbers = append(p.numbers, n)
		}
	}
	p.words = append(p.words, uint64(len(l.Chunks)))
	p.words = append(p.words, l.Chunks...)
}

// ready removes the kernels from awaited that are no longer pending, and returns the ready ones.
func (s *plans) ready() (out []*kernels.Kernel) {
	s.awaited = slices.DeleteFunc(s.awaited, func(k *kernels.Kernel) bool {
		if k.State() == kernels.Ready {
			out = append(out, k)
		}
		return k.State() != kernels.Pending
	})
	return out
}

// report collects the counts of kernels for a session's next Done.
type report struct {
	told   proto.Kernels
	any    bool
	warned bool
}

// ran adds the counts of a run of a program with so many groups.
func (r *report) ran(all, waiting int, k *proto.Kernels) {
	if all == 0 && k.Waits == 0 {
		return
	}
	r.any = true
	r.told.Groups += k.Groups
	r.told.Launched += k.Launched
	r.told.Ops += k.Ops
	r.told.Waiting += uint32(waiting)
	r.told.Unfused += uint32(max(0, all-waiting-int(k.Groups)-int(k.Tried-k.Wrong)))
	r.told.Tried += k.Tried
	r.told.Waits += k.Waits
	if r.told.Wrong == 0 {
		r.told.WrongStep, r.told.WrongText = k.WrongStep, k.WrongText
	}
	r.told.Wrong += k.Wrong
}

// made counts kernels that have become ready.
func (r *report) made(list []*kernels.Kernel) {
	for _, k := range list {
		r.any = true
		if took := k.Compiled(); took > 0 {
			r.told.Compiled++
			r.told.CompileNanoseconds += uint64(took)
		} else {
			r.told.Cached++
		}
	}
}

// take returns the report, nil if it is empty, and empties it.
func (r *report) take(l *launcher) *proto.Kernels {
	if l != nil && !r.warned {
		if text := l.warning.Load(); text != nil {
			r.told.Warning, r.any, r.warned = *text, true, true
		}
	}
	if !r.any {
		return nil
	}
	out := protobuf.Clone(&r.told).(*proto.Kernels)
	protobuf.Reset(&r.told)
	r.any = false
	return out
}
