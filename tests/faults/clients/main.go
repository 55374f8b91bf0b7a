// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Command clients runs many clients against one worker behind a network that fails. Each client is a process with a
// real session of package runtime. It trains again and again, and each value that it reads is compared with that of an
// undisturbed run. One client is killed on the way, and another one is stopped for a while.
//
// The command fails if a value differs, if a client or the worker ends, if the slowest client does far less than the
// others, if the others wait while one is stopped, or if anything is left in the end: sessions, storages, memory,
// descriptors or goroutines of the supervisor, and those of the clients.
//
//	clients -worker PATH -exec PATH -torch-lib FOLDER [-clients 16] [-for 10m] [-seed 1] [-mean 1000000]
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mycelya/mycelya/tests/faults/network"
	"github.com/mycelya/mycelya/tests/remote"
)

type options struct {
	worker, library, torchLib string
	clients                   int
	duration                  time.Duration
	fair                      float64
	faults                    network.Faults

	client string // the address of the proxy: this process is a client
	seed   uint64 // of the client
}

func main() {
	var o options
	flag.StringVar(&o.worker, "worker", "", "path of mycelya-worker")
	flag.StringVar(&o.library, "exec", "", "path of libmycelya_exec")
	flag.StringVar(&o.torchLib, "torch-lib", "", "folder of libtorch_cpu")
	flag.IntVar(&o.clients, "clients", 16, "number of clients")
	flag.DurationVar(&o.duration, "for", 10*time.Minute, "how long the clients train")
	flag.Float64Var(&o.fair, "fair", 0.5, "the least that a client does, as a part of the median")
	flag.Int64Var(&o.faults.Seed, "seed", 1, "of the faults")
	flag.Int64Var(&o.faults.Mean, "mean", 1_000_000, "bytes between two faults in one direction, on average")
	flag.StringVar(&o.faults.Kinds, "kinds", "", "names of faults, with commas; empty: all")
	flag.StringVar(&o.client, "client", "", "used by this program: be a client of a worker at this address")
	flag.Uint64Var(&o.seed, "client-seed", 0, "used by this program")
	flag.Parse()
	err := error(nil)
	if o.client != "" {
		err = runClient(o.client, o.seed)
	} else {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

// grace is how long the session of a killed client stays.
const grace = 25 * time.Second

func run(o options) error {
	folder, err := os.MkdirTemp("", "clients")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	log := filepath.Join(folder, "log")
	w, err := remote.Start(remote.Options{Program: o.worker, Log: log, Flags: []string{
		"--exec", o.library, "--torch-lib", o.torchLib, "--device", "cpu", "--threads", "1", "--grace", grace.String(),
	}})
	if err != nil {
		return err
	}
	t := &trial{o: o, w: w}
	err = errors.Join(t.run(), w.Stop(), w.CheckLog())
	if err != nil {
		text, _ := os.ReadFile(log)
		return fmt.Errorf("%w\nThe end of the worker's log:\n%s", err, text[max(0, len(text)-4000):])
	}
	fmt.Println(t.report)
	return nil
}

// trial is the clients, and what they must read.
type trial struct {
	o       options
	w       *remote.Worker
	want    []map[int]string // by client: the values by step
	clients []*process
	start   remote.Usage
	report  string
}

// Clients with a fate of their own.
const (
	killed  = 0
	stopped = 1
)

func (t *trial) run() (err error) {
	if t.start, err = t.w.Quiet(0, time.Minute); err != nil {
		return err
	}
	if err := t.undisturbed(); err != nil {
		return fmt.Errorf("without faults: %w", err)
	}
	n, err := network.Start(t.w.Addr, t.o.faults)
	if err != nil {
		return err
	}
	defer func() {
		for _, p := range t.clients {
			p.kill()
		}
	}()
	for i := range t.o.clients {
		p, err := startClient(n.Addr, uint64(i), t.w, t.want[i])
		if err != nil {
			return err
		}
		t.clients = append(t.clients, p)
	}
	if err := t.train(); err != nil {
		return err
	}
	return t.end()
}

// undisturbed finds out what the clients must read, by training without the proxy.
func (t *trial) undisturbed() error {
	c, err := open(&there{addr: t.w.Addr, credentials: t.w.Client})
	if err != nil {
		return err
	}
	defer c.rt.Close(0)
	for i := range t.o.clients {
		t.want = append(t.want, map[int]string{})
		if err := c.round(uint64(i), func(v value) { t.want[i][v.step] = v.text }); err != nil {
			return err
		}
		if len(t.want[i]) != steps/readEvery+1 || i > 0 && t.want[i][steps] == t.want[0][steps] {
			return fmt.Errorf("client %d reads %v", i, t.want[i])
		}
	}
	return c.nothingHeld()
}

// train lets the clients train. It kills one after a third of the time, and stops one for a while after half of it.
func (t *trial) train() error {
	if err := t.awaitFirst(); err != nil {
		return err
	}
	memory := t.memory()
	if err := t.pause(t.o.duration / 3); err != nil {
		return err
	}
	t.clients[killed].kill()
	if err := t.pause(t.o.duration / 6); err != nil {
		return err
	}
	p := t.clients[stopped]
	before := t.counts()
	p.stop()
	end := time.Now().Add(stopMost)
	err := t.pause(t.stopFor())
	reads := func() bool { return sum(t.counts()[2:]) > sum(before[2:]) }
	for err == nil && !reads() && time.Now().Before(end) { // faults and a slow host hold clients up, too
		err = t.pause(100 * time.Millisecond)
	}
	others := reads()
	p.goOn()
	if err != nil {
		return err
	}
	if !others {
		return fmt.Errorf("no client has read a value while client %d was stopped", stopped)
	}
	if err := t.pause(t.o.duration * 9 / 20); err != nil {
		return err
	}
	return t.compareMemory(memory)
}

// stopMost is less than grace, after which the stopped client would lose its session.
const stopMost = 18 * time.Second

// stopFor is how long a client is stopped at least.
func (t *trial) stopFor() time.Duration { return max(t.o.duration/20, 3*time.Second) }

// awaitFirst waits until each client has read a value.
func (t *trial) awaitFirst() error {
	for end := time.Now().Add(answerWait); slices.Min(t.counts()) == 0; {
		if err := t.pause(100 * time.Millisecond); err != nil {
			return err
		}
		if time.Now().After(end) {
			return errors.New("a client does not begin")
		}
	}
	return nil
}

// pause waits. It fails when a client that should run has ended, or the worker.
func (t *trial) pause(d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		select {
		case <-t.w.Done():
			return errors.New("the worker has ended")
		default:
		}
		for i, p := range t.clients {
			if p.over() && !p.wasKilled() {
				return fmt.Errorf("client %d has ended: %w", i, p.error())
			}
		}
	}
	return nil
}

// counts are the numbers of values that the clients have read.
func (t *trial) counts() (out []int) {
	for _, p := range t.clients {
		out = append(out, p.count())
	}
	return out
}

func sum(all []int) (out int) {
	for _, n := range all {
		out += n
	}
	return out
}

// end ends the clients, and checks that nothing is left.
func (t *trial) end() error {
	counts := t.counts()
	reconnects, sent, err := t.endClients()
	if err != nil {
		return err
	}
	u, err := t.w.Quiet(0, 2*grace)
	if err != nil {
		return err
	}
	if err := u.Leaked(t.start); err != nil {
		return err
	}
	alive := slices.Clone(counts[killed+1:])
	slices.Sort(alive)
	median := alive[len(alive)/2]
	t.report = fmt.Sprintf("%d clients for %v, faults of seed %d every %d bytes: %d values and no wrong one; the clients "+
		"read %d to %d, the median is %d; %d reconnects, %d MiB sent; client %d was killed after %d values, client %d was "+
		"stopped for %v; the supervisor had %v at the start and %v in the end", len(counts), t.o.duration,
		t.o.faults.Seed, t.o.faults.Mean, sum(counts), alive[0], alive[len(alive)-1], median, reconnects, sent>>20, killed,
		counts[killed], stopped, t.stopFor(), t.start, u)
	if float64(alive[0]) < t.o.fair*float64(median) {
		return fmt.Errorf("unfair: %s; %v", t.report, counts)
	}
	if reconnects == 0 {
		return errors.New("no connection has failed")
	}
	return nil
}

func (t *trial) endClients() (reconnects, sent uint64, err error) {
	for _, p := range t.clients {
		p.askToEnd()
	}
	for i, p := range t.clients {
		if i == killed {
			continue
		}
		r, s, err := p.end(answerWait)
		if err != nil {
			return 0, 0, fmt.Errorf("client %d at its end: %w", i, err)
		}
		reconnects, sent = reconnects+r, sent+s
	}
	return reconnects, sent, nil
}

// moreMemory is by how much the process of a session may grow while it does the same again and again. The allocators
// keep some memory.
const moreMemory = 64 << 10 // KiB

// memory is the resident memory of each session's process, in KiB.
func (t *trial) memory() (out []int) {
	for _, p := range t.clients {
		out = append(out, resident(p.sessionPID()))
	}
	return out
}

func (t *trial) compareMemory(before []int) error {
	for i, now := range t.memory() {
		if i != killed && (now == 0 || now > before[i]+moreMemory) {
			return fmt.Errorf("the process of client %d's session has %d KiB, %d at the start", i, now, before[i])
		}
	}
	return nil
}

// resident is the resident memory of a process in KiB; 0 if there is none.
func resident(pid int) (kib int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if rest, is := strings.CutPrefix(line, "VmRSS:"); is {
			_, _ = fmt.Sscan(rest, &kib)
		}
	}
	return kib
}
