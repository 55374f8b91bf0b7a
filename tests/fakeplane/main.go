// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Fakeplane runs a control plane of Modal for tests. It prints a JSON object with the variables of a client's
// environment. Then it answers requests on stdin, one JSON object on a line each, until stdin ends.
//
//	{"do": "list"}                                            {"running": ["sb-…"], "created": 1, "builds": 2}
//	{"do": "end", "id": "sb-…", "why": "INTERNAL_FAILURE", "text": "preempted"}
//	{"do": "kill", "id": "sb-…"}                              kills the worker
//	{"do": "inject", "faults": {"NoCapacity": ["A100"]}}      replaces what goes wrong: fakeplane.Faults
//	{"do": "show", "id": "sb-…"}                              what the sandbox was created with
//	{"do": "trips"}                                           what clients waited for since the last such request
//
// With --delay, each direction of the raw TCP tunnels takes so long, and round trips are counted: tests/trips/count.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/mycelya/mycelya/runtime/provider/modal/fakeplane"
	"github.com/mycelya/mycelya/tests/trips/count"
)

// request is a line of stdin.
type request struct {
	Do, ID, Why, Text string
	Faults            fakeplane.Faults
}

func main() {
	folder := flag.String("folder", "", "an empty folder, for those of sandboxes and volumes")
	path := flag.String("path", "", "PATH in the sandboxes; empty: that of this process")
	delay := flag.Duration("delay", 0, "of each direction of the raw TCP tunnels")
	flag.Parse()
	options := fakeplane.Options{Folder: *folder, Path: *path}
	counter := new(count.Counter)
	if *delay > 0 {
		line := count.Line{Delay: *delay, Counter: counter}
		options.Serve = func(l net.Listener, to string) { _ = line.Serve(l, "tcp", to) }
	}
	plane, err := fakeplane.Start(options)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fakeplane:", err)
		os.Exit(1)
	}
	// At a signal, too, no sandbox is left.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() { <-signals; plane.Close(); os.Exit(1) }()
	out := json.NewEncoder(os.Stdout)
	_ = out.Encode(plane.Environ())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			_ = out.Encode(map[string]string{"error": err.Error()})
			continue
		}
		if r.Do == "trips" {
			_ = out.Encode(counter.Result())
			counter.Reset()
			continue
		}
		_ = out.Encode(answer(plane, r))
	}
	plane.Close()
}

func answer(plane *fakeplane.Plane, r request) map[string]any {
	switch r.Do {
	case "list":
	case "end":
		why, known := pb.GenericResult_GenericStatus_value["GENERIC_STATUS_"+r.Why]
		if !known {
			return map[string]any{"error": fmt.Sprintf("%q is no status", r.Why)}
		}
		plane.End(r.ID, pb.GenericResult_GenericStatus(why), r.Text)
	case "kill":
		plane.Kill(r.ID)
	case "inject":
		plane.Inject(func(f *fakeplane.Faults) { *f = r.Faults })
	case "show":
		d, tags := plane.Definition(r.ID)
		return map[string]any{"command": d.GetEntrypointArgs(), "timeout": d.GetTimeoutSecs(),
			"idle": d.GetIdleTimeoutSecs(), "gpu": d.GetResources().GetGpuConfig().GetGpuType(), "tags": tags}
	default:
		return map[string]any{"error": fmt.Sprintf("%q is no request", r.Do)}
	}
	return map[string]any{"running": plane.Running(), "created": plane.Created(), "builds": plane.Builds(),
		"uploads": plane.Uploads()}
}
