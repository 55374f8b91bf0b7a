// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Cluster is a small Kubernetes cluster for the Python tests (runtime/provider/kubernetes/fakecluster). Its pods run
// the real worker with PyTorch. It prints one line of JSON when it runs, with the path of a kubeconfig and the address
// of an HTTP interface for tests, and ends with its stdin.
//
//	cluster --worker PATH --exec PATH --torch-lib PATH --folder FOLDER
//	cluster --sweep     ends the user's machines that no process uses, in the cluster of the kubeconfig
//
// The interface:
//
//	GET  /state                   objects and processes, as JSON
//	POST /cut                     ends the connections of all streams
//	POST /kill?pod=…              and /oom, /evict, /preempt: the end of a pod
//	POST /forbid?verb=…&resource=…&message=…   refuses such requests; without a verb: none
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/kubernetes"
	"github.com/mycelya/mycelya/runtime/provider/kubernetes/fakecluster"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "cluster: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	worker := flag.String("worker", "", "path of mycelya-worker")
	exec := flag.String("exec", "", "path of libmycelya_exec")
	lib := flag.String("torch-lib", "", "folder of libtorch_cpu")
	folder := flag.String("folder", "", "folder for the node's files")
	sweeps := flag.Bool("sweep", false, "end the machines that no process uses")
	flag.Parse()
	if *sweeps {
		return sweep()
	}
	disk := filepath.Join(*folder, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		return err
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "OMP_WAIT_POLICY=passive"}
	image := fakecluster.Image{Worker: *worker, Args: []string{"--exec", *exec, "--torch-lib", *lib}, Env: env}
	c := fakecluster.Start(fakecluster.Config{
		Images:     map[string]fakecluster.Image{kubernetes.DefaultImage: image},
		NodeLabels: map[string]string{kubernetes.DefaultGPULabel: "NVIDIA-L4"},
		Namespaces: []string{"team"},
		Claims:     map[string]string{"disk": disk},
		Folder:     *folder,
	})
	defer c.Close()
	path, err := c.Kubeconfig(*folder)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: control(c), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	line, err := json.Marshal(map[string]string{"kubeconfig": path, "control": "http://" + l.Addr().String()})
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	over := make(chan os.Signal, 1)
	signal.Notify(over, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over <- syscall.SIGTERM
	}()
	<-over
	return nil
}

// control is the interface for tests.
func control(c *fakecluster.Cluster) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"objects": c.Objects(), "processes": c.Processes()})
	})
	mux.HandleFunc("POST /cut", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(c.CutStreams())
	})
	mux.HandleFunc("POST /forbid", func(_ http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("verb") == "" {
			c.SetFault(nil)
			return
		}
		c.SetFault(fakecluster.Forbid(q.Get("verb"), q.Get("resource"), q.Get("message")))
	})
	for path, end := range map[string]func(string){"kill": c.Kill, "oom": c.OutOfMemory, "evict": c.Evict,
		"preempt": c.Preempt} {
		mux.HandleFunc("POST /"+path, func(_ http.ResponseWriter, r *http.Request) { end(r.URL.Query().Get("pod")) })
	}
	return mux
}

// sweep ends what no process uses, and prints it.
func sweep() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	found, err := kubernetes.Provider{}.Sweep(ctx, func(f provider.Found) bool { return !f.Used })
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}
