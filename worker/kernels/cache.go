// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package kernels compiles printed kernels in the background and caches the machine code by content, in memory and on
// disk. It never runs a kernel and never blocks its caller. If a kernel cannot be compiled, its program runs as
// operators.
package kernels

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/ristretto"

	"github.com/mycelya/mycelya/codegen/cuda"
)

// Compiler compiles a source to a cubin for an architecture; NVRTC is one. A cubin depends on the compiler's version.
type Compiler interface {
	Version() string
	Compile(source, arch string, options []string) (cubin []byte, log string, err error)
}

// Config configures a cache.
type Config struct {
	// Compiler opens the compiler. It is called once, at the first request. After an error every kernel fails.
	Compiler func() (Compiler, error)
	// Load loads a cubin with these entries; any thread of the cache may call it. If it is nil, the cubin itself is
	// kept.
	Load    func(cubin []byte, entries []string) (code any, err error)
	Arch    string // "sm_90"
	Options []string
	Folder  string // cubins on disk; "": memory only
	Disk    int64  // limit of the folder in bytes
	Memory  int64  // limit of the ready cubins in bytes
	Threads int    // that compile
	Warn    func(text string)
}

// State is the state of a kernel.
type State uint8

const (
	Pending State = iota + 1 // queued, or being read, compiled or loaded
	Ready
	Failed // not tried again
)

// ID identifies a kernel in memory: requests with the same ID must print the same text.
type ID [sha256.Size]byte

type key [sha256.Size]byte

func (k key) String() string { return hex.EncodeToString(k[:]) }

// Kernel is the machine code of a text. Code and Compiled are valid once the kernel is not pending.
type Kernel struct {
	id       ID
	print    func() cuda.Source
	state    atomic.Uint32
	done     chan struct{} // closed when the kernel is not pending
	code     any
	bytes    int64
	compiled time.Duration
}

// State never waits.
func (k *Kernel) State() State { return State(k.state.Load()) }

// Wait waits until the kernel is not pending.
func (k *Kernel) Wait() State {
	<-k.done
	return k.State()
}

// Code is the result of Config.Load for a ready kernel. It stays valid while it is referenced.
func (k *Kernel) Code() any { return k.code }

// Compiled is the time of the compilation, 0 if the cubin was on disk.
func (k *Kernel) Compiled() time.Duration { return k.compiled }

// Cache holds the kernels of one architecture.
type Cache struct {
	config   Config
	compiler func() (Compiler, error)
	disk     *disk // nil without a folder

	made *ristretto.Cache // kernels that are not pending; one that it loses is read or compiled again

	lock    sync.Mutex
	wake    *sync.Cond
	pending map[ID]*Kernel
	queue   []*Kernel
	warned  bool
	closed  bool
	threads sync.WaitGroup
}

// New starts a cache's threads.
func New(config Config) (*Cache, error) {
	c := &Cache{config: config, pending: map[ID]*Kernel{}}
	c.compiler = sync.OnceValues(config.Compiler)
	c.wake = sync.NewCond(&c.lock)
	if config.Folder != "" {
		d, err := openDisk(config.Folder, config.Disk)
		if err != nil {
			return nil, err
		}
		c.disk = d
	}
	var err error
	if c.made, err = ristretto.NewCache(&ristretto.Config{NumCounters: 100_000, MaxCost: config.Memory, BufferItems: 64,
		IgnoreInternalCost: true}); err != nil {
		return nil, err
	}
	for range max(1, config.Threads) {
		c.threads.Go(c.work)
	}
	return c, nil
}

// Close ends the threads after their current kernels. Queued kernels stay pending.
func (c *Cache) Close() {
	c.lock.Lock()
	c.closed = true
	c.wake.Broadcast()
	c.lock.Unlock()
	c.threads.Wait()
	c.made.Close()
}

// keyOf hashes everything that a cubin depends on, each part with its length.
func (c *Cache) keyOf(text, compiler string) key {
	h := sha256.New()
	for _, s := range append([]string{text, c.config.Arch, compiler}, c.config.Options...) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return key(h.Sum(nil))
}

// Want requests a kernel and returns at once. fresh: this is the first request for it. A thread of the cache calls
// print, if the kernel is not in memory.
func (c *Cache) Want(id ID, print func() cuda.Source) (k *Kernel, fresh bool) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if k := c.pending[id]; k != nil {
		return k, false
	}
	if made, ok := c.made.Get(id[:]); ok {
		return made.(*Kernel), false
	}
	k = &Kernel{id: id, print: print, done: make(chan struct{})}
	k.state.Store(uint32(Pending))
	c.pending[id] = k
	c.queue = append(c.queue, k)
	c.wake.Signal()
	return k, true
}

func (c *Cache) work() {
	for {
		c.lock.Lock()
		for len(c.queue) == 0 && !c.closed {
			c.wake.Wait()
		}
		if c.closed {
			c.lock.Unlock()
			return
		}
		k := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		c.lock.Unlock()
		c.finish(k, c.make(k))
	}
}

// make reads a kernel from disk or compiles it, and loads it. It returns a warning if it fails. A panic fails the
// kernel, not the process.
func (c *Cache) make(k *Kernel) (warning string) {
	defer func() {
		if r := recover(); r != nil {
			warning = fmt.Sprintf("A fused kernel could not be made, so its programs run without it: %v. Please report this.", r)
		}
	}()
	compiler, err := c.compiler()
	if err != nil {
		return fmt.Sprintf("Programs run without fused kernels, because this worker has no compiler for them: %v.", err)
	}
	source := k.print()
	key := c.keyOf(source.Text, compiler.Version())
	if c.disk != nil {
		if cubin := c.disk.read(key); cubin != nil && c.load(k, cubin, source.Entries) == nil {
			return ""
		}
	}
	began := time.Now()
	cubin, log, err := compiler.Compile(source.Text, c.config.Arch, c.config.Options)
	k.compiled = time.Since(began)
	if err == nil && len(cubin) == 0 {
		err = fmt.Errorf("the compiler made no code\n%s", log)
	}
	if err == nil {
		err = c.load(k, cubin, source.Entries)
	}
	if err != nil {
		where := "A log could not be written."
		if c.disk != nil {
			if path, failed := c.disk.log(key, source.Text, err); failed == nil {
				where = path + " has its source and the error."
			}
		}
		return "A fused kernel could not be made for " + c.config.Arch + ", so its programs run without it. " + where
	}
	if c.disk != nil {
		c.disk.write(key, cubin)
	}
	return ""
}

// load loads a cubin. If a cubin from disk cannot be loaded, make compiles it again and overwrites the file.
func (c *Cache) load(k *Kernel, cubin []byte, entries []string) error {
	code, err := any(cubin), error(nil)
	if c.config.Load != nil {
		if code, err = c.config.Load(cubin, entries); err != nil {
			return err
		}
	}
	k.code, k.bytes = code, int64(len(cubin))
	return nil
}

func (c *Cache) finish(k *Kernel, warning string) {
	k.print = nil
	k.bytes += 256 // for the Kernel itself
	c.made.Set(k.id[:], k, k.bytes)
	c.made.Wait() // it is found there before it leaves pending, and Want waits for none of this
	c.lock.Lock()
	defer c.lock.Unlock()
	state := Ready
	if warning != "" {
		state = Failed
		if !c.warned && c.config.Warn != nil {
			c.warned = true
			c.config.Warn(warning)
		}
	}
	delete(c.pending, k.id)
	k.state.Store(uint32(state))
	close(k.done)
}
