// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/modal/fakeplane"
	"github.com/mycelya/mycelya/runtime/provider/providertest"
)

const patience = time.Minute

var workerPath string // the real worker, built by TestMain

// The test program is also the client that some tests kill.
const clientEnv = "CLIENT_OF_WORKER"

func TestMain(m *testing.M) {
	if path := os.Getenv(clientEnv); path != "" {
		beClient(path)
		return
	}
	providertest.Main(m, &workerPath, leaveAccounts)
}

// leaveAccounts takes all that leads to an account of Modal out of the environment.
func leaveAccounts(dir string) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "MODAL_") {
			_ = os.Unsetenv(name)
		}
	}
	for name, value := range map[string]string{"HOME": dir, "XDG_STATE_HOME": dir, "XDG_CACHE_HOME": dir,
		"MODAL_CONFIG_PATH": os.DevNull, "MODAL_SERVER_URL": "http://127.0.0.1:1"} {
		_ = os.Setenv(name, value)
	}
}

// started starts a plane, the only one that this process can reach.
func newPlane(t *testing.T) *fakeplane.Plane {
	t.Helper()
	return newPlaneWith(t, fakeplane.Options{})
}

// newPlaneWith is newPlane with options.
func newPlaneWith(t *testing.T, o fakeplane.Options) *fakeplane.Plane {
	t.Helper()
	o.Folder = t.TempDir()
	p, err := fakeplane.Start(o)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	for name, value := range p.Environ() {
		t.Setenv(name, value)
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	return p
}

func refProvider() Provider {
	return Provider{Paths: provider.Paths{Worker: workerPath}, Backend: "ref"}
}

// spec is a worker's on the CPU of a sandbox with a GPU, if one is named.
func spec(gpu string, options ...string) provider.Spec {
	s := provider.Spec{Session: "test", Device: "cpu", GPU: gpu, Lease: time.Hour, Idle: 10 * time.Minute,
		Options: map[string]string{}}
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		s.Options[name] = value
	}
	return s
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// started starts a worker, which ends with the test.
func started(t *testing.T, s provider.Spec) *instance {
	t.Helper()
	in, err := refProvider().Start(within(t), s)
	require.NoError(t, err)
	t.Cleanup(func() { _ = in.Stop(context.Background(), 0) })
	return in.(*instance)
}

// serves checks that a session's stream can be opened.
func serves(t *testing.T, in provider.Instance) {
	t.Helper()
	c, err := provider.Open(within(t), in, transport.NewSessionName(), nil, func(link.Notice) {})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestConformance(t *testing.T) {
	t.Run("TCP", func(t *testing.T) { conform(t, nil) })
	t.Run("TLS", func(t *testing.T) { conform(t, map[string]string{"tunnel": "tls"}) })
}

func conform(t *testing.T, options map[string]string) {
	plane := newPlane(t)
	providertest.Suite{
		Options:  options,
		Detaches: true,
		Make:     func(*testing.T) provider.Provider { return refProvider() },
		Kill:     func(h provider.Handle) { plane.Kill(h.ID) },
		Left: func(t *testing.T) []string {
			out := append(plane.Running(), providertest.Processes(t, plane.Folder())...)
			sandboxes, err := filepath.Glob(filepath.Join(plane.Folder(), "sb-*"))
			require.NoError(t, err)
			return append(out, sandboxes...)
		},
	}.Run(t)
}

// TestErrors: each error has a kind and a sentence with what to do, and no sandbox is left.
func TestErrors(t *testing.T) {
	faults := func(change func(*fakeplane.Faults)) func(*testing.T, *fakeplane.Plane) {
		return func(_ *testing.T, p *fakeplane.Plane) { p.Inject(change) }
	}
	for _, c := range []struct {
		name   string
		breaks func(*testing.T, *fakeplane.Plane)
		spec   provider.Spec
		kind   error
		wants  []string
	}{
		{"revoked token", faults(func(f *fakeplane.Faults) { f.BadToken = true }), spec("A100"), provider.ErrAuth,
			[]string{"Modal does not accept the token", "revoked", "`modal token set`"}},
		{"no token", func(t *testing.T, _ *fakeplane.Plane) { t.Setenv("MODAL_TOKEN_ID", "") }, spec("A100"),
			provider.ErrAuth, []string{"no credentials for Modal", "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET",
				"`modal token set`"}},
		{"quota", faults(func(f *fakeplane.Faults) { f.Quota = true }), spec("A100"), provider.ErrQuota,
			[]string{"start a sandbox with A100", "limit of 10 GPUs", "https://modal.com/apps"}},
		{"no capacity", faults(func(f *fakeplane.Faults) { f.NoCapacity = []string{"A100"} }), spec("A100"),
			provider.ErrCapacity, []string{"A100", "gpu_fallback="}},
		{"no capacity at all", faults(func(f *fakeplane.Faults) { f.NoCapacity = []string{"A100", "H100"} }),
			spec("A100", "gpu_fallback=H100"), provider.ErrCapacity, []string{"H100"}},
		{"unknown GPU", nil, spec("GTX-1080"), provider.ErrInvalidSpec, []string{"GTX-1080", "https://modal.com/docs"}},
		{"unknown region", nil, spec("A100", "region=mars"), provider.ErrInvalidSpec, []string{"mars", "regions"}},
		{"image", faults(func(f *fakeplane.Faults) { f.Build = "No matching distribution found for numpi" }),
			provider.Spec{Session: "test", Device: "cpu", Lease: time.Hour, Idle: time.Hour, Packages: []string{"numpi"}},
			provider.ErrInvalidSpec, []string{"build the image", "No matching distribution found for numpi", "packages="}},
		{"never starts", faults(func(f *fakeplane.Faults) { f.NeverStarts = []string{"A100"} }),
			spec("A100", "start_timeout=1"), provider.ErrTimeout, []string{"has not started within 1s", "gpu_fallback="}},
		{"both tunnels are blocked", faults(func(f *fakeplane.Faults) { f.BlockRaw, f.BlockTLS = true, true }), spec("A100"),
			provider.ErrUnavailable, []string{"this host cannot reach it", "TCP", "TLS"}},
		{"files change on the way", faults(func(f *fakeplane.Faults) { f.BadUpload = true }), spec("A100"),
			provider.ErrUnavailable, []string{"mycelya-worker", "could not be sent"}},
		{"an answer is lost", faults(func(f *fakeplane.Faults) { f.LoseCreate = true }), spec("A100"),
			provider.ErrInvalidSpec, []string{"the answer is lost"}},
		{"no server", func(t *testing.T, _ *fakeplane.Plane) { t.Setenv("MODAL_SERVER_URL", "http://127.0.0.1:1") },
			spec("A100"), provider.ErrUnavailable, []string{"Is the network up?"}},
		{"a server without TLS", func(t *testing.T, _ *fakeplane.Plane) {
			t.Setenv("MODAL_SERVER_URL", "http://modal.example.com")
		}, spec("A100"), provider.ErrAuth, []string{"MODAL_SERVER_URL", "in clear", "https"}},
		{"a profile's server without TLS", func(t *testing.T, _ *fakeplane.Plane) {
			path := filepath.Join(t.TempDir(), "modal.toml")
			text := "[work]\nserver_url = \"http://modal.example.com\"\nactive = true\n"
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			t.Setenv("MODAL_SERVER_URL", "")
			t.Setenv("MODAL_CONFIG_PATH", path)
		}, spec("A100"), provider.ErrAuth, []string{"profile work", "in clear"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			plane := newPlane(t)
			if c.breaks != nil {
				c.breaks(t, plane)
			}
			p := refProvider()
			p.wayWait = time.Second // of ways that carry nothing
			_, err := p.Start(within(t), c.spec)
			require.ErrorIs(t, err, c.kind)
			for _, w := range c.wants {
				require.ErrorContains(t, err, w)
			}
			require.NotContains(t, err.Error(), "PRIVATE KEY")
			require.NotContains(t, err.Error(), "as-", "the token's secret")
			require.Empty(t, plane.Running())
		})
	}
}

// TestCheck finds the same errors as a start, and creates no sandbox.
func TestCheck(t *testing.T) {
	plane := newPlane(t)
	require.NoError(t, refProvider().Check(within(t), spec("A100")))
	require.ErrorIs(t, refProvider().Check(within(t), spec("A100", "zone=b")), provider.ErrInvalidSpec)
	plane.Inject(func(f *fakeplane.Faults) { f.BadToken = true })
	require.ErrorIs(t, refProvider().Check(within(t), spec("A100")), provider.ErrAuth)
	require.Zero(t, plane.Created())
}

func TestImpossibleSpecs(t *testing.T) {
	newPlane(t)
	for want, change := range map[string]func(*provider.Spec){
		"needs a timeout of at most 24 hours": func(s *provider.Spec) { s.Lease = 25 * time.Hour },
		"needs a timeout":                     func(s *provider.Spec) { s.Lease = 0 },
		"needs an idle_timeout":               func(s *provider.Spec) { s.Idle = 0 },
		"is not a GPU type":                   func(s *provider.Spec) { s.GPU = "A100:2" },
		`packages=["-r x"]`:                   func(s *provider.Spec) { s.Packages = []string{"-r x"} },
		`packages=["a'; id"]`:                 func(s *provider.Spec) { s.Packages = []string{"a'; id"} },
		"cannot name a machine":               func(s *provider.Spec) { s.Session, s.Detached = "", true },
		`volume="a/b" is not`:                 func(s *provider.Spec) { s.Options["volume"] = "a/b" },
	} {
		s := spec("A100")
		change(&s)
		_, err := refProvider().Start(within(t), s)
		require.ErrorIs(t, err, provider.ErrInvalidSpec, want)
		require.ErrorContains(t, err, want)
	}
	p := refProvider()
	p.Paths.Worker = filepath.Join(t.TempDir(), "worker")
	require.NoError(t, os.WriteFile(p.Paths.Worker, []byte("#!/bin/sh\n"), 0o700))
	_, err := p.Start(within(t), spec("A100"))
	require.ErrorContains(t, err, "not for Linux on x86-64")
}

// TestWhatIsAskedFor compares a sandbox with its spec.
func TestWhatIsAskedFor(t *testing.T) {
	plane := newPlane(t)
	s := spec("A100", "region=us-east,eu", "volume=v")
	s.GPUs, s.Lease, s.Idle, s.Session = 2, 90*time.Second, 70*time.Second, "my machine"
	in := started(t, s)
	d, tags := plane.Definition(in.id)
	require.Equal(t, "A100", d.GetResources().GetGpuConfig().GetGpuType())
	require.EqualValues(t, 2, d.GetResources().GetGpuConfig().GetCount())
	require.EqualValues(t, 90, d.GetTimeoutSecs())
	require.EqualValues(t, 70, d.GetIdleTimeoutSecs())
	require.Equal(t, []string{"us-east", "eu"}, d.GetSchedulerPlacement().GetRegions())
	require.Equal(t, "my machine", textOf(tags[tagMachine]))
	require.Equal(t, transport.Build, tags[tagBuild])
	require.NotEmpty(t, tags[tagSession])
	require.NotEmpty(t, tags[tagUser])
	all, err := refProvider().Sweep(within(t), func(provider.Found) bool { return false })
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, "A100", all[0].GPU)
	require.Equal(t, 2, all[0].GPUs)
	require.Equal(t, 70*time.Second, all[0].Idle)
	require.True(t, all[0].Used, "this process uses it")
	_, known := refProvider().Price("A100", 2)
	require.False(t, known, "A100 without its memory has no known price")
}

func TestFallback(t *testing.T) {
	plane := newPlane(t)
	plane.Inject(func(f *fakeplane.Faults) {
		f.NoCapacity, f.NeverStarts = []string{"A100-80GB"}, []string{"H100"}
	})
	in := started(t, spec("A100-80GB", "gpu_fallback=H100,L40S", "start_timeout=1"))
	require.Equal(t, []string{in.id}, plane.Running())
	d, _ := plane.Definition(in.id)
	require.Equal(t, "L40S", d.GetResources().GetGpuConfig().GetGpuType())
	serves(t, in)
	all, err := refProvider().Sweep(within(t), func(provider.Found) bool { return false })
	require.NoError(t, err)
	price, known := refProvider().Price(all[0].GPU, all[0].GPUs)
	require.True(t, known)
	require.InDelta(t, 1.95, price.PerHour, 0.01)
	require.Equal(t, priced, price.Date)
}

func TestDefaultGPU(t *testing.T) {
	newPlane(t)
	for device, want := range map[string]string{"": "T4", "cuda:1": "T4", "cpu": ""} {
		s := spec("")
		s.Device = device
		w, err := refProvider().plan(s)
		require.NoError(t, err)
		require.Equal(t, []string{want}, w.gpus)
		require.NotEmpty(t, w.device, "a worker with a GPU never falls back to the CPU")
	}
}

// TestOneBlockedTunnel: the other one is used, from the start on.
func TestOneBlockedTunnel(t *testing.T) {
	for _, raw := range []bool{true, false} {
		plane := newPlane(t)
		plane.Inject(func(f *fakeplane.Faults) { f.BlockRaw, f.BlockTLS = raw, !raw })
		in := started(t, spec("A100"))
		require.Equal(t, raw, in.tunnels.second.Load())
		serves(t, in)
		require.NoError(t, in.Stop(within(t), 0))
	}
}

// TestATunnelThatBreaksLater: the next stream goes through the other one.
func TestATunnelThatBreaksLater(t *testing.T) {
	newPlane(t)
	in := started(t, spec("A100"))
	in.tunnels.second.Store(false) // the start may have found either way first
	in.tunnels.raw = "127.0.0.1:1"
	serves(t, in)
}

// TestExits: how a sandbox has ended is known, whoever has ended it.
func TestExits(t *testing.T) {
	plane := newPlane(t)
	status := func(s pb.GenericResult_GenericStatus) func(string) {
		return func(id string) { plane.End(id, s, "the host is needed") }
	}
	for want, end := range map[provider.Reason]func(id string){
		provider.Preempted:   status(pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE),
		provider.Done:        status(pb.GenericResult_GENERIC_STATUS_TERMINATED),
		provider.IdleTooLong: func(string) { plane.Hurry(time.Millisecond) }, // 10 minutes are 600 ms
		provider.LeaseOver:   status(pb.GenericResult_GENERIC_STATUS_TIMEOUT),
		provider.Crashed:     plane.Kill,
	} {
		s := spec("A100")
		s.Lease = 24 * time.Hour
		in := started(t, s)
		end(in.id)
		e, err := in.Wait(within(t))
		plane.Hurry(time.Second)
		require.NoError(t, err)
		require.Equal(t, want, e.Reason)
		_, err = in.Dial(within(t))
		require.ErrorIs(t, err, provider.ErrUnavailable)
		require.ErrorContains(t, err, e.String())
		if want == provider.Preempted {
			require.Contains(t, e.Detail, "the host is needed")
		}
	}
	require.Equal(t, provider.OutOfMemory, exitOf(pb.GenericResult_builder{
		Status: pb.GenericResult_GENERIC_STATUS_FAILURE, Exitcode: 137, Exception: "Container ran out of memory"}.Build()).
		Reason)
	require.Equal(t, provider.Unknown, exitOf(nil).Reason)
}

// TestAConnectionKeepsASandbox: the plane's idle time begins when the last connection ends. Its lease does not wait.
func TestAConnectionKeepsASandbox(t *testing.T) {
	plane := newPlane(t)
	in := started(t, spec("A100"))
	c, err := provider.Connect(within(t), in, transport.NewSessionName())
	require.NoError(t, err)
	defer c.Close()
	plane.Hurry(time.Millisecond) // the idle time is 0.6 s, the lease 3.6 s
	e, err := in.Wait(within(t))
	require.NoError(t, err)
	require.Equal(t, provider.LeaseOver, e.Reason)
}

// TestSecretsStayInside: neither arguments, environments, tags nor logs have the credentials.
func TestSecretsStayInside(t *testing.T) {
	plane := newPlane(t)
	in := started(t, spec("A100"))
	serves(t, in)
	d, tags := plane.Definition(in.id)
	require.NotContains(t, fmt.Sprint(d.GetEntrypointArgs(), tags), "PRIVATE KEY")
	require.NotContains(t, in.log.String(), "PRIVATE KEY")
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	processes := 0
	for _, path := range files {
		args, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(args), in.id) {
			continue
		}
		processes++
		require.NotContains(t, string(args), "PRIVATE KEY")
		env, err := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		if err == nil {
			require.NotContains(t, string(env), "PRIVATE KEY")
			require.NotContains(t, string(env), credentialsVariable)
		}
	}
	require.Positive(t, processes)
}
