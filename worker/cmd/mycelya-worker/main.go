// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Mycelya-worker serves one user's clients on a unix socket or a TCP port, or one client on stdin and stdout. Clients
// over TCP prove by a certificate who they are, and so do those of a unix socket if the worker has credentials. It
// prints one handshake line on stdout when it listens, and logs to stderr. It ends at SIGTERM, once all that has
// arrived is answered, or, with --stdin-eof, when its stdin ends. It removes its socket. It starts itself again, with
// --session, for each client; only that process loads PyTorch. It does so with --fetch for each request to fetch
// weights.
package main

import (
	"bufio"
	"cmp"
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
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/crash"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/hub"
	"github.com/mycelya/mycelya/worker/kept"
	"github.com/mycelya/mycelya/worker/ref"
	"github.com/mycelya/mycelya/worker/session"
	"github.com/mycelya/mycelya/worker/supervisor"
)

// leastProcs is the smallest GOMAXPROCS, as in the client. A session's thread that waits in the kernel or computes in C
// keeps its slot until another thread needs one and Go's monitor takes it back, which may be late.
const leastProcs = 8

// arguments are the flags of this program.
type arguments struct {
	torch                                   executor.Torch
	level                                   slog.Level
	socket, listen, secret, backend, status string
	state, crashes, relay, weights, show    string
	eof, version, session, stdio, single    bool
	fetch, unfiltered                       bool
	idle, grace, drain                      time.Duration
	limits                                  supervisor.Limits
	uploads, weightsBytes                   int64
	clocks                                  supervisor.Clocks
}

func parse() *arguments {
	a := new(arguments)
	t := &a.torch
	flag.StringVar(&a.socket, "socket", "", "path of the unix socket to listen on")
	flag.BoolVar(&a.stdio, "stdio", false, "serve the one client whose stream is stdin and stdout")
	flag.StringVar(&a.listen, "listen", "",
		"address and port to listen on with TLS, as 0.0.0.0:7070, or several with commas; port 0: any free port")
	flag.StringVar(&a.secret, "credentials", "",
		"file of the worker's credentials, for --listen and --socket; -: the beginning of stdin")
	flag.StringVar(&a.relay, "relay", "",
		"connect stdin and stdout to the unix socket of a worker of this user, and do nothing else")
	flag.StringVar(&a.backend, "backend", "torch", "the executor: torch, or ref, which needs no PyTorch")
	flag.StringVar(&a.status, "status", "",
		"loopback address and port of a status page, /healthz and /metrics; or unix: and the path of a socket")
	flag.StringVar(&a.state, "state", "",
		"folder for the tensors and the checkpoints that sessions keep; empty: they keep none")
	flag.Int64Var(&a.uploads, "uploads-bytes", kept.DefaultUploads,
		"limit of the large uploads that this folder keeps, so that they need not be sent again, in bytes; 0: none")
	flag.StringVar(&a.weights, "weights", cacheFolder("weights"),
		"folder of the weights that sessions fetch from a hub; empty: they fetch none")
	flag.Int64Var(&a.weightsBytes, "weights-bytes", hub.DefaultBytes, "limit of that folder in bytes")
	flag.BoolVar(&a.single, "single", false, "one client at a time: a new one ends the session of the last")
	flag.BoolVar(&a.eof, "stdin-eof", false, "end when stdin ends")
	flag.BoolVar(&a.version, "version", false, "print the build and end")
	flag.StringVar(&a.show, "show", "", "print the program in this file of a crash's folder, and end")
	flag.BoolVar(&a.unfiltered, "unfiltered", false,
		"for debugging: sessions may use all system calls, so that a refusal can be told from an error of CUDA")
	flag.BoolVar(&a.session, "session", false, "serve one client that another process of this program passes on")
	flag.BoolVar(&a.fetch, "fetch", false, "fetch weights for one session of another process of this program")
	flag.DurationVar(&a.idle, "idle", session.DefaultIdle, "how long cached memory is kept when no client sends work")
	flag.DurationVar(&a.grace, "grace", link.Default.Grace,
		"how long a session over TCP waits for its client to come back")
	flag.DurationVar(&a.drain, "drain", 10*time.Second,
		"how long sessions have at SIGTERM and SIGINT to answer what has arrived; 0: none")
	flag.DurationVar(&a.clocks.Lease, "lease", 0, "the worker ends after this time; 0: 24h with --listen, else never")
	flag.DurationVar(&a.clocks.Alone, "alone", 0,
		"the worker ends when it had no session for this time; 0: 30m with --listen, else never")
	flag.Uint64Var(&a.limits.Memory, "memory", 0, "private memory that each session may take, in bytes; 0: no limit")
	flag.Uint64Var(&a.limits.CPUSeconds, "cpu-seconds", 0, "processor time that each session may take; 0: no limit")
	flag.StringVar(&t.Device, "device", "", `"cpu" or "cuda:<number>"; empty: CUDA if it can be used, else the CPU`)
	flag.StringVar(&t.Exec, "exec", "", "path of libmycelya_exec")
	flag.StringVar(&t.Lib, "torch-lib", "", "folder of libtorch_cpu")
	flag.IntVar(&t.Threads, "threads", 0, "threads of one operator on the CPU; 0: PyTorch's default")
	flag.StringVar(&a.crashes, "crashes", cacheFolder("crashes"),
		"folder that keeps the last programs and calls of sessions that crash; empty: nothing is kept")
	flag.StringVar(&t.Kernels.Folder, "kernels", cacheFolder("kernels"),
		"folder of compiled CUDA kernels; empty: memory only")
	flag.Int64Var(&t.Kernels.Disk, "kernels-bytes", executor.DefaultKernelBytes, "limit of that folder in bytes")
	flag.IntVar(&t.Kernels.Threads, "kernels-threads", 0,
		"threads that compile kernels; 0: half of the cores, at most four")
	flag.TextVar(&a.level, "log", slog.LevelWarn, "debug, info, warn or error")
	flag.Parse()
	return a
}

