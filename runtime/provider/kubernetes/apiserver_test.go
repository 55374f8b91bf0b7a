// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// apiserverEnv is the path of a kube-apiserver, which scripts/kube-apiserver.sh builds. etcd must be in the path.
const apiserverEnv = "KUBE_APISERVER"

// real is a real API server with etcd, without controllers and nodes.
type real struct{ folder, url string }

// beginReal starts an API server whose administrator is the user.
func beginReal(t *testing.T) *real {
	program := os.Getenv(apiserverEnv)
	if program == "" {
		t.Skip("KUBE_APISERVER is not set; scripts/kube-apiserver.sh builds a kube-apiserver")
	}
	etcd, err := exec.LookPath("etcd")
	require.NoError(t, err, "apt-get install etcd-server")
	r := &real{folder: t.TempDir()}
	at, peers, port := freePort(t), freePort(t), freePort(t)
	r.url = "https://127.0.0.1:" + port
	r.run(t, etcd, "--data-dir", filepath.Join(r.folder, "etcd"), "--listen-client-urls", "http://127.0.0.1:"+at,
		"--advertise-client-urls", "http://127.0.0.1:"+at, "--listen-peer-urls", "http://127.0.0.1:"+peers)
	key := r.file(t, "key.pem", newKey(t))
	tokens := r.file(t, "tokens.csv", "boss,boss,1,system:masters\nann,ann,2\n")
	r.run(t, program, "--etcd-servers", "http://127.0.0.1:"+at, "--secure-port", port, "--bind-address", "127.0.0.1",
		"--cert-dir", r.folder, "--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC",
		"--service-account-issuer", "https://issuer", "--service-account-key-file", key,
		"--service-account-signing-key-file", key, "--token-auth-file", tokens,
		"--disable-admission-plugins", "ServiceAccount")
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	r.user(t, "boss")
	c, err := connect("", "")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := c.core.Get().AbsPath("/readyz").DoRaw(within(t))
		return err == nil
	}, 2*patience, 100*time.Millisecond)
	return r
}

// run runs a program until the end of the test. Its output is a file.
func (r *real) run(t *testing.T, program string, args ...string) {
	log, err := os.Create(filepath.Join(r.folder, filepath.Base(program)+".log"))
	require.NoError(t, err)
	c := exec.Command(program, args...)
	c.Stdout, c.Stderr = log, log
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s: …%s", program, text[max(0, len(text)-4000):])
		}
	})
}

