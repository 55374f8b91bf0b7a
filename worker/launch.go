// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"log/slog"
	goruntime "runtime"
	"slices"
	"sync/atomic"

	pb "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/codegen/bind"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/kernels"
)

// Kernels says where machine code of kernels comes from, and where it is kept. Only a device that takes such code asks.
type Kernels struct {
	Compiler func() (kernels.Compiler, error) // nil: the NVRTC of torch's packages
	Folder   string                           // on disk; "": in memory only
	Disk     int64                            // most bytes in the folder; 0 is DefaultKernelBytes
	Threads  int                              // that compile at once; 0: half of the cores, four at most
}

const (
	// DefaultKernelBytes bounds the folder of cubins. One has 5 to 37 KB, so it takes ten thousand of them.
	DefaultKernelBytes = 256 << 20
	// Cubins that are loaded, besides those that a program at hand needs.
	kernelMemory = 256 << 20
	// maxPlans is how many sizes of a program have their launches kept: batches come in a few sizes, and sequences in some more.
	maxPlans = 16
)

// code is a loaded cubin: a word for each of its entries. It stays loaded as long as somebody holds it.
type code struct {
	entries map[string]uint64
}

// launcher is what the launches of a device's sessions have in common.
type launcher struct {
	cache   *kernels.Cache
	device  cuda.Device
	warning atomic.Pointer[string] // the only one, once there is something to say
}

// newLauncher makes the launcher of a device that takes code; load makes code of a cubin, on any thread.
func newLauncher(k Kernels, torchLib string, info Info, log *slog.Logger, load func(cubin []byte, entries []string) (any, error)) (*launcher, error) {
	l := &launcher{device: cuda.Device{SMs: info.Processors}}
	config := kernels.Config{
		Compiler: k.Compiler, Load: load, Arch: info.Arch, Options: cuda.Options[:], Folder: k.Folder, Disk: cmp.Or(k.Disk, DefaultKernelBytes),
		Memory: kernelMemory, Threads: cmp.Or(k.Threads, min(4, max(1, goruntime.NumCPU()/2))),
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
	if err != nil { // of the folder: it costs time only
		if log != nil {
			log.Warn("compiled kernels are not kept on disk", "error", err)
		}
		config.Folder = ""
		c, err = kernels.New(config)
	}
	l.cache = c
	return l, err
}

// plans has the launches of one program's kernels. It is used from the session's thread alone.
type plans struct {
	l       *launcher
	p       *proto.Program
	kernels []*kernel.Kernel
	hashes  [][sha256.Size]byte // of kernels
	groups  []group
	shape   []uint32 // the parameters that launches depend on, numbers apart
	made    map[choice]*kernels.Kernel
	recent  []*plan // the last used first
	// Kernels that nobody has wanted before this program, until they are ready.
	awaited []*kernels.Kernel
}

// group is a fused step that kernels may compute. Those that begin with calls are none: the calls draw random numbers as PyTorch's CPU does.
type group struct {
	step    uint32
	kernels []uint32 // steps
}

// choice is a kernel of the program in one of its variants.
type choice struct {
	kernel  uint32
	variant string
}

// plan has the launches for some sizes.
type plan struct {
	shape   []uint64 // values of plans.shape
	groups  []planned
	pending int // groups whose kernels are being made; -1: nobody has looked
	words   []uint64
	numbers []number // of words
}

// planned is a group with its launches, which are nil once no group is pending any more: they are in the words then.
type planned struct {
	step     uint32
	state    kernels.State // Failed also if the kernels don't fit the sizes
	launches []launch
	code     []*kernels.Kernel // which the words are of
}

type launch struct {
	cuda.Launch
	step uint32
	code *kernels.Kernel
	at   []*proto.KernelOp_Instance
}

// number is where a number of a call stands in the words of a plan.
type number struct {
	word  int
	arg   *proto.Arg
	class kernel.Class
	value uint64 // of its parameter, as it is in the words
	param uint32
}

// newPlans gives the plans of a valid program, nil if it has nothing to launch.
func newPlans(l *launcher, p *proto.Program) (*plans, error) {
	s := &plans{l: l, p: p, made: map[choice]*kernels.Kernel{}}
	for i := 0; i < len(p.Steps); i++ {
		f := p.Steps[i].GetFused()
		if f == nil {
			continue
		}
		g, calls := group{step: uint32(i)}, false
		for j := i + 1; j <= i+int(f.Kernels); j++ {
			calls = calls || p.Steps[j].GetCall() != nil
			if op := p.Steps[j].GetKernel(); op != nil {
				g.kernels = append(g.kernels, uint32(j))
			}
		}
		if !calls {
			s.groups = append(s.groups, g)
			for _, j := range g.kernels {
				s.shape = bind.Shape(s.shape, p, p.Steps[j].GetKernel())
			}
		}
		i += int(f.Kernels) + int(f.Plain)
	}
	if len(s.groups) == 0 {
		return nil, nil
	}
	slices.Sort(s.shape)
	s.shape = slices.Compact(s.shape)
	for _, m := range p.Kernels {
		k, err := m.Decode()
		if err != nil {
			return nil, err
		}
		text, err := pb.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return nil, err
		}
		s.kernels = append(s.kernels, k)
		s.hashes = append(s.hashes, sha256.Sum256(text))
	}
	return s, nil
}