// wrong says what is wrong with the flags, in a sentence; "" if nothing is.
func (a *arguments) wrong() string {
	switch {
	case a.torch.Kernels.Disk <= 0 || a.torch.Kernels.Threads < 0:
		return "mycelya-worker: --kernels-bytes must be more than 0, --kernels-threads at least 0."
	case a.weightsBytes <= 0:
		return "mycelya-worker: --weights-bytes must be more than 0; --weights \"\" is for a worker that fetches nothing."
	case a.grace <= 0 || a.drain < 0 || a.clocks.Lease < 0 || a.clocks.Alone < 0:
		return "mycelya-worker: --grace must be more than 0, --drain, --lease and --alone at least 0."
	case a.streams() != 1 || flag.NArg() > 0 || a.backend != "torch" && a.backend != "ref":
		return "mycelya-worker needs one of --socket, --listen, --stdio and --relay, takes only flags, and knows the " +
			"backends torch and ref."
	case a.stdio && a.eof:
		return "mycelya-worker ends with stdin anyway if it has --stdio: --stdin-eof is not for it."
	case a.listen != "" && a.secret == "":
		return "mycelya-worker needs --credentials for --listen: without them, anyone could use this machine."
	case a.stdio && a.secret != "":
		return "mycelya-worker takes no --credentials with --stdio: who has started it is its client."
	}
	return ""
}

// streams is how many of the flags that say where the clients come from are set.
func (a *arguments) streams() (n int) {
	for _, set := range []bool{a.socket != "", a.listen != "", a.stdio, a.relay != ""} {
		if set {
			n++
		}
	}
	return n
}

