// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/kubernetes/fakecluster"
)

// TestErrorsAreSentences: each failure of a start has a kind, and a text that names the value and the remedy. Check
// says the same where it can know it.
func TestErrorsAreSentences(t *testing.T) {
	for _, c := range failures() {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t)
			if c.set != nil {
				c.set(t, s)
			}
			_, err := Provider{}.Start(within(t), c.spec)
			require.ErrorIs(t, err, c.kind)
			for _, want := range c.wants {
				require.ErrorContains(t, err, want)
			}
			s.SetFault(nil)
			t.Setenv("XDG_STATE_HOME", s.state)
			require.Empty(t, s.left(t))
			if c.set != nil {
				c.set(t, s)
			}
			checked := Provider{}.Check(within(t), c.spec)
			if !c.checks {
				require.NoError(t, checked)
				return
			}
			require.ErrorIs(t, checked, c.kind)
			require.ErrorContains(t, checked, c.wants[0])
			require.Empty(t, s.Objects(), "a check makes nothing")
		})
	}
}

// failure is a start that fails.
type failure struct {
	name   string
	set    func(*testing.T, *site)
	spec   provider.Spec
	kind   error
	checks bool // Check has the same error
	wants  []string
}

// failures are the starts of TestErrorsAreSentences.
func failures() []failure {
	forbid := fakecluster.Forbid
	return []failure{
		{"no kubeconfig", func(t *testing.T, _ *site) { t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none")) },
			specOf(), provider.ErrNotFound, true, []string{"There is no kubeconfig", "Set KUBECONFIG"}},
		{"a broken kubeconfig", func(t *testing.T, _ *site) { kubeconfig(t, "{") }, specOf(), provider.ErrInvalidSpec, true,
			[]string{"The kubeconfig cannot be read", "kubectl config view"}},
		{"unknown context", nil, specOf("context", "prod"), provider.ErrInvalidSpec, true,
			[]string{`The kubeconfig has no context "prod"; it has "fake".`}},
		{"unreachable server", func(t *testing.T, s *site) { kubeconfig(t, s.KubeconfigText(closedPort(t), "x")) }, specOf(),
			provider.ErrUnavailable, true,
			[]string{`The API server https://127.0.0.1:`, `context "fake"`, "connection refused", "VPN", "cluster-info"}},
		{"a foreign server", func(t *testing.T, s *site) {
			other := fakecluster.Start(fakecluster.Config{})
			t.Cleanup(other.Close)
			kubeconfig(t, foreign(s, other))
		}, specOf(), provider.ErrAuth, true, []string{"do not accept each other", "certificate"}},
		{"wrong token", func(t *testing.T, s *site) { kubeconfig(t, s.KubeconfigText(s.URL(), "x")) }, specOf(),
			provider.ErrAuth, true, []string{"does not accept the credentials of the kubeconfig", "Log in again"}},
		{"no namespace", nil, specOf("namespace", "nowhere"), provider.ErrNotFound, true,
			[]string{`The namespace "nowhere" does not exist`, "kubectl create namespace nowhere"}},
		{"pods forbidden", fault(forbid("create", "pods", "User \"ann\" cannot create it")), specOf(), provider.ErrAuth, true,
			[]string{`This user may not create pods in the namespace "default"`, "ann", "Ask for a role"}},
		{"secrets forbidden", fault(forbid("create", "secrets", "no")), specOf(), provider.ErrAuth, true,
			[]string{"may not create secrets"}},
		{"policies forbidden", fault(forbid("create", "networkpolicies", "no")), specOf(), provider.ErrAuth, true,
			[]string{"may not create networkpolicies"}},
		{"watches forbidden", fault(forbid("watch", "pods", "no")), specOf(), provider.ErrAuth, true,
			[]string{"may not watch pods"}},
		{"quota", fault(forbid("create", "pods", "exceeded quota: gpus, requested: 1, used: 4, limited: 4")), specOf(),
			provider.ErrQuota, true, []string{`The quota of the namespace "default" is used up`, "limited: 4", "get pods"}},
		{"pod security", fault(forbid("create", "pods", "violates PodSecurity \"restricted:latest\"")), specOf("user", "0"),
			provider.ErrInvalidSpec, true, []string{"does not take such a pod", "Leave the option user out"}},
		{"no such GPU", nil, withGPU(provider.Spec{GPU: "H100"}, "wait", "1"), provider.ErrCapacity, false,
			[]string{"No node of the cluster took the pod within 1s", "affinity", `nvidia.com/gpu.product is one of "H100"`,
				"NVIDIA-H100-80GB-HBM3", "gpu_product=…", `wait="900"`}},
		{"too many GPUs", nil, withGPU(provider.Spec{GPUs: 3}, "wait", "1"), provider.ErrCapacity, false,
			[]string{"Insufficient nvidia.com/gpu", "It needs 3 GPU(s)"}},
		{"no such claim", nil, specOf("volume", "tape"), provider.ErrNotFound, false,
			[]string{`The namespace "default" has no claim "tape"`, "get pvc"}},
		{"no such image", nil, specOf("image", "nobody/nothing:1"), provider.ErrNotFound, false,
			[]string{`The node cannot get the image "nobody/nothing:1"`, "ImagePullBackOff", "image=…", "pull_secret=…"}},
		{"private image", nil, specOf("image", "private"), provider.ErrNotFound, false, []string{"pull_secret=…"}},
		{"a worker that ends at once", nil, specOf("image", "broken"), provider.ErrUnavailable, false,
			[]string{`image "broken") ended with code 2 before it could be used`, "no-such-flag"}},
		{"no folder", func(t *testing.T, _ *site) { t.Setenv("XDG_STATE_HOME", "/dev/null") }, specOf(),
			provider.ErrUnavailable, true, []string{"The folder for machines cannot be used", "Set XDG_STATE_HOME"}},
	}
}

// fault sets a fault.
func fault(f fakecluster.Fault) func(*testing.T, *site) {
	return func(_ *testing.T, s *site) { s.SetFault(f) }
}

// kubeconfig makes a text the kubeconfig.
func kubeconfig(t *testing.T, text string) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	t.Setenv("KUBECONFIG", path)
}