// launches are the words of a call for the executor (csrc/abi/mycelya.h), which are those of the plan: they hold until the next call.
// waiting are the groups that aren't launched yet, because their kernels are still being made.
func (s *plans) launches(params []uint64) (words []uint64, waiting int) {
	p := s.find(params)
	if p.pending != 0 {
		p.settle(params)
	}
	for i := range p.numbers {
		if n := &p.numbers[i]; params[n.param] != n.value {
			n.value = params[n.param]
			p.words[n.word] = bind.Number(n.arg, params).Bits(n.class)
		}
	}
	return p.words, p.pending
}

// find gives the plan for the sizes of a call.
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

// plan makes the plan for the sizes of a call, and sees to it that its kernels will be ready.
func (s *plans) plan(params []uint64) *plan {
	p := &plan{pending: -1}
	for _, at := range s.shape {
		p.shape = append(p.shape, params[at])
	}
	for _, g := range s.groups {
		out := planned{step: g.step, state: kernels.Pending}
		for _, step := range g.kernels {
			op := s.p.Steps[step].GetKernel()
			k := s.kernels[op.Kernel]
			instances, err := bind.Instances(k, s.p, op, params)
			if err != nil { // the operators in their place say what is wrong, if anything is
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

// want gives the code of a kernel's variant, which somebody else may want too.
func (s *plans) want(number uint32, v cuda.Variant) *kernels.Kernel {
	at := choice{number, v.String()}
	c, ok := s.made[at]
	if !ok {
		k, fresh := s.kernels[number], false
		c, fresh = s.l.cache.Want(sha256.Sum256(append(s.hashes[number][:], at.variant...)), func() cuda.Source { return cuda.Print(k, v) })
		s.made[at] = c
		if fresh {
			s.awaited = append(s.awaited, c)
		}
	}
	return c
}

// settle looks which groups have got ready, and makes the words of all that are.
func (p *plan) settle(params []uint64) {
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

// look sets the state of a group, which is launched as a whole.
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

// encode makes the words of all groups that are ready.
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
	p.words = append(p.words, uint64(l.step), l.code.Code().(*code).entries[l.Entry], uint64(l.Grid), uint64(l.Block[0]), uint64(l.Block[1]), table,
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
			arg := l.at[l.Instances[i]].Numbers[w.Number]
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

// ready takes those kernels from the awaited ones that aren't pending any more.
func (s *plans) ready() (out []*kernels.Kernel) {
	s.awaited = slices.DeleteFunc(s.awaited, func(k *kernels.Kernel) bool {
		if k.State() == kernels.Ready {
			out = append(out, k)
		}
		return k.State() != kernels.Pending
	})
	return out
}

// report gathers what a session tells of its kernels.
type report struct {
	told   proto.Kernels
	any    bool
	warned bool
}

// ran counts the groups of a run: all of them, and what kernels have computed.
func (r *report) ran(all, waiting, groups, launched, ops int) {
	if all == 0 {
		return
	}
	r.any = true
	r.told.Groups += uint32(groups)
	r.told.Launched += uint32(launched)
	r.told.Ops += uint32(ops)
	r.told.Waiting += uint32(waiting)
	r.told.Unfused += uint32(max(0, all-groups-waiting))
}

// made counts kernels that have got ready.
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

// take gives what has been gathered, nil if nothing was, and begins again.
func (r *report) take(l *launcher) *proto.Kernels {
	if l != nil && !r.warned {
		if text := l.warning.Load(); text != nil {
			r.told.Warning, r.any, r.warned = *text, true, true
		}
	}
	if !r.any {
		return nil
	}
	out := pb.Clone(&r.told).(*proto.Kernels)
	pb.Reset(&r.told)
	r.any = false
	return out
}
