// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Mycelya-worker serves one user's clients, on a unix socket or on a TCP port. Clients over TCP prove by a certificate
// who they are. It prints one handshake line on stdout when it listens, logs to stderr, and ends at SIGTERM or, with
// --stdin-eof, when its stdin ends. It removes its socket. It starts itself again, with --session, for each client;
// only that process loads PyTorch.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker"
	"github.com/mycelya/mycelya/worker/ref"
)

// leastProcs is the smallest GOMAXPROCS, as in the client. A session's thread that waits in the kernel or computes in C
// keeps its slot until another thread needs one and Go's monitor takes it back, which may be late.
const leastProcs = 8

func main() {
	var (
		t       worker.Torch
		level   slog.Level
		socket  = flag.String("socket", "", "path of the unix socket to listen on")
		listen  = flag.String("listen", "", "address and port to listen on with TLS, as 0.0.0.0:7070; port 0: any free port")
		secret  = flag.String("credentials", "", "file of the worker's credentials, for --listen; -: the beginning of stdin")
		backend = flag.String("backend", "torch", "the executor: torch, or ref, which needs no PyTorch")
		eof     = flag.Bool("stdin-eof", false, "end when stdin ends")
		idle    = flag.Duration("idle", worker.DefaultIdle, "how long cached memory is kept when no client sends work")
		version = flag.Bool("version", false, "print the build and end")
		session = flag.Bool("session", false, "serve one client that another process of this program passes on")
		limits  worker.Limits
	)
	flag.Uint64Var(&limits.Memory, "memory", 0, "private memory that each session may take, in bytes; 0: no limit")
	flag.Uint64Var(&limits.CPUSeconds, "cpu-seconds", 0, "processor time that each session may take; 0: no limit")
	flag.StringVar(&t.Device, "device", "", `"cpu" or "cuda:<number>"; empty: CUDA if it can be used, else the CPU`)
	flag.StringVar(&t.Exec, "exec", "", "path of libmycelya_exec")
	flag.StringVar(&t.Lib, "torch-lib", "", "folder of libtorch_cpu")
	flag.IntVar(&t.Threads, "threads", 0, "threads of one operator on the CPU; 0: PyTorch's default")
	flag.StringVar(&t.Kernels.Folder, "kernels", kernelFolder(), "folder of compiled CUDA kernels; empty: memory only")
	flag.Int64Var(&t.Kernels.Disk, "kernels-bytes", worker.DefaultKernelBytes, "limit of that folder in bytes")
	flag.IntVar(
		&t.Kernels.Threads,
		"kernels-threads",
		0,
		"threads that compile kernels; 0: half of the cores, at most four",
	)
	flag.TextVar(&level, "log", slog.LevelWarn, "debug, info, warn or error")
	flag.Parse()
	if *version {
		fmt.Println(transport.Build)
		return
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(leastProcs, runtime.GOMAXPROCS(0)))
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	t.Log = log
	if t.Kernels.Disk <= 0 || t.Kernels.Threads < 0 {
		fmt.Fprintln(os.Stderr, "mycelya-worker: --kernels-bytes must be more than 0, --kernels-threads at least 0.")
		os.Exit(2)
	}
	if (*socket == "") == (*listen == "") || flag.NArg() > 0 || *backend != "torch" && *backend != "ref" {
		fmt.Fprintln(os.Stderr, "mycelya-worker needs either --socket or --listen, takes only flags, and knows the "+
			"backends torch and ref.")
		flag.Usage()
		os.Exit(2)
	}
	if (*listen == "") != (*secret == "") {
		fmt.Fprintln(os.Stderr, "mycelya-worker needs --credentials for --listen, and only then: without them, anyone "+
			"could use this machine.")
		os.Exit(2)
	}
	signal.Ignore(syscall.SIGPIPE) // stderr may be closed, and the folder must still be removed
	if *session {
		serveSession(t, *backend, limits, *idle, *listen != "", log)
		return
	}
	stdin := bufio.NewReader(os.Stdin)
	s := worker.Supervisor{Command: sessionCommand, Log: log, Output: os.Stderr}
	network, address := "unix", *socket
	if *listen != "" {
		network, address = "tcp", *listen
		var err error
		if s.Credentials, err = credentials(*secret, stdin); err != nil {
			log.Error("cannot use the credentials", "error", err)
			os.Exit(1)
		}
	}
	var end io.Reader
	if *eof {
		end = stdin
	}
	supervise(&s, network, address, end, log)
}

