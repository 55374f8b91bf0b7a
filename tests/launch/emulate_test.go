// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package launch_test runs programs on a worker with a device that takes machine code, on a host without a GPU. The
// server, the session, the plans of launches, the cache and the executor are those of a CUDA worker. The compiler is
// g++, and the device emulates CUDA on the CPU.
package launch_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/tests/emulate"
	"github.com/mycelya/mycelya/worker/conformance"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/kernels"
	"github.com/mycelya/mycelya/worker/session"
)

// folder holds the loaded libraries, and outlives all tests.
var folder string

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "--socket") {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	var err error
	if folder, err = os.MkdirTemp("", "launch"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

var device struct {
	sync.Once
	torch executor.Torch
	err   error
}

// torch returns the executor in a folder with the emulated device, which the executor loads by its name.
func torch(t *testing.T) executor.Torch {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("running printed kernels needs g++")
	}
	built := conformance.Torch(t)
	device.Do(func() {
		device.torch = built
		device.torch.Device = "emulated"
		device.torch.Exec = filepath.Join(folder, "libmycelya_exec.so")
		if device.err = os.Symlink(built.Exec, device.torch.Exec); device.err != nil {
			return
		}
		root := filepath.Join("..", "..")
		out, err := exec.Command("g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-I", filepath.Join(root, "csrc"),
			"-isystem", filepath.Join(built.Lib, "..", "include"),
			"-o", filepath.Join(folder, "libmycelya_exec_emulated.so"), filepath.Join("testdata", "emulated.cpp"),
			"-L"+built.Lib, "-lc10").CombinedOutput()
		if err != nil {
			device.err = fmt.Errorf("the emulated device does not compile: %w\n%s", err, out)
		}
	})
	require.NoError(t, device.err)
	return device.torch
}

// gxx is a compiler of printed kernels for the emulated device.
type gxx struct {
	calls, running, most atomic.Int64
	gate                 chan struct{} // each call waits until it is closed; nil: no call waits
	wrong                string        // a text that contains this does not compile
	stuck                string        // code of a text that contains this cannot be launched
	twist                [2]string     // the first is replaced by the second in all texts
}

func (c *gxx) open() (kernels.Compiler, error) { return c, nil }

func (c *gxx) Version() string { return "g++" }

var entry = regexp.MustCompile(`extern "C" __global__ void __launch_bounds__\(\d+\) (\w+)` +
	`\((const __grid_constant__ Args a|const Args\* table)`)

// Compile makes a library. It has a function emulated_<entry> for each entry, which runs the blocks of a launch.
func (c *gxx) Compile(source, arch string, options []string) ([]byte, string, error) {
	c.calls.Add(1)
	n := c.running.Add(1)
	defer c.running.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	if c.gate != nil {
		<-c.gate
	}
	if arch != "sm_90" || len(options) == 0 {
		return nil, "", fmt.Errorf("compiled for %q with %v", arch, options)
	}
	if c.twist[0] != "" {
		source = strings.ReplaceAll(source, c.twist[0], c.twist[1])
	}
	if c.wrong != "" && strings.Contains(source, c.wrong) {
		return nil, "", errors.New("kernel.cu(1): error: the text is wrong")
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "#include \"emulate.h\"\nnamespace printed {\n%s}\n",
		strings.ReplaceAll(source, `extern "C" `, "static "))
	alone := !strings.Contains(source, "__syncthreads") && !strings.Contains(source, "__shfl")
	status := 0
	if c.stuck != "" && strings.Contains(source, c.stuck) {
		status = 701
	}
	for _, m := range entry.FindAllStringSubmatch(source, -1) {
		call := "*(const printed::Args*)arguments[0]"
		if strings.HasSuffix(m[2], "table") {
			call = "*(const printed::Args* const*)arguments[0], *(const unsigned long long* const*)arguments[1]"
		}
		fmt.Fprintf(&text, `extern "C" int emulated_%s(unsigned grid, unsigned x, unsigned y, const void* const* arguments) {
  if (%d) return %d;
  blockDim = {x, y};
  emulate::body = [&] { printed::%s(%s); };
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) emulate::RunBlock(%t);
  return 0;
}
`, m[1], status, status, m[1], call, alone)
	}
	library, err := os.CreateTemp(folder, "kernel-*.so")
	if err != nil {
		return nil, "", err
	}
	_ = library.Close()
	defer os.Remove(library.Name())
	// What sanitizers find is an illegal instruction.
	err = emulate.Build(text.Bytes(), library.Name(), "-shared", "-fPIC", "-fsanitize-undefined-trap-on-error")
	if err != nil {
		return nil, "", err
	}
	cubin, err := os.ReadFile(library.Name())
	return cubin, "", err
}

// logged is a log that a test can read while a server writes it.
type logged struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.text.String()
}

