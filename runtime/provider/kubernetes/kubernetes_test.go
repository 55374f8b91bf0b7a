// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/kubernetes/fakecluster"
	"github.com/mycelya/mycelya/runtime/provider/providertest"
)

var workerPath string // the real worker, built by TestMain

// patience is how long something may take on a slow machine.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(clientEnv) != "" {
		client()
		return
	}
	providertest.Main(m, &workerPath)
}

// site is a cluster and the user's folders.
type site struct {
	*fakecluster.Cluster
	folder string // of the node
	state  string // the user's
}

const gpuNode = "NVIDIA-A100-SXM4-80GB"

// begin starts a cluster that is the user's.
func begin(t *testing.T) *site {
	t.Helper()
	s := &site{folder: t.TempDir(), state: t.TempDir()}
	ref := fakecluster.Image{Worker: workerPath, Args: []string{"--backend", "ref"},
		Env: []string{"PATH=" + os.Getenv("PATH")}}
	private, broken := ref, ref
	private.PullSecret = "login"
	broken.Args = []string{"--no-such-flag"}
	s.Cluster = fakecluster.Start(fakecluster.Config{
		Images:     map[string]fakecluster.Image{DefaultImage: ref, "private": private, "broken": broken},
		NodeLabels: map[string]string{DefaultGPULabel: gpuNode},
		GPUs:       2,
		Claims:     map[string]string{"disk": t.TempDir()},
		Namespaces: []string{"team"},
		Folder:     s.folder,
	})
	t.Cleanup(s.Close)
	path, err := s.Kubeconfig(t.TempDir())
	require.NoError(t, err)
	t.Setenv("KUBECONFIG", path)
	t.Setenv("XDG_STATE_HOME", s.state)
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	return s
}

// left lists what ended machines have left.
func (s *site) left(t *testing.T) []string {
	out := s.Objects()
	for _, pid := range s.Processes() {
		out = append(out, fmt.Sprint("process ", pid))
	}
	for _, folder := range []string{s.folder, filepath.Join(s.state, "mycelya", "kubernetes")} {
		entries, err := os.ReadDir(folder)
		if !errors.Is(err, os.ErrNotExist) {
			require.NoError(t, err)
		}
		for _, e := range entries {
			if e.Name() != userFile {
				out = append(out, e.Name())
			}
		}
	}
	return out
}