// maxCredentials bounds a file of credentials, which have less than 2 KiB.
const maxCredentials = 64 << 10

// credentials reads the worker's credentials from a file that only this user can read, or from the beginning of stdin.
func credentials(path string, stdin *bufio.Reader) (*transport.Credentials, error) {
	if path == "-" {
		text, err := transport.ReadCredentials(io.LimitReader(stdin, maxCredentials))
		if err != nil {
			return nil, err
		}
		return transport.ParseCredentials(text)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("other users may read %s; change that with: chmod 600 %s", path, path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxCredentials))
	if err != nil {
		return nil, err
	}
	return transport.ParseCredentials(text)
}

// supervise accepts clients until a signal or, if stdin is not nil, its end.
func supervise(s *worker.Supervisor, network, address string, stdin io.Reader, log *slog.Logger) {
	worker.CloseInherited()
	s.Begin() // first: PyTorch takes longer to load than all that follows
	l, err := net.Listen(network, address)
	if err != nil {
		log.Error("cannot listen", "error", err)
		s.Close()
		os.Exit(1)
	}
	// Do not wait for running programs: a program may run for minutes, and its client is gone.
	end := func(code int) {
		if network == "unix" {
			_ = os.Remove(address)
			if dir := filepath.Dir(address); strings.HasPrefix(filepath.Base(dir), transport.FolderPrefix) {
				_ = os.Remove(dir) // made for this worker; fails if it is not empty
			}
		}
		s.Close()
		os.Exit(code)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	go func() { log.Info("ends at a signal", "signal", <-signals); end(0) }()
	if stdin != nil {
		go func() { _, _ = io.Copy(io.Discard, stdin); end(0) }()
	}
	fmt.Println(transport.Handshake{
		Version: transport.Version, Network: network, Addr: l.Addr().String(), PID: os.Getpid(), Build: transport.Build,
	})
	if err := s.Serve(l); err != nil {
		log.Error("cannot accept", "error", err)
		end(1)
	}
	end(0)
}

// sessionCommand is this program with the same flags and --session.
func sessionCommand() *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return exec.Command(self, append([]string{"--session"}, os.Args[1:]...)...)
}

// serveSession serves the client whose connection the supervisor passes to this process.
func serveSession(
	t worker.Torch, backend string, limits worker.Limits, idle time.Duration, secure bool, log *slog.Logger,
) {
	fail := func(err error) {
		log.Error("the session's process cannot start", "error", err)
		os.Exit(1)
	}
	worker.DieBySignal()
	if err := limits.Apply(); err != nil {
		fail(err)
	}
	channel, err := worker.OpenChannel(secure, log)
	if err != nil {
		fail(err)
	}
	t.Progress = channel.Progress
	load := t.Load
	if backend == "ref" {
		load = func() (worker.Backend, error) { return ref.Backend{Progress: channel.Progress}, nil }
	}
	ready := func() error {
		if err := worker.LockDown(); err != nil {
			log.Info("system calls of the session are not filtered", "error", err)
		}
		return nil
	}
	server := worker.Server{Load: load, Log: log, Idle: idle, Ready: ready}
	accept := func() (net.Conn, error) {
		c, err := channel.Accept()
		if err == nil {
			go func() { channel.Wait(); os.Exit(0) }()
		}
		return c, err
	}
	if err := server.ServeOne(accept); err != nil && !errors.Is(err, io.EOF) {
		fail(err)
	}
}

// kernelFolder is a folder in the user's cache, "" if the user has none, as a service without a home.
func kernelFolder() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "mycelya", "kernels")
}
