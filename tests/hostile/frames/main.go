// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Command frames is a client over TCP with a valid certificate and bad intentions. It starts the real worker and sends
// the frames of honest sessions with seeded random changes: other programs, parameters, storages and views, frames that
// are missing, doubled, in another order or of another type, and changed, missing and doubled bytes. Several sessions
// run at a time. Beside them, an honest session of the same worker computes all the time.
//
// The command fails if the worker ends, if the honest session sees a wrong value or waits too long, if the end of a
// process is not reported, if the supervisor keeps memory, descriptors, goroutines or processes, if a session panics,
// or if a part of a key is in the worker's log.
//
//	frames -worker PATH [-backend ref] [-exec PATH -torch-lib FOLDER [-fuzz PATH]] [-count 1000000] [-seed 1]
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/tests/remote"
)

type options struct {
	worker, backend, library, torchLib, fuzz, replay, log string
	count, parallel                                       int
	seed, only                                            uint64
	delay                                                 time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.worker, "worker", "", "path of mycelya-worker")
	flag.StringVar(&o.backend, "backend", "ref", "of the worker: ref or torch")
	flag.StringVar(&o.library, "exec", "", "path of libmycelya_exec, for torch")
	flag.StringVar(&o.torchLib, "torch-lib", "", "folder of libtorch_cpu, for torch")
	flag.StringVar(&o.fuzz, "fuzz", "", "path of mycelya_operator_fuzz, whose programs are sent too; empty: none")
	flag.StringVar(&o.replay, "replay", "tests/replay", "folder with folders of graphs")
	flag.StringVar(&o.log, "log", "", "file that gets the worker's log; empty: a file that is kept only after an error")
	flag.IntVar(&o.count, "count", 1_000_000, "number of changed frames that the worker must have taken")
	flag.IntVar(&o.parallel, "parallel", 6, "number of hostile sessions at a time")
	flag.Uint64Var(&o.seed, "seed", 1, "of the changes")
	flag.Uint64Var(&o.only, "session", 0, "run only the session with this number; 0: all")
	flag.DurationVar(&o.delay, "delay", 20*time.Second, "the longest that the honest session may wait for one computation")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "frames:", err)
		os.Exit(1)
	}
}

// Limits of each session. A changed size may ask for any amount of memory and time.
const (
	cpuSeconds  = 15
	memoryBytes = 2 << 30
)

func run(o options) error {
	began := time.Now()
	corpus, err := newCorpus(o.replay, o.fuzz, o.seed)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "frames")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	log := o.log
	if log == "" {
		log = filepath.Join(folder, "log")
	}
	w, err := remote.Start(remote.Options{
		Program: o.worker, Log: log, Flags: []string{"--backend", o.backend, "--exec", o.library,
			"--torch-lib", o.torchLib, "--device", "cpu", "--threads", "1", "--grace", "10s",
			"--state", filepath.Join(folder, "state"),
			"--memory", fmt.Sprint(memoryBytes), "--cpu-seconds", fmt.Sprint(cpuSeconds)},
	})
	if err != nil {
		return err
	}
	c := &campaign{o: o, w: w, corpus: corpus}
	err = errors.Join(c.run(), w.Stop(), w.CheckLog())
	if err != nil {
		return errors.Join(err, keepLog(log))
	}
	fmt.Printf("%s in %v\n", c.summary(), time.Since(began).Round(time.Second))
	return nil
}

// keepLog moves the worker's log to a place where it stays.
func keepLog(log string) error {
	kept := filepath.Join(os.TempDir(), fmt.Sprintf("frames-log-%d", os.Getpid()))
	if err := os.Rename(log, kept); err != nil {
		return err
	}
	return fmt.Errorf("the worker's log is %s", kept)
}

// campaign is the hostile sessions of one worker, and the honest one beside them.
type campaign struct {
	o      options
	w      *remote.Worker
	corpus []example
	start  remote.Usage

	numbers atomic.Uint64
	taken   atomic.Int64
	stop    atomic.Bool

	mu    sync.Mutex
	total counts
	errs  []error
	peak  remote.Usage

	honest honest
}