func specOf(options ...string) provider.Spec {
	s := provider.Spec{Session: "test", Device: "cpu", Lease: time.Hour, Idle: time.Hour, Options: map[string]string{}}
	for i := 0; i < len(options); i += 2 {
		s.Options[options[i]] = options[i+1]
	}
	return s
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func started(t *testing.T, s provider.Spec) *instance {
	t.Helper()
	in, err := Provider{}.Start(within(t), s)
	require.NoError(t, err)
	t.Cleanup(func() { _ = in.Stop(context.Background(), 0) })
	return in.(*instance)
}

// idles starts a worker that soon ends because it has no client. A start on a slow machine may take longer than a short
// idle time: the next one has more.
func idles(t *testing.T) *instance {
	t.Helper()
	s := specOf()
	for s.Idle = time.Second; ; s.Idle *= 2 {
		began := time.Now()
		in, err := Provider{}.Start(within(t), s)
		if err == nil {
			t.Cleanup(func() { _ = in.Stop(context.Background(), 0) })
			return in.(*instance)
		}
		require.Greater(t, time.Since(began), s.Idle, "%v", err)
	}
}

func TestConformance(t *testing.T) {
	t.Run("through the API server", func(t *testing.T) { conform(t, nil) })
	t.Run("direct", func(t *testing.T) { conform(t, map[string]string{"direct": "yes"}) })
}

func conform(t *testing.T, options map[string]string) {
	s := begin(t)
	providertest.Suite{
		Options:  options,
		Detaches: true,
		Make:     func(*testing.T) provider.Provider { return New(provider.Paths{}) },
		Kill:     func(h provider.Handle) { s.Kill(h.ID) },
		Left:     s.left,
	}.Run(t)
}

// TestEachRequestMayFail: whichever request of a start fails, an error says so and nothing is left.
func TestEachRequestMayFail(t *testing.T) {
	s := begin(t)
	count, at := 0, 1
	var mu sync.Mutex
	for over := false; !over; at++ {
		mu.Lock()
		count = 0
		mu.Unlock()
		s.SetFault(func(verb, resource string) *metav1.Status {
			mu.Lock()
			defer mu.Unlock()
			if count++; count != at {
				return nil
			}
			return &metav1.Status{Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
				Message: "request of the test"}
		})
		in, err := Provider{}.Start(within(t), specOf())
		s.SetFault(nil)
		if over = err == nil; over {
			require.NoError(t, in.Stop(within(t), 0))
		} else {
			var sentence *provider.Error
			require.ErrorAs(t, err, &sentence)
			require.ErrorContains(t, err, "The API server")
		}
		require.Empty(t, s.left(t), "after request %d", at)
	}
	require.Greater(t, at, 5, "a start has several requests")
}

// TestCancelledAtEachRequest: whenever the context of a start ends, nothing is left.
func TestCancelledAtEachRequest(t *testing.T) {
	s := begin(t)
	count, at := 0, 1
	var mu sync.Mutex
	for over := false; !over; at++ {
		ctx, cancel := context.WithCancel(within(t))
		mu.Lock()
		count = 0
		mu.Unlock()
		s.SetFault(func(verb, resource string) *metav1.Status {
			mu.Lock()
			defer mu.Unlock()
			if count++; count == at {
				cancel()
			}
			return nil
		})
		in, err := Provider{}.Start(ctx, specOf())
		s.SetFault(nil)
		if err == nil {
			require.NoError(t, in.Stop(within(t), 0))
		} else {
			require.ErrorIs(t, err, context.Canceled)
		}
		mu.Lock()
		over = count < at
		mu.Unlock()
		cancel()
		require.Empty(t, s.left(t), "cancelled at request %d", at)
	}
	require.Greater(t, at, 5, "a start has several requests")
}

// TestALostAnswer: a pod that exists although nobody has heard of it is removed.
func TestALostAnswer(t *testing.T) {
	s := begin(t)
	s.LoseAnswer()
	_, err := Provider{}.Start(within(t), specOf())
	require.ErrorIs(t, err, provider.ErrUnavailable)
	require.ErrorContains(t, err, "cannot be reached")
	require.Empty(t, s.left(t))
}

func TestExits(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*site, string)
		want provider.Exit
	}{
		{"killed", func(s *site, pod string) { s.Kill(pod) },
			provider.Exit{Reason: provider.Crashed, Code: -1, Signal: "killed"}},
		{"out of memory", func(s *site, pod string) { s.OutOfMemory(pod) },
			provider.Exit{Reason: provider.OutOfMemory, Code: -1, Signal: "killed"}},
		{"evicted", func(s *site, pod string) { s.Evict(pod) }, provider.Exit{Reason: provider.Preempted}},
		{"preempted", func(s *site, pod string) { s.Preempt(pod) }, provider.Exit{Reason: provider.Preempted}},
		{"node lost", func(s *site, pod string) { s.LoseNode(pod) },
			provider.Exit{Reason: provider.Preempted, Code: -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t)
			in := started(t, specOf())
			c.end(s, in.name)
			exit, err := in.Wait(within(t))
			require.NoError(t, err)
			exit.Detail = ""
			require.Equal(t, c.want, exit)
			_, err = in.Dial(within(t))
			require.ErrorIs(t, err, provider.ErrUnavailable)
			require.ErrorContains(t, err, exit.String())
			require.NoError(t, in.Stop(within(t), 0))
			require.Empty(t, s.left(t))
		})
	}
}

// TestWatchesEnd: a server ends watches, and forgets old versions. Wait goes on.
func TestWatchesEnd(t *testing.T) {
	s := begin(t)
	in := started(t, specOf())
	exits := make(chan provider.Exit, 1)
	go func() {
		exit, err := in.Wait(within(t))
		if err != nil {
			t.Error(err)
		}
		exits <- exit
	}()
	for range 3 {
		before := s.Requests()
		s.CutWatches()
		require.Eventually(t, func() bool { return s.Requests() > before }, patience, time.Millisecond)
	}
	s.Kill(in.name)
	require.Equal(t, provider.Crashed, (<-exits).Reason)
}