// closedPort is the address of a server that does not run. Nobody else can take the port until the end of the test.
func closedPort(t *testing.T) string {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	syscall.CloseOnExec(fd)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	return fmt.Sprintf("https://127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}

// foreign is a kubeconfig with the address of one cluster for a host name that its certificate does not have.
func foreign(s, other interface {
	URL() string
	KubeconfigText(url, token string) string
}) string {
	_, port, _ := net.SplitHostPort(other.URL()[len("https://"):])
	return s.KubeconfigText("https://localhost:"+port, "x")
}

func withGPU(s provider.Spec, options ...string) provider.Spec {
	out := specOf(options...)
	out.Device, out.GPU, out.GPUs = "", s.GPU, s.GPUs
	return out
}

// TestUsed: Sweep knows which machines a process uses.
func TestUsed(t *testing.T) {
	begin(t)
	in := started(t, specOf())
	found := func() provider.Found {
		all, err := Provider{}.Sweep(within(t), func(provider.Found) bool { return false })
		require.NoError(t, err)
		require.Len(t, all, 1)
		return all[0]
	}
	require.True(t, found().Used)
	require.Len(t, in.FDs(), 1)
	require.NoError(t, in.lock.Close()) // as the end of the process does
	require.False(t, found().Used)
	require.Empty(t, in.FDs())
}

// TestSweepRemovesWhatHasEnded: pods that have ended stay in a cluster, with their secrets.
func TestSweepRemovesWhatHasEnded(t *testing.T) {
	s := begin(t)
	in := idles(t)
	_, err := in.Wait(within(t))
	require.NoError(t, err)
	sweep := func() {
		all, err := Provider{}.Sweep(within(t), func(provider.Found) bool { return true })
		require.NoError(t, err)
		require.Empty(t, all, "it has ended already")
	}
	sweep()
	require.NotEmpty(t, s.Objects(), "its client may want to know how it has ended")
	require.NoError(t, in.lock.Close())
	sweep()
	require.Eventually(t, func() bool { return len(s.Objects()) == 0 }, patience, time.Millisecond)
	require.Empty(t, s.left(t))
}

// TestOthersAreNotSwept: a user's machines are those of the user's folder.
func TestOthersAreNotSwept(t *testing.T) {
	s := begin(t)
	spec := specOf()
	spec.Detached = true
	in := started(t, spec)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	all, err := Provider{}.Sweep(within(t), func(provider.Found) bool { return true })
	require.NoError(t, err)
	require.Empty(t, all)
	_, err = Provider{}.Attach(within(t), specOf())
	require.ErrorIs(t, err, provider.ErrNotFound)
	other := started(t, spec)
	require.NotEqual(t, in.name, other.name, "another user's machine may have the same name")
	t.Setenv("XDG_STATE_HOME", s.state)
	again, err := Provider{}.Attach(within(t), specOf())
	require.NoError(t, err)
	require.Equal(t, in.Handle(), again.Handle())
}

// TestNames: a machine may have any name, of which the label is a hash.
func TestNames(t *testing.T) {
	begin(t)
	for _, name := range []string{"a/b ä \"quoted\"", "-.x", string(make([]byte, 300))} {
		spec := specOf()
		spec.Session, spec.Detached = name, true
		in := started(t, spec)
		again, err := Provider{}.Attach(within(t), spec)
		require.NoError(t, err)
		require.Equal(t, in.Handle(), again.Handle())
		_, err = Provider{}.Start(within(t), spec)
		require.ErrorIs(t, err, provider.ErrInvalidSpec)
		require.ErrorContains(t, err, "runs already")
		other := specOf()
		other.Session = "nobody"
		_, err = Provider{}.Attach(within(t), other)
		require.ErrorContains(t, err, fmt.Sprintf("There are %q.", name))
		require.NoError(t, in.Stop(within(t), 0))
	}
}

// TestAttachRefuses: another build, and credentials of another start.
func TestAttachRefuses(t *testing.T) {
	begin(t)
	spec := specOf()
	spec.Detached = true
	in := started(t, spec)
	kept, err := in.state.read(in.name)
	require.NoError(t, err)
	info, err := os.Stat(in.state.path(in.name, fileSuffix))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	kept.UID = "another"
	require.NoError(t, in.state.write(in.name, kept))
	_, err = Provider{}.Attach(within(t), spec)
	require.ErrorIs(t, err, provider.ErrAuth)
	require.ErrorContains(t, err, "another start")
}

// TestAnotherWorkerTakesItsPlace: with Again, a machine whose pod has ended is started as it was.
func TestAnotherWorkerTakesItsPlace(t *testing.T) {
	s := begin(t)
	spec := specOf("volume", "disk")
	spec.Detached, spec.Lease = true, 2*time.Hour
	first := started(t, spec)
	s.Kill(first.name)
	_, err := first.Wait(within(t))
	require.NoError(t, err)
	require.NoError(t, first.lock.Close())
	again := specOf()
	_, err = Provider{}.Attach(within(t), again)
	require.ErrorIs(t, err, provider.ErrNotFound)
	again.Again = true
	second, err := Provider{}.Attach(within(t), again)
	require.NoError(t, err)
	require.Equal(t, first.name, second.Handle().ID)
	require.NotEqual(t, first.uid, second.(*instance).uid)
	require.Equal(t, "disk", second.(*instance).plan.volume)
	require.Equal(t, 2*time.Hour, second.(*instance).plan.Lease)
	require.NoError(t, second.Stop(within(t), 0))
	_, err = Provider{}.Attach(within(t), again)
	require.ErrorContains(t, err, "was stopped")
	require.Empty(t, s.left(t))
}

// TestAnOldSecretIsInNobodysWay: Kubernetes removes what belongs to a pod some time after the pod.
func TestAnOldSecretIsInNobodysWay(t *testing.T) {
	s := begin(t)
	s.CollectLate(true)
	spec := specOf()
	spec.Detached = true
	for range 2 {
		in := started(t, spec)
		require.NoError(t, in.Stop(within(t), 0))
	}
	require.Len(t, s.Objects(), 4)
	s.CollectLate(false)
	require.Empty(t, s.left(t))
}

// TestFilesOfOldMachinesGo: Sweep removes files of pods that do not exist.
func TestFilesOfOldMachinesGo(t *testing.T) {
	s := begin(t)
	st, err := openState()
	require.NoError(t, err)
	c, err := connect("", "")
	require.NoError(t, err)
	soon := time.Now().Add(time.Hour)
	for name, r := range map[string]*record{
		"here":    {Host: c.host, Namespace: "default", Until: soon},
		"old":     {Host: "elsewhere", Namespace: "default", Until: time.Now().Add(-time.Hour)},
		"foreign": {Host: "elsewhere", Namespace: "default", Until: soon},
	} {
		require.NoError(t, st.write(name, r))
	}
	lock, err := st.use("foreign")
	require.NoError(t, err)
	require.NoError(t, lock.Close())
	_, err = Provider{}.Sweep(within(t), func(provider.Found) bool { return true })
	require.NoError(t, err)
	require.Equal(t, []string{"foreign.json"}, s.left(t))
}

// TestGPUs: a type of GPU chooses nodes, and a number of GPUs is reserved.
func TestGPUs(t *testing.T) {
	begin(t)
	spec := withGPU(provider.Spec{GPU: "A100"})
	spec.Device = "cpu"
	_, err := Provider{}.Start(within(t), spec)
	require.ErrorIs(t, err, provider.ErrInvalidSpec)
	for _, c := range []struct {
		spec    provider.Spec
		device  string
		gpus    int
		product []string
	}{
		{withGPU(provider.Spec{}), "cpu", 0, nil},
		{withGPU(provider.Spec{GPUs: 2}), "cuda:0", 2, nil},
		{withGPU(provider.Spec{GPU: "T4"}), "cuda:0", 1, []string{"NVIDIA-T4", "T4", "Tesla-T4", "nvidia-tesla-t4"}},
		{withGPU(provider.Spec{}, "gpu_product", "X9"), "cuda:0", 1, []string{"X9"}},
	} {
		p, err := planOf(c.spec)
		require.NoError(t, err)
		require.Equal(t, c.device, p.Device)
		require.Equal(t, c.gpus, p.GPUs)
		require.Equal(t, c.product, p.gpuProducts)
		pod := podOf(p, "user", "name", "nonce")
		require.Equal(t, c.gpus, gpusOf(pod))
		require.Equal(t, c.gpus > 0, len(pod.Spec.Tolerations) > 0)
	}
	any := productsOf("A100")
	require.Subset(t, any, productsOf("A100-80GB")[1:])
	require.Contains(t, any, gpuNode)
}

// TestImpossibleOptions are refused without a request.
func TestImpossibleOptions(t *testing.T) {
	for _, c := range [][2]string{{"namespace", "A b"}, {"cpu", "many"}, {"memory", "8 GB"}, {"user", "root"},
		{"direct", "1"}, {"wait", "-1"}, {"gpu_product", "a b"}, {"gpu_label", "/"}, {"volume", "/data"},
		{"weights", "/data"}} {
		_, err := planOf(specOf(c[0], c[1]))
		require.ErrorIs(t, err, provider.ErrInvalidSpec)
		require.ErrorContains(t, err, fmt.Sprintf("%s=%q is not possible", c[0], c[1]))
	}
	spec := specOf()
	spec.Lease = 0
	_, err := planOf(spec)
	require.ErrorContains(t, err, "timeout=3600")
	spec = specOf()
	spec.Packages = []string{"numpy"}
	_, err = planOf(spec)
	require.ErrorContains(t, err, "image=…")
}

// TestACheckThatSucceeds makes nothing.
func TestACheckThatSucceeds(t *testing.T) {
	s := begin(t)
	require.NoError(t, Provider{}.Check(within(t), specOf()))
	require.Empty(t, s.Objects())
	s.SetFault(func(string, string) *metav1.Status { return &metav1.Status{Code: 500, Message: "down"} })
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	require.ErrorIs(t, Provider{}.Check(ctx, specOf()), context.Canceled)
}
