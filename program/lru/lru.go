// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package lru keeps values within a bound of bytes. A value that was just put must not be refused, so the values that
// were used longest ago go: a program is sent because it is about to be called.
package lru

import (
	"math"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Cache keeps values by key. It is used from one goroutine.
type Cache[K comparable, V any] struct {
	most, bytes int64
	values      *simplelru.LRU[K, sized[V]]
}

type sized[V any] struct {
	value V
	bytes int64
}

// New makes a cache for so many bytes. gone is called for each value that leaves the cache; it may be nil.
func New[K comparable, V any](most int64, gone func(V)) *Cache[K, V] {
	c := &Cache[K, V]{most: most}
	// The number of values has no bound, and a positive one is no error.
	c.values, _ = simplelru.NewLRU(math.MaxInt, func(_ K, v sized[V]) {
		c.bytes -= v.bytes
		if gone != nil {
			gone(v.value)
		}
	})
	return c
}

// Get returns the value of a key, the zero value if there is none.
func (c *Cache[K, V]) Get(key K) V {
	v, _ := c.values.Get(key)
	return v.value
}

// Put adds a value, or replaces the one of its key. It stays until the next Put even if it exceeds the bound alone.
func (c *Cache[K, V]) Put(key K, value V, bytes int64) {
	c.values.Remove(key)
	c.values.Add(key, sized[V]{value, bytes})
	for c.bytes += bytes; c.bytes > c.most && c.values.Len() > 1; {
		c.values.RemoveOldest()
	}
}

// Clear removes all values.
func (c *Cache[K, V]) Clear() { c.values.Purge() }
