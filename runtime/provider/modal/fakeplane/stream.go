// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakeplane

import (
	"context"
	"sync"
)

// output is what a process has written, for readers that may come later.
type output struct {
	mu   sync.Mutex
	all  []byte
	over bool
	news chan struct{} // closed when there is more, or over
}

func newOutput() *output { return &output{news: make(chan struct{})} }

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, b...)
	o.tell()
	return len(b), nil
}

// end says that nothing more comes.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	o.tell()
}

func (o *output) tell() {
	close(o.news)
	o.news = make(chan struct{})
}

// after returns what comes after the first n bytes; it waits for some. over: nothing follows it.
func (o *output) after(ctx context.Context, n int) (more []byte, over bool) {
	for {
		o.mu.Lock()
		news := o.news
		if n < len(o.all) || o.over {
			defer o.mu.Unlock()
			return o.all[min(n, len(o.all)):len(o.all):len(o.all)], o.over
		}
		o.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return nil, false
		}
	}
}