// TestAPodThatOthersDelete: kubectl delete ends a machine, which is no crash.
func TestAPodThatOthersDelete(t *testing.T) {
	s := begin(t)
	in := started(t, specOf())
	c, err := connect("", "")
	require.NoError(t, err)
	pod, err := c.pod(within(t), in.name)
	require.NoError(t, err)
	require.NoError(t, c.end(within(t), pod, time.Second))
	exit, err := in.Wait(within(t))
	require.NoError(t, err)
	require.Equal(t, provider.Done, exit.Reason)
	require.NoError(t, in.Stop(within(t), 0))
	require.Empty(t, s.left(t))
}

// TestALogIsTheDetail: the log of a worker that has ended says why.
func TestALogIsTheDetail(t *testing.T) {
	begin(t)
	in := idles(t)
	exit, err := in.Wait(within(t))
	require.NoError(t, err)
	require.Equal(t, provider.IdleTooLong, exit.Reason)
	require.Equal(t, "has ended because it had no client for too long", exit.String())
	require.Contains(t, exit.Detail, "it had no session")
}

// TestNoSecretInAPod: who may read pods, but not secrets, learns nothing.
func TestNoSecretInAPod(t *testing.T) {
	s := begin(t)
	in := started(t, specOf())
	pod, err := in.c.pod(within(t), in.name)
	require.NoError(t, err)
	text, err := pod.Marshal()
	require.NoError(t, err)
	require.NotContains(t, string(text), "PRIVATE KEY")
	require.NotContains(t, in.c.log(within(t), in.name), "PRIVATE KEY")
	for _, pid := range s.Processes() {
		for _, file := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			require.NoError(t, err)
			require.NotContains(t, string(text), "PRIVATE KEY")
		}
	}
	var secret string
	err = filepath.WalkDir(s.folder, func(path string, d os.DirEntry, err error) error {
		if filepath.Base(path) == secretFile {
			secret = path
		}
		return err
	})
	require.NoError(t, err)
	info, err := os.Stat(secret)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o400), info.Mode().Perm())
}

// TestObjectsOfAPod: a machine has three objects, of which two belong to the pod.
func TestObjectsOfAPod(t *testing.T) {
	s := begin(t)
	in := started(t, specOf("namespace", "team"))
	pod, err := in.c.pod(within(t), in.name)
	require.NoError(t, err)
	other := dependentName(pod)
	require.NotEqual(t, in.name, other)
	require.Equal(t, []string{"networkpolicies/team/" + other, "pods/team/" + in.name, "secrets/team/" + other},
		s.Objects())
	require.NoError(t, in.Stop(within(t), 0))
	require.Empty(t, s.left(t))
}

// TestAClaimOfWeights: the pod fetches to it, for which its policy lets it out to servers of names and of HTTPS.
func TestAClaimOfWeights(t *testing.T) {
	begin(t)
	in := started(t, specOf("weights", "disk"))
	pod, err := in.c.pod(within(t), in.name)
	require.NoError(t, err)
	require.Equal(t, "disk", pod.Spec.Volumes[3].PersistentVolumeClaim.ClaimName)
	require.Contains(t, strings.Join(pod.Spec.Containers[0].Command, " "), "--weights "+weightFolder+"/")
	var ports []string
	for _, port := range policyOf(pod).Spec.Egress[0].Ports {
		ports = append(ports, string(*port.Protocol)+port.Port.String())
	}
	require.Equal(t, []string{"UDP53", "TCP53", "TCP443"}, ports)

	in = started(t, specOf())
	pod, err = in.c.pod(within(t), in.name)
	require.NoError(t, err)
	require.Empty(t, policyOf(pod).Spec.Egress)
	require.Contains(t, strings.Join(pod.Spec.Containers[0].Command, " ")+" ", "--weights  ")
}

// TestAClaimIsTheStateFolder: what sessions keep lies on the claim.
func TestAClaimIsTheStateFolder(t *testing.T) {
	begin(t)
	in := started(t, specOf("volume", "disk"))
	pod, err := in.c.pod(within(t), in.name)
	require.NoError(t, err)
	require.Equal(t, "disk", pod.Spec.Volumes[1].PersistentVolumeClaim.ClaimName)
	require.Contains(t, strings.Join(pod.Spec.Containers[0].Command, " "), "--state "+stateFolder)
}