func (c *campaign) run() (err error) {
	if c.start, err = c.w.Quiet(0, time.Minute); err != nil {
		return err
	}
	if c.o.only > 0 {
		total, err := session(c.w, c.corpus, c.o.seed, c.o.only)
		c.total.add(total)
		return err
	}
	c.honest = honest{w: c.w, delay: c.o.delay}
	var hostile, others sync.WaitGroup
	over := make(chan struct{})
	others.Go(func() { c.failed(c.honest.run(over)) })
	others.Go(func() { c.failed(c.watch(over)) })
	for range c.o.parallel {
		hostile.Go(c.attack)
	}
	hostile.Wait()
	close(over)
	others.Wait()
	return errors.Join(append(c.errs, c.after())...)
}

// attack runs sessions until there were enough changed frames.
func (c *campaign) attack() {
	for !c.stop.Load() && c.taken.Load() < int64(c.o.count) {
		got, err := session(c.w, c.corpus, c.o.seed, c.numbers.Add(1))
		c.taken.Add(int64(got.changed))
		c.mu.Lock()
		c.total.add(got)
		c.mu.Unlock()
		c.failed(err)
	}
}

// failed ends the campaign if there is an error.
func (c *campaign) failed(err error) {
	if err == nil {
		return
	}
	c.stop.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

// Bounds of the supervisor while clients attack it.
const (
	mostMemory      = 512 << 20
	mostDescriptors = 500
	mostGoroutines  = 1000
)

// watch looks at the supervisor until the campaign is over.
func (c *campaign) watch(over <-chan struct{}) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := 1; ; i++ {
		select {
		case <-over:
			return nil
		case <-c.w.Done():
			return errors.New("the worker has ended")
		case <-tick.C:
		}
		u, err := c.w.Usage()
		if err != nil {
			return fmt.Errorf("no status page: %w", err)
		}
		if u.Resident > mostMemory || u.Descriptors > mostDescriptors || u.Goroutines > mostGoroutines {
			return fmt.Errorf("the supervisor uses too much: %v", u)
		}
		c.mu.Lock()
		c.peak.Resident = max(c.peak.Resident, u.Resident)
		c.peak.Descriptors = max(c.peak.Descriptors, u.Descriptors)
		c.peak.Goroutines = max(c.peak.Goroutines, u.Goroutines)
		c.peak.Sessions = max(c.peak.Sessions, u.Sessions)
		c.mu.Unlock()
		if i%15 == 0 {
			fmt.Fprintf(os.Stderr, "%d changed frames, %d sessions; the supervisor: %v\n", c.taken.Load(), c.numbers.Load(), u)
		}
	}
}

// after looks at the supervisor when all clients have gone. It must know of each signal and each code that the clients
// know of, and of no others.
func (c *campaign) after() error {
	u, err := c.w.Quiet(0, 2*time.Minute)
	if err != nil {
		return err
	}
	if err := u.Leaked(c.start); err != nil {
		return err
	}
	if int(u.Signal) != c.total.signals || int(u.Code) != c.total.codes {
		return fmt.Errorf("%.0f processes ended by a signal and %.0f with a code, but %d and %d were reported", u.Signal,
			u.Code, c.total.signals, c.total.codes)
	}
	c.start, c.peak.Total = u, u.Total
	return nil
}

func (c *campaign) summary() string {
	t := &c.total
	return fmt.Sprintf("backend %s, seed %d: the worker took %d frames, %d of them changed, %d of those valid other "+
		"programs; %d answers, %d failed calls; %d sessions, %d ended with a reason, %d cut, %d whole; %d processes ended "+
		"by a signal and %d with a code, all of them reported; the honest session computed %d times in %d sessions, the "+
		"longest took %v; the supervisor had at most %v, and %v in the end", c.o.backend, c.o.seed, t.frames, t.changed,
		t.programs, t.answers, t.failures, t.sessions, t.refused, t.cut, t.whole, t.signals, t.codes, c.honest.checks,
		c.honest.sessions, c.honest.longest.Round(time.Millisecond), c.peak, c.start)
}
