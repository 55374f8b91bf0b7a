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
)

// Compiler makes a cubin of a source for an architecture; NVRTC is one. Version is a part of what comes out.
type Compiler interface {
	Version() string
	Compile(source, arch string, options []string) (cubin []byte, log string, err error)
}

// Config is what a cache is made of.
type Config struct {
	Compiler Compiler // nil: there is none, and no kernel is ever ready
	Arch     string   // "sm_90"
	Options  []string
	Folder   string // on disk; "": memory only
	Disk     int64  // most bytes there
	Memory   int64  // most bytes of what is ready
	Threads  int    // that compile
	Warn     func(text string)
}

// State is how far a kernel is.
type State uint8

const (
	Pending State = iota + 1 // it is being made, or read
	Ready
	Failed // it can't be made, and isn't tried again
)

type key [sha256.Size]byte

func (k key) String() string { return hex.EncodeToString(k[:]) }

type entry struct {
	key    key
	source string
	state  State
	cubin  []byte
	done   chan struct{} // closed when it is no longer pending
	used   *list.Element // in Cache.recent, if it isn't pending
}

// bytes is what an entry takes, about.
func (e *entry) bytes() int64 { return int64(len(e.cubin)) + 256 }

// Cache holds the cubins of one architecture.
type Cache struct {
	config Config
	disk   *disk // nil: none

	lock    sync.Mutex
	wake    *sync.Cond
	entries map[key]*entry
	queue   []*entry
	recent  *list.List // of entries that aren't pending, the last used first
	bytes   int64      // of them
	warned  bool
	closed  bool
	threads sync.WaitGroup
}

// New starts a cache's threads.
func New(config Config) (*Cache, error) {
	c := &Cache{config: config, entries: map[key]*entry{}, recent: list.New()}
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
func (c *Cache) keyOf(source string) key {
	parts := append([]string{source, c.config.Arch}, c.config.Options...)
	if c.config.Compiler != nil {
		parts = append(parts, c.config.Compiler.Version())
	}
	h := sha256.New()
	for _, s := range parts {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return key(h.Sum(nil))
}

// Lookup gives a source's cubin if it is ready, and sees to it that it will be. It returns at once.
func (c *Cache) Lookup(source string) ([]byte, State) {
	e := c.want(source)
	c.lock.Lock()
	defer c.lock.Unlock()
	return e.cubin, e.state
}

// Wait is Lookup when the source is no longer pending.
func (c *Cache) Wait(source string) ([]byte, State) {
	e := c.want(source)
	<-e.done
	c.lock.Lock()
	defer c.lock.Unlock()
	return e.cubin, e.state
}

func (c *Cache) want(source string) *entry {
	k := c.keyOf(source)
	c.lock.Lock()
	defer c.lock.Unlock()
	e, ok := c.entries[k]
	if !ok {
		e = &entry{key: k, source: source, state: Pending, done: make(chan struct{})}
		c.entries[k] = e
		c.queue = append(c.queue, e)
		c.wake.Signal()
	}
	if e.used != nil {
		c.recent.MoveToFront(e.used)
	}
	return e
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
		e := c.queue[0]
		c.queue = c.queue[1:]
		c.lock.Unlock()
		cubin, warning := c.make(e)
		c.settle(e, cubin, warning)
	}
}

// make finds a cubin on disk or compiles it; nil: it can't be made, and why.
func (c *Cache) make(e *entry) (cubin []byte, warning string) {
	if c.config.Compiler == nil {
		return nil, "There is no NVRTC on this worker, so programs run without fused kernels. It comes with torch's CUDA packages."
	}
	if c.disk != nil {
		if cubin := c.disk.read(e.key); cubin != nil {
			return cubin, ""
		}
	}
	cubin, log, err := c.config.Compiler.Compile(e.source, c.config.Arch, c.config.Options)
	if err == nil && len(cubin) == 0 {
		err = fmt.Errorf("the compiler made nothing\n%s", log)
	}
	if err != nil {
		where := "A log could not be written."
		if c.disk != nil {
			if path, failed := c.disk.log(e.key, e.source, err); failed == nil {
				where = path + " has its source and the compiler's words."
			}
		}
		return nil, "A fused kernel could not be compiled for " + c.config.Arch + ", so its programs run without it. " + where
	}
	if c.disk != nil {
		c.disk.write(e.key, cubin)
	}
	return cubin, ""
}

func (c *Cache) settle(e *entry, cubin []byte, warning string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	e.source = ""
	e.state, e.cubin = Ready, cubin
	if cubin == nil {
		e.state = Failed
		if !c.warned && c.config.Warn != nil {
			c.warned = true
			c.config.Warn(warning)
		}
	}
	e.used = c.recent.PushFront(e)
	c.bytes += e.bytes()
	for c.bytes > c.config.Memory && c.recent.Len() > 1 {
		old := c.recent.Remove(c.recent.Back()).(*entry)
		c.bytes -= old.bytes()
		delete(c.entries, old.key) // asked for again, it is read or made again
	}
	close(e.done)
}