func (r *real) file(t *testing.T, name, text string) string {
	path := filepath.Join(r.folder, name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// user makes the holder of a token the user.
func (r *real) user(t *testing.T, token string) {
	kubeconfig(t, fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: real,
clusters: [{name: real, cluster: {server: %q, insecure-skip-tls-verify: true}}],
users: [{name: real, user: {token: %q}}],
contexts: [{name: real, context: {cluster: real, user: real}}]}`, r.url, token))
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

func newKey(t *testing.T) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

// TestARealAPIServer: a real API server takes the objects of a start, and its refusals are the sentences of the others.
func TestARealAPIServer(t *testing.T) {
	r := beginReal(t)
	c, err := connect("", "")
	require.NoError(t, err)
	strict := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "strict",
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	require.NoError(t, c.core.Post().Resource("namespaces").Body(strict).Do(within(t)).Error())
	require.NoError(t, Provider{}.Check(within(t), specOf()))
	gpu := withGPU(provider.Spec{GPU: "A100"}, "namespace", "strict", "volume", "disk", "weights", "disk", "cpu", "2",
		"memory", "4Gi", "pull_secret", "login")
	require.NoError(t, Provider{}.Check(within(t), gpu), "the pod fits the profile \"restricted\"")
	for _, f := range []struct {
		token string
		spec  provider.Spec
		kind  error
		want  string
	}{
		{"boss", specOf("namespace", "strict", "user", "0"), provider.ErrInvalidSpec, "does not take such a pod"},
		{"boss", specOf("namespace", "nowhere"), provider.ErrNotFound, `The namespace "nowhere" does not exist`},
		{"boss", specOf("wait", "1"), provider.ErrCapacity, "No node of the cluster took the pod within 1s"},
		{"ann", specOf(), provider.ErrAuth, "This user may not list pods"},
		{"nobody", specOf(), provider.ErrAuth, "does not accept the credentials"},
	} {
		r.user(t, f.token)
		_, err := Provider{}.Start(within(t), f.spec)
		require.ErrorIs(t, err, f.kind)
		require.ErrorContains(t, err, f.want)
	}
	r.user(t, "boss")
	list, err := c.pods.List(within(t), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, list.Items)
}

// TestAMachineOfARealAPIServer: a start, a second process, a sweep and a crash, with the real API server. The test is
// the scheduler and the node.
func TestAMachineOfARealAPIServer(t *testing.T) {
	beginReal(t)
	c, err := connect("", "")
	require.NoError(t, err)
	node := startNode(t, c)
	spec := specOf("direct", "yes")
	spec.Detached = true
	first, err := Provider{}.Start(within(t), spec)
	require.NoError(t, err)
	require.NoError(t, hello(t, first))
	_, err = Provider{}.Start(within(t), spec)
	require.ErrorIs(t, err, provider.ErrInvalidSpec)
	second, err := Provider{}.Attach(within(t), specOf("direct", "yes"))
	require.NoError(t, err)
	require.NoError(t, hello(t, second))
	node.kill()
	for _, in := range []provider.Instance{first, second} {
		exit, err := in.Wait(within(t))
		require.NoError(t, err)
		require.Equal(t, provider.Crashed, exit.Reason)
	}
	require.NoError(t, first.Stop(within(t), 0))
	third, err := Provider{}.Start(within(t), spec)
	require.NoError(t, err)
	found, err := Provider{}.Sweep(within(t), func(provider.Found) bool { return true })
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, third.Handle(), found[0].Handle)
	require.True(t, found[0].Ended)
	exit, err := third.Wait(within(t))
	require.NoError(t, err)
	require.Equal(t, provider.Done, exit.Reason)
}

// hello opens a stream of TLS.
func hello(t *testing.T, in provider.Instance) error {
	conn, err := provider.Connect(within(t), in, transport.NewSessionName())
	if err != nil {
		return err
	}
	return conn.Close()
}

// node is the scheduler and the node of a real API server. A pod's worker has an address of the loopback interface.
type node struct {
	t    *testing.T
	c    *cluster
	mu   sync.Mutex
	runs map[types.UID]*workload
}

// workload is the worker of a pod.
type workload struct {
	*exec.Cmd
	done chan struct{} // closed when it has ended
}

// ended says whether it has ended.
func (c *workload) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// startNode makes the test the scheduler and the node of a cluster until its end.
func startNode(t *testing.T, c *cluster) *node {
	n := &node{t: t, c: c, runs: map[types.UID]*workload{}}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			n.look(ctx)
			time.Sleep(20 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-over
		n.kill()
	})
	return n
}

// kill ends all workers.
func (n *node) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, cmd := range n.runs {
		_ = cmd.Process.Kill()
	}
}

// look does for each pod what is due.
func (n *node) look(ctx context.Context) {
	list, err := n.c.pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return // the next look tries again
	}
	for i := range list.Items {
		pod := &list.Items[i]
		n.mu.Lock()
		cmd := n.runs[pod.UID]
		n.mu.Unlock()
		switch {
		case pod.DeletionTimestamp != nil:
			if cmd != nil {
				_ = cmd.Process.Kill()
			}
			_ = n.c.pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))})
		case pod.Spec.NodeName == "":
			bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
				Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}
			_ = n.c.core.Post().Namespace(n.c.namespace).Resource("pods").Name(pod.Name).SubResource("binding").Body(bind).
				Do(ctx).Error()
		case cmd == nil:
			n.start(ctx, pod)
		case cmd.ended() && pod.Status.Phase == corev1.PodRunning:
			n.tell(ctx, pod, corev1.PodFailed, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 128 + int32(syscall.SIGKILL), Reason: "Error"}})
		}
	}
}

// start runs the command of a pod once its secret exists.
func (n *node) start(ctx context.Context, pod *corev1.Pod) {
	secret, err := n.c.secrets.Get(ctx, dependentName(pod), metav1.GetOptions{})
	if err != nil {
		return
	}
	folder := n.t.TempDir()
	file := filepath.Join(folder, secretFile)
	require.NoError(n.t, os.WriteFile(file, secret.Data[secretFile], 0o400))
	address := fmt.Sprintf("127.77.%d.%d", 1+rand.IntN(250), 1+rand.IntN(250))
	args := []string{"--backend", "ref"}
	for _, a := range pod.Spec.Containers[0].Command[1:] {
		switch a {
		case ":" + strconv.Itoa(Port):
			a = address + a
		case secretFolder + "/" + secretFile:
			a = file
		case stateFolder:
			a = filepath.Join(folder, "state")
		}
		args = append(args, a)
	}
	cmd := exec.Command(workerPath, args...)
	cmd.Env = []string{"HOME=" + folder}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(n.t, cmd.Start())
	done := make(chan struct{})
	n.mu.Lock()
	n.runs[pod.UID] = &workload{cmd, done}
	n.mu.Unlock()
	for {
		conn, err := net.Dial("tcp", net.JoinHostPort(address, strconv.Itoa(Port)))
		if err == nil {
			_ = conn.Close()
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	now := metav1.Now()
	pod.Status.StartTime, pod.Status.PodIP = &now, address
	pod.Status.PodIPs = []corev1.PodIP{{IP: address}}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady,
		Status: corev1.ConditionTrue, LastTransitionTime: now})
	n.tell(ctx, pod, corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}})
}

// tell writes the state of a pod.
func (n *node) tell(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState) {
	pod.Status.Phase = phase
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: ContainerName, Image: pod.Spec.Containers[0].Image,
		State: state, Ready: state.Running != nil}}
	_, err := n.c.pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if err != nil && ctx.Err() == nil {
		n.t.Log(err)
	}
}
