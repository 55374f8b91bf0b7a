// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package kernels makes machine code of printed kernels, in the background, and keeps it: by content, in memory and on disk. It never runs
// any, never blocks whoever asks, and a kernel that can't be made is one that isn't there: its program runs as its operators.
package kernels

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/codegen/cuda"
)

// Compiler makes a cubin of a source for an architecture; NVRTC is one. Version is a part of what comes out.
type Compiler interface {
	Version() string
	Compile(source, arch string, options []string) (cubin []byte, log string, err error)
}

// Config is what a cache is made of.
type Config struct {
	// Compiler opens the compiler, once, when the first kernel is wanted. An error says why there is none: no kernel is ever ready then.
	Compiler func() (Compiler, error)
	// Load makes what is kept of a cubin whose functions have names; any thread of the cache may call it. Nil: the cubin.
	Load    func(cubin []byte, entries []string) (code any, err error)
	Arch    string // "sm_90"
	Options []string
	Folder  string // on disk; "": memory only
	Disk    int64  // most bytes there
	Memory  int64  // most bytes of cubins that are ready
	Threads int    // that compile
	Warn    func(text string)
}

// State is how far a kernel is.
type State uint8

const (
	Pending State = iota + 1 // it is being made, or read
	Ready
	Failed // it can't be made, and isn't tried again
)

// ID is what a kernel is in memory: whoever gives the same one wants the same text.
type ID [sha256.Size]byte

type key [sha256.Size]byte

func (k key) String() string { return hex.EncodeToString(k[:]) }

// Kernel is the machine code of a text. What its methods but State and Wait give, holds once it is no longer pending.
type Kernel struct {
	id       ID
	print    func() cuda.Source
	state    atomic.Uint32
	done     chan struct{} // closed when it is no longer pending
	code     any
	bytes    int64
	compiled time.Duration
	used     *list.Element // in Cache.recent, if it isn't pending
}

// State returns at once.
func (k *Kernel) State() State { return State(k.state.Load()) }

// Wait returns when the kernel is no longer pending.
func (k *Kernel) Wait() State {
	<-k.done
	return k.State()
}

// Code is what Config.Load made of a kernel that is ready. It stays usable as long as somebody holds it.
func (k *Kernel) Code() any { return k.code }

// Compiled is how long the compiler took; 0: the kernel was on disk.
func (k *Kernel) Compiled() time.Duration { return k.compiled }

// Cache holds the kernels of one architecture.
type Cache struct {
	config   Config
	compiler func() (Compiler, error)
	disk     *disk // nil: none

	lock    sync.Mutex
	wake    *sync.Cond
	kernels map[ID]*Kernel
	queue   []*Kernel
	recent  *list.List // of kernels that aren't pending, the last used first
	bytes   int64      // of them
	warned  bool
	closed  bool
	threads sync.WaitGroup
}

// New starts a cache's threads.
func New(config Config) (*Cache, error) {
	c := &Cache{config: config, compiler: sync.OnceValues(config.Compiler), kernels: map[ID]*Kernel{}, recent: list.New()}
	c.wake = sync.NewCond(&c.lock)
	if config.Folder != "" {
		d, err := openDisk(config.Folder, config.Disk)
		if err != nil {
			return nil, err
		}
		c.disk = d
	}
	for range max(1, config.Threads) {
		c.threads.Go(c.work)
	}
	return c, nil
}

// Close ends the threads after what they are at; what is pending stays so.
func (c *Cache) Close() {
	c.lock.Lock()
	c.closed = true
	c.wake.Broadcast()
	c.lock.Unlock()
	c.threads.Wait()
}

// keyOf is the identity of a cubin: everything that it depends on, each with its length.
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

// Want gives a kernel, and sees to it that it will be ready; fresh: nobody had wanted it. It returns at once: print is called by a thread
// of the cache, if at all.
func (c *Cache) Want(id ID, print func() cuda.Source) (k *Kernel, fresh bool) {
	c.lock.Lock()
	defer c.lock.Unlock()
	k, ok := c.kernels[id]
	if !ok {
		k = &Kernel{id: id, print: print, done: make(chan struct{})}
		k.state.Store(uint32(Pending))
		c.kernels[id] = k
		c.queue = append(c.queue, k)
		c.wake.Signal()
	}
	if k.used != nil {
		c.recent.MoveToFront(k.used)
	}
	return k, !ok
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
		c.settle(k, c.make(k))
	}
}

// make reads a kernel from disk or compiles it, and loads it; the warning says why there is none. A mistake of ours costs the kernel, not
// the process.
func (c *Cache) make(k *Kernel) (warning string) {
	defer func() {
		if r := recover(); r != nil {
			warning = fmt.Sprintf("A fused kernel could not be made, so its programs run without it: %v. Please report this.", r)
		}
	}()
	compiler, err := c.compiler()
	if err != nil {
		return fmt.Sprintf("Programs run without fused kernels, since there is no compiler for them on this worker: %v.", err)
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
		err = fmt.Errorf("the compiler made nothing\n%s", log)
	}
	if err == nil {
		err = c.load(k, cubin, source.Entries)
	}
	if err != nil {
		where := "A log could not be written."
		if c.disk != nil {
			if path, failed := c.disk.log(key, source.Text, err); failed == nil {
				where = path + " has its source and what was said of it."
			}
		}
		return "A fused kernel could not be made for " + c.config.Arch + ", so its programs run without it. " + where
	}
	if c.disk != nil {
		c.disk.write(key, cubin)
	}
	return ""
}

// load makes code of a cubin. What was read from disk and can't be loaded is made again, and written over.
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

func (c *Cache) settle(k *Kernel, warning string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	k.print = nil
	k.bytes += 256 // for what is around it
	state := Ready
	if warning != "" {
		state = Failed
		if !c.warned && c.config.Warn != nil {
			c.warned = true
			c.config.Warn(warning)
		}
	}
	k.used = c.recent.PushFront(k)
	c.bytes += k.bytes
	for c.bytes > c.config.Memory && c.recent.Len() > 1 {
		old := c.recent.Remove(c.recent.Back()).(*Kernel)
		c.bytes -= old.bytes
		delete(c.kernels, old.id) // wanted again, it is read or made again
	}
	k.state.Store(uint32(state))
	close(k.done)
}
