// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/providers"
)

// machine is a found instance, for JSON. Times are in RFC 3339; a missing one is not known, or never comes.
type machine struct {
	Handle      string     `json:"handle"` // PROVIDER:ID, for end
	Provider    string     `json:"provider"`
	ID          string     `json:"id"`
	Name        string     `json:"name"`
	GPU         string     `json:"gpu"`
	GPUs        int        `json:"gpus"`
	Since       *time.Time `json:"since"`
	Until       *time.Time `json:"until"`        // the end of its lease
	IdleSeconds float64    `json:"idle_seconds"` // without a client, after which it ends; 0: no limit, or not known
	Used        bool       `json:"used"`
	Ended       bool       `json:"ended"`
	// Detached: other processes find it by its name, with the options of its provider.
	Detached bool              `json:"detached"`
	Options  map[string]string `json:"options"`
	// Price per hour; missing if it is not known.
	Price    *float64 `json:"price_per_hour"`
	Currency string   `json:"currency"`
	Priced   string   `json:"priced"` // the date of the price list; "": not known, or it does not change
}

// failure is a provider that could not be asked.
type failure struct {
	Provider string `json:"provider"`
	Error    string `json:"error"`
	// Kind says what is missing: "auth", "not found" (a program, a configuration), or "other".
	Kind string `json:"kind"`
}

func failed(name string, err error) failure {
	kind := "other"
	switch {
	case errors.Is(err, provider.ErrAuth):
		kind = "auth"
	case errors.Is(err, provider.ErrNotFound):
		kind = "not found"
	}
	return failure{Provider: name, Error: err.Error(), Kind: kind}
}

// served returns the rows of this version's providers; of those with a name in names if names is not empty.
func (t *tool) served(names []string) (out []providers.Row) {
	for _, r := range t.table {
		if r.New != nil && (len(names) == 0 || slices.Contains(names, r.Name)) {
			out = append(out, r)
		}
	}
	return out
}

// find returns the provider with a name.
func (t *tool) find(name string) (provider.Provider, error) {
	for _, r := range t.served(nil) {
		if r.Name == name || slices.Contains(r.Aliases, name) {
			return r.New(t.paths), nil
		}
	}
	return nil, fmt.Errorf("%q is not a provider of this version", name)
}

// sweep sweeps all providers at the same time, or those with names.
func (t *tool) sweep(ctx context.Context, end func(provider.Found) bool, names []string) ([]machine, []failure) {
	rows := t.served(names)
	found, errs := make([][]provider.Found, len(rows)), make([]error, len(rows))
	all := make([]provider.Provider, len(rows))
	var wg sync.WaitGroup
	for i, r := range rows {
		all[i] = r.New(t.paths)
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, t.wait)
			defer cancel()
			found[i], errs[i] = sweepOne(ctx, all[i], end)
		})
	}
	wg.Wait()
	machines, failures := []machine{}, []failure{}
	for i, r := range rows {
		for _, f := range found[i] {
			machines = append(machines, describe(all[i], r.Name, f))
		}
		if errs[i] != nil {
			failures = append(failures, failed(r.Name, errs[i]))
		}
	}
	return machines, failures
}

// sweepOne sweeps a provider. Some providers know nothing of the clients on other hosts, but the workers do.
func sweepOne(ctx context.Context, p provider.Provider, end func(provider.Found) bool) ([]provider.Found, error) {
	found, err := p.Sweep(ctx, func(provider.Found) bool { return false })
	busy := askWorkers(ctx, p, found)
	for i, f := range found {
		found[i].Used = f.Used || busy[f.Handle]
	}
	if err != nil || !slices.ContainsFunc(found, end) {
		return found, err
	}
	return p.Sweep(ctx, func(f provider.Found) bool {
		f.Used = f.Used || busy[f.Handle]
		return end(f)
	})
}

// askWait bounds the question to a worker. One that does not answer in time counts as used: its network may be slow. If
// it hangs, its lease ends it.
const askWait = 10 * time.Second

// askWorkers returns which of the detached machines that no process of this host uses have clients all the same.
func askWorkers(ctx context.Context, p provider.Provider, found []provider.Found) map[provider.Handle]bool {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	answers := make([]bool, len(found))
	var wg sync.WaitGroup
	for i, f := range found {
		if !f.Detached || f.Used {
			continue
		}
		wg.Go(func() {
			in, err := p.Attach(ctx, provider.Spec{Session: f.Session, Detached: true, Options: f.Options})
			if err == nil {
				defer release(in)
				answers[i], err = provider.HasClients(ctx, in)
			}
			answers[i] = answers[i] || err != nil && ctx.Err() != nil
		})
	}
	wg.Wait()
	out := map[provider.Handle]bool{}
	for i, f := range found {
		out[f.Handle] = answers[i]
	}
	return out
}