// show prints the program in a file of a crash, and returns the exit code.
func show(file string) int {
	text, err := session.Show(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Print(text)
	return 0
}

func main() {
	a := parse()
	if a.version {
		fmt.Println(transport.Build)
		return
	}
	if a.show != "" {
		os.Exit(show(a.show))
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(leastProcs, runtime.GOMAXPROCS(0)))
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: a.level}))
	a.torch.Log = log
	if text := a.wrong(); text != "" {
		fmt.Fprintln(os.Stderr, text, "mycelya-worker --help lists all flags.")
		os.Exit(2)
	}
	signal.Ignore(syscall.SIGPIPE) // stderr may be closed, and the folder must still be removed
	if a.session {
		serveSession(a, log)
		return
	}
	if a.relay != "" {
		if err := supervisor.Relay(a.relay, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if a.fetch {
		serveFetch(a, log)
		return
	}
	stdin := bufio.NewReader(os.Stdin)
	s := supervisor.Supervisor{Command: sessionCommand, Log: log, Output: os.Stderr, Clocks: a.clocks, Crashes: a.crashes,
		Single: a.single, Threads: threads(a.torch.Threads)}
	if a.torch.Device != "cpu" {
		s.GPUs = supervisor.DriverGPUs()
	}
	if a.weights != "" {
		s.Helper = func() *exec.Cmd { return itself("--fetch") }
	}
	if a.state != "" {
		s.Kept = &kept.Folder{Path: a.state, Uploads: a.uploads}
	}
	network, address := "unix", a.socket
	if a.listen != "" {
		network, address = "tcp", a.listen
		s.Clocks.Lease = cmp.Or(a.clocks.Lease, 24*time.Hour)
		s.Clocks.Alone = cmp.Or(a.clocks.Alone, 30*time.Minute)
	}
	if a.secret != "" {
		var err error
		if s.Credentials, err = credentials(a.secret, stdin); err != nil {
			log.Error("cannot use the credentials", "error", err)
			os.Exit(1)
		}
	}
	var end io.Reader
	if a.eof {
		end = stdin
	}
	if a.status != "" {
		page, err := supervisor.ListenStatus(a.status)
		if err != nil {
			fmt.Fprintf(os.Stderr, "mycelya-worker: --status: %v.\n", err)
			os.Exit(2)
		}
		go func() { _ = s.Status(page) }()
	}
	if a.stdio {
		superviseStream(&s, a)
	} else {
		supervise(&s, a, network, address, end)
	}
}

// threads is how many threads one operator uses on the CPU, as far as that is known before PyTorch is loaded.
func threads(flag int) int {
	variable, _ := strconv.Atoi(os.Getenv("OMP_NUM_THREADS"))
	return cmp.Or(flag, max(0, variable), runtime.NumCPU())
}

// maxCredentials bounds a file of credentials, which have less than 2 KiB.
const maxCredentials = 64 << 10

// readers are the bits of the users that may read a file beside this process's. In a volume of Kubernetes a file
// belongs to root, and a process of another user reads it by its group, in which nobody else is.
func readers(info os.FileInfo) os.FileMode {
	others := info.Mode().Perm() & 0o077
	if of, ok := info.Sys().(*syscall.Stat_t); ok && of.Uid == 0 && os.Geteuid() != 0 {
		others &^= 0o040
	}
	return others
}

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
	if readers(info) != 0 {
		return nil, fmt.Errorf("other users may read %s; change that with: chmod 600 %s", path, path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxCredentials))
	if err != nil {
		return nil, err
	}
	return transport.ParseCredentials(text)
}

// supervise accepts clients until a signal or, if stdin is not nil, its end.
func supervise(s *supervisor.Supervisor, a *arguments, network, address string, stdin io.Reader) {
	supervisor.CloseInherited()
	s.Begin() // first: PyTorch takes longer to load than all that follows
	l, err := supervisor.Listen(network, address)
	if err != nil {
		s.Log.Error("cannot listen", "error", err)
		s.Close()
		os.Exit(1)
	}
	// Do not wait for running programs: a program may run for minutes, and its client is gone.
	end := func(code int) {
		if path, ok := strings.CutPrefix(a.status, "unix:"); ok {
			removeSocket(path)
		}
		if network == "unix" {
			removeSocket(address)
		}
		s.Close()
		os.Exit(code)
	}
	go stopAtSignal(s, a.drain, endSignals(), func() { end(0) })
	if stdin != nil {
		go func() { _, _ = io.Copy(io.Discard, stdin); end(0) }()
	}
	fmt.Println(transport.Handshake{
		Version: transport.Version, Network: network, Addr: l.Addr().String(), PID: os.Getpid(), Build: transport.Build,
	})
	if err := s.Serve(l); err != nil {
		s.Log.Error("cannot accept", "error", err)
		end(1)
	}
	end(s.ExitCode())
}

// removeSocket removes a socket, and its folder if that was made for this worker.
func removeSocket(path string) {
	_ = os.Remove(path)
	if dir := filepath.Dir(path); strings.HasPrefix(filepath.Base(dir), transport.FolderPrefix) {
		_ = os.Remove(dir) // fails while it is not empty
	}
}