// serve runs this test program as a worker that a client has started: mycelya-worker with another compiler. Its other
// files are in the folder of the link that started it.
func serve() error {
	folder = filepath.Dir(os.Args[0])
	t := executor.Torch{Exec: filepath.Join(folder, "libmycelya_exec.so"), Device: "emulated"}
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	socket := flags.String("socket", "", "")
	flags.StringVar(&t.Lib, "torch-lib", "", "")
	for _, other := range []string{"backend", "threads", "device", "exec", "log", "state"} {
		flags.String(other, "", "")
	}
	flags.Bool("stdin-eof", false, "")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	t.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	wrong := os.Getenv("ATEN_EMULATED_WRONG") // workers inherit variables with the prefix ATEN_
	from, to, _ := strings.Cut(os.Getenv("ATEN_EMULATED_TWIST"), ">")
	t.Kernels = executor.Kernels{Compiler: (&gxx{wrong: wrong, twist: [2]string{from, to}}).open,
		Folder: filepath.Join(folder, "cubins without "+wrong+from), Threads: 2}
	l, err := net.Listen("unix", *socket)
	if err != nil {
		return err
	}
	fmt.Println(transport.Handshake{Version: transport.Version, Network: "unix", Addr: *socket, PID: os.Getpid(),
		Build: transport.Build})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); os.Exit(0) }()
	return (&session.Server{Load: t.Load, Log: t.Log}).Serve(l)
}

// running is a worker with the emulated device.
type running struct {
	addr string
	log  *logged
}

// start runs a worker until the test ends.
func start(t *testing.T, k executor.Kernels) *running {
	t.Helper()
	r := &running{addr: filepath.Join(t.TempDir(), "s"), log: &logged{}}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	on := torch(t)
	on.Kernels, on.Log = k, log
	server := &session.Server{Load: on.Load, Log: log}
	l, err := net.Listen("unix", r.addr)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		require.NoError(t, <-ended)
	})
	return r
}

// client is a session with a worker.
type client struct {
	t   *testing.T
	c   *transport.Conn
	seq uint64
	id  uint64 // the last storage
}

func (r *running) connect(t *testing.T) *client {
	t.Helper()
	nc, err := net.Dial("unix", r.addr)
	require.NoError(t, err)
	require.NoError(t, nc.SetDeadline(time.Now().Add(5*time.Minute)))
	c := &client{t: t, c: transport.New(nc)}
	t.Cleanup(func() { _ = c.c.Close() })
	var hello proto.Hello
	c.ask(transport.Hello, &proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion},
		transport.Hello, &hello)
	require.Empty(t, hello.Error)
	return c
}

func (c *client) send(kind transport.Type, m protobuf.Message, body []byte) {
	c.t.Helper()
	c.seq++
	require.NoError(c.t, c.c.Send(kind, c.seq, m, body))
}

func (c *client) ask(kind transport.Type, m protobuf.Message, want transport.Type, answer protobuf.Message) {
	c.t.Helper()
	c.send(kind, m, nil)
	h, err := c.c.Next()
	require.NoError(c.t, err)
	require.Equal(c.t, want, h.Type)
	require.NoError(c.t, c.c.Meta(answer))
}

func (c *client) upload(data []byte) uint64 {
	c.t.Helper()
	c.id++
	c.send(transport.Upload, &proto.Upload{Storage: c.id, Bytes: uint64(len(data))}, data)
	return c.id
}

// read returns the bytes of a storage, or the error.
func (c *client) read(id uint64, bytes int64) ([]byte, *proto.Status) {
	c.t.Helper()
	var r proto.ReadReply
	c.ask(transport.Read, &proto.Read{Storage: id, Dtype: 1, Sizes: []int64{bytes}, Strides: []int64{1}},
		transport.ReadReply, &r)
	if r.Status != nil {
		return nil, r.Status
	}
	data := make([]byte, r.Bytes)
	if r.Bytes > 0 {
		require.NoError(c.t, c.c.ReadBody(data))
	} else {
		require.NoError(c.t, c.c.Discard())
	}
	return data, nil
}

func (c *client) free(ids []uint64) {
	c.t.Helper()
	if len(ids) > 0 {
		c.send(transport.Free, &proto.FreeStorages{Storages: ids}, nil)
	}
}