// release gives up an instance that goes on.
func release(in provider.Instance) {
	if of, ok := in.(interface{ Release() }); ok {
		of.Release()
	}
}

func describe(p provider.Provider, name string, f provider.Found) machine {
	m := machine{Handle: name + ":" + f.ID, Provider: name, ID: f.ID, Name: f.Session, GPU: f.GPU, GPUs: f.GPUs,
		IdleSeconds: f.Idle.Seconds(), Used: f.Used, Ended: f.Ended,
		Detached: f.Detached, Options: f.Options}
	if !f.Since.IsZero() {
		m.Since = &f.Since
	}
	if !f.Until.IsZero() {
		m.Until = &f.Until
	}
	if price, known := priceOf(p, f.GPU, f.GPUs); known {
		m.Price, m.Currency, m.Priced = &price.PerHour, price.Currency, price.Date
	}
	return m
}

func priceOf(p provider.Provider, gpu string, gpus int) (price provider.Price, known bool) {
	if pricer, ok := p.(provider.Pricer); ok {
		return pricer.Price(gpu, gpus)
	}
	return provider.Price{}, false
}

// end ends the machines with these handles.
func (t *tool) end(ctx context.Context, handles []string) (any, error) {
	var names []string
	for _, h := range handles {
		i := slices.IndexFunc(t.served(nil), func(r providers.Row) bool {
			return len(h) > len(r.Name)+1 && h[:len(r.Name)+1] == r.Name+":"
		})
		if i < 0 {
			return nil, fmt.Errorf("%q is not the handle of a machine, as local:1234 is", h)
		}
		names = append(names, t.served(nil)[i].Name)
	}
	wanted := func(f provider.Found) bool {
		return slices.Contains(handles, f.Provider+":"+f.ID) && !(t.unused && f.Used)
	}
	found, failures := t.sweep(ctx, wanted, names)
	found = slices.DeleteFunc(found, func(m machine) bool { return !slices.Contains(handles, m.Handle) })
	return map[string]any{"machines": found, "errors": failures}, nil
}

// read returns the log or the metrics of a machine.
func (t *tool) read(ctx context.Context, what, of, name string) (any, error) {
	p, err := t.find(of)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, t.wait)
	defer cancel()
	instance, err := p.Attach(ctx, provider.Spec{Session: name, Detached: true, Options: t.options})
	if err != nil {
		return nil, err
	}
	defer release(instance)
	if what == "metrics" {
		text, err := provider.Metrics(ctx, instance)
		return map[string]any{"metrics": text}, err
	}
	in, ok := instance.(provider.Logger)
	if !ok {
		return nil, fmt.Errorf("the provider %s keeps no logs of its machines", of)
	}
	text, err := in.Logs(ctx)
	return map[string]any{"log": text}, err
}

// check says of each provider whether a start can succeed, as far as the provider can tell.
func (t *tool) check(ctx context.Context, names []string) any {
	type result struct {
		Provider string `json:"provider"`
		Served   bool   `json:"served"`
		Checked  bool   `json:"checked"` // the provider can tell
		Error    string `json:"error"`
	}
	out := []result{}
	for _, r := range t.table {
		if len(names) > 0 && !slices.Contains(names, r.Name) {
			continue
		}
		one := result{Provider: r.Name, Served: r.New != nil}
		if r.New != nil {
			if checker, ok := r.New(t.paths).(provider.Checker); ok {
				one.Checked = true
				within, cancel := context.WithTimeout(ctx, t.wait)
				spec := provider.Spec{Options: t.options, Lease: time.Duration(r.Lease) * time.Second,
					Idle: time.Duration(r.Idle) * time.Second}
				if err := checker.Check(within, spec); err != nil {
					one.Error = err.Error()
				}
				cancel()
			}
		}
		out = append(out, one)
	}
	return map[string]any{"providers": out}
}

// price returns the price of a machine per hour.
func (t *tool) price(args []string) (any, error) {
	p, err := t.find(args[0])
	if err != nil {
		return nil, err
	}
	gpu, gpus := "", 1
	if len(args) > 1 {
		gpu = args[1]
	}
	if len(args) > 2 {
		if gpus, err = strconv.Atoi(args[2]); err != nil || gpus < 1 {
			return nil, fmt.Errorf("%q is not a number of GPUs", args[2])
		}
	}
	price, known := priceOf(p, gpu, gpus)
	if !known {
		return map[string]any{"price_per_hour": nil, "currency": "", "priced": ""}, nil
	}
	return price, nil
}