// superviseStream serves the client whose stream is stdin and stdout.
func superviseStream(s *supervisor.Supervisor, a *arguments) {
	if sameFile(os.Stdout, os.Stderr) {
		fmt.Fprintln(os.Stderr, "mycelya-worker: --stdio needs a stdout of its own: this one is stderr, too.")
		os.Exit(2)
	}
	supervisor.CloseInherited()
	s.Begin()
	go stopAtSignal(s, a.drain, endSignals(), s.Close)
	fmt.Println(transport.Handshake{
		Version: transport.Version, Network: "stdio", Addr: "-", PID: os.Getpid(), Build: transport.Build,
	})
	if err := s.ServeStream(os.Stdin, os.Stdout); err != nil {
		s.Log.Error("the stream has ended", "error", err)
		os.Exit(cmp.Or(s.ExitCode(), 1))
	}
	os.Exit(s.ExitCode())
}

func sameFile(a, b *os.File) bool {
	x, errX := a.Stat()
	y, errY := b.Stat()
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// endSignals gets the signals that end a worker.
func endSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return signals
}

// stopAtSignal drains the sessions at the first signal, at most for a time, and calls end then or at the second signal.
// SIGHUP ends everything at once.
func stopAtSignal(s *supervisor.Supervisor, drain time.Duration, signals <-chan os.Signal, end func()) {
	first := <-signals
	s.Log.Info("ends at a signal", "signal", first)
	if first != syscall.SIGHUP && drain > 0 {
		drained := make(chan struct{})
		go func() { s.Drain(drain); close(drained) }()
		select {
		case <-drained:
		case again := <-signals:
			s.Log.Info("ends at once", "signal", again)
		}
	}
	end()
}

// sessionCommand is this program as the process of a session.
func sessionCommand() *exec.Cmd { return itself("--session") }

// itself is this program with the same flags and one more.
func itself(first string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return exec.Command(self, append([]string{first}, os.Args[1:]...)...)
}

// serveSession serves the client whose connection the supervisor passes to this process.
func serveSession(a *arguments, log *slog.Logger) {
	fail := func(err error) {
		log.Error("the session's process cannot start", "error", err)
		os.Exit(1)
	}
	crash.DieBySignal()
	// Ctrl-C and systemd signal all processes of a worker. The supervisor tells this process when to end.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if err := a.limits.Apply(); err != nil {
		fail(err)
	}
	channel, err := supervisor.OpenChannel(a.secret != "", log)
	if err != nil {
		fail(err)
	}
	a.torch.Progress, channel.Limits.Grace = channel.Progress, a.grace
	load := a.torch.Load
	if a.backend == "ref" {
		load = func() (executor.Backend, error) { return ref.Backend{Progress: channel.Progress}, nil }
	}
	lockDown := supervisor.LockDown
	if os.Getenv(peers) != "" {
		lockDown = supervisor.LockDownPeer
	}
	ready := func() error {
		if a.unfiltered {
			log.Warn("system calls of the session are not filtered, as --unfiltered asks")
		} else if err := lockDown(); err != nil {
			log.Info("system calls of the session are not filtered", "error", err)
		}
		return nil
	}
	server := session.Server{Load: load, Log: log, Idle: a.idle, Ready: ready, Journal: channel.Journal,
		Progress: channel.Progress, Enter: channel.Enter, Stop: channel.Stop(), Passer: channel.Passer()}
	if a.state != "" {
		server.Keeper, server.Uploads = channel.Keeper(), a.uploads
	}
	if a.weights != "" {
		server.Helper = channel.Helper
	}
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

// peers is the variable with the address at which other workers reach this one. Without it, a session opens no sockets
// of a network. The executor reads it too.
const peers = "MYCELYA_PEERS"

// helperMemory bounds the heap of a process that fetches weights, whose buffers take some MiB.
const helperMemory = 256 << 20

// serveFetch fetches weights for the session whose socket the supervisor has passed to this process.
func serveFetch(a *arguments, log *slog.Logger) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP) // it ends with its session
	debug.SetMemoryLimit(helperMemory)
	err := supervisor.Limits{}.Apply()
	if err == nil {
		if err := supervisor.LockDownHelper(); err != nil {
			log.Info("system calls of the process that fetches weights are not filtered", "error", err)
		}
		fetcher := hub.Fetcher{Cache: &hub.Cache{Path: a.weights, Bytes: a.weightsBytes}}
		err = supervisor.ServeHelper(func(c *net.UnixConn) error { return hub.Serve(c, &fetcher) })
	}
	if err != nil {
		log.Error("weights cannot be fetched", "error", err)
		os.Exit(1)
	}
}

// cacheFolder is a folder in the user's cache, "" if the user has none, as a service without a home.
func cacheFolder(name string) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "mycelya", name)
}
