// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package fakecluster is a small Kubernetes cluster for tests: an API server of its own that speaks the real protocols
// over TLS, and one node that runs each pod's command as a process of this host. The worker, the requests, the watches
// and the streams are real; the scheduler, the registry and the kernel's containers are not. It never runs anything but
// the programs of its images.
package fakecluster

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Image is an image that the node can get.
type Image struct {
	Worker     string   // the program that the command "mycelya-worker" runs
	Args       []string // its first arguments
	Env        []string
	PullSecret string // the name of the secret that a pod must have to get it; "": none
}

// Config is a cluster.
type Config struct {
	Images     map[string]Image
	NodeLabels map[string]string
	GPUs       int               // of the node
	Claims     map[string]string // names of PersistentVolumeClaims, and their folders
	Namespaces []string          // beside "default"
	Folder     string            // for the node's files
}

// Fault decides whether a request is refused: nil, or the status that it gets. The resource of a request for the port
// of a pod is "pods/portforward".
type Fault func(verb, resource string) *metav1.Status

// Cluster is a running cluster.
type Cluster struct {
	config Config
	server *httptest.Server
	token  string
	store  *store

	mu       sync.Mutex // guards what follows
	fault    Fault
	pods     map[string]*running // by UID
	hijacked map[net.Conn]struct{}
	hold     bool // streams get no reply
	expired  int  // so many watches begin with "too old"
	requests int
	loses    bool // the answer to the next creation gets lost
}

// Start starts a cluster. Close ends it.
func Start(config Config) *Cluster {
	c := &Cluster{config: config, token: rand.Text(), store: newStore(), pods: map[string]*running{},
		hijacked: map[net.Conn]struct{}{}}
	c.server = httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	c.server.EnableHTTP2 = true
	c.server.Config.ErrorLog = log.New(io.Discard, "", 0) // tests end connections at any time
	c.server.Config.ConnState = func(conn net.Conn, s http.ConnState) {
		if s == http.StateHijacked {
			c.mu.Lock()
			c.hijacked[conn] = struct{}{}
			c.mu.Unlock()
		}
	}
	c.server.StartTLS()
	return c
}

// Close ends all pods and the API server.
func (c *Cluster) Close() {
	c.CutStreams()
	c.server.CloseClientConnections()
	c.server.Close()
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.pods))
	c.mu.Unlock()
	for _, r := range all {
		r.order(order{kind: killed})
		<-r.over
	}
}

// Kubeconfig writes a kubeconfig with the context "fake" and returns its path.
func (c *Cluster) Kubeconfig(folder string) (string, error) {
	path := filepath.Join(folder, "kubeconfig")
	return path, os.WriteFile(path, []byte(c.KubeconfigText(c.server.URL, c.token)), 0o600)
}

// KubeconfigText is a kubeconfig for an address and a token.
func (c *Cluster) KubeconfigText(url, token string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: fake
clusters:
- name: fake
  cluster: {server: %q, certificate-authority-data: %s}
users:
- name: fake
  user: {token: %q}
contexts:
- name: fake
  context: {cluster: fake, user: fake}
`, url, base64.StdEncoding.EncodeToString(ca), token)
}

// URL is the address of the API server.
func (c *Cluster) URL() string { return c.server.URL }

// Objects names the objects of the cluster, as "pods/default/x", in order.
func (c *Cluster) Objects() []string { return c.store.names() }

// Processes are the numbers of the processes that the node runs.
func (c *Cluster) Processes() (out []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.pods {
		if pid := r.pid.Load(); pid != 0 {
			out = append(out, int(pid))
		}
	}
	slices.Sort(out)
	return out
}

// Requests is how many requests have come.
func (c *Cluster) Requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

// SetFault makes requests fail from now on; nil: none.
func (c *Cluster) SetFault(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
}

// HoldStreams makes streams get no reply, or lets them.
func (c *Cluster) HoldStreams(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = yes
}

// holds says whether streams get no reply.
func (c *Cluster) holds() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hold
}

// CollectLate makes what belongs to a pod stay when the pod goes, as a slow garbage collector does, or removes it.
func (c *Cluster) CollectLate(yes bool) { c.store.collectLate(yes) }

// CutStreams ends the connections of all streams to pods, without a word, and returns how many there were.
func (c *Cluster) CutStreams() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.hijacked)
	for conn := range c.hijacked {
		if t, ok := conn.(*tls.Conn); ok {
			conn = t.NetConn()
		}
		_ = conn.Close()
	}
	clear(c.hijacked)
	return n
}

// CutWatches ends all watches, and makes the next one begin with the answer that its version is too old.
func (c *Cluster) CutWatches() {
	c.mu.Lock()
	c.expired++
	c.mu.Unlock()
	c.store.cut()
}

// LoseAnswer makes the answer to the next creation get lost: the connection ends after the object exists.
func (c *Cluster) LoseAnswer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loses = true
}

// losesAnswer says whether this answer gets lost.
func (c *Cluster) losesAnswer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.loses
	c.loses = false
	return out
}

// StopListening makes connections to a pod fail, as if its process did not listen.
func (c *Cluster) StopListening(pod string) {
	c.store.change(pod, func(p *podObject) { p.Status.PodIP = newAddress() })
}

// Kill ends the process of a pod by SIGKILL. When it returns, the process has ended.
func (c *Cluster) Kill(pod string) {
	r := c.tell(pod, killed)
	if r == nil {
		return
	}
	for pid := r.pid.Load(); pid != 0 && r.pid.Load() == pid; {
		time.Sleep(time.Millisecond)
	}
}

// OutOfMemory ends the process of a pod as the kernel does when its control group has no memory.
func (c *Cluster) OutOfMemory(pod string) { _ = c.tell(pod, outOfMemory) }

// Evict ends a pod as a node does that lacks something.
func (c *Cluster) Evict(pod string) { _ = c.tell(pod, evicted) }

// Preempt ends a pod as the scheduler does for a more important one.
func (c *Cluster) Preempt(pod string) {
	if c.store.change(pod, func(p *podObject) { setDisruption(p, "PreemptionByScheduler") }) {
		c.deletePod(pod, "", 1)
	}
}

// LoseNode makes a pod's node silent for longer than the cluster tolerates. The process goes on.
func (c *Cluster) LoseNode(pod string) {
	c.store.change(pod, func(p *podObject) {
		setDisruption(p, "DeletionByTaintManager")
		now := metav1.Now()
		p.DeletionTimestamp = &now
	})
}

// tell gives an order to the node about a pod, by its name. It returns the node's part of the pod, or nil.
func (c *Cluster) tell(pod string, kind orderKind) *running {
	p := c.store.pod(pod)
	if p == nil {
		return nil
	}
	c.mu.Lock()
	r := c.pods[string(p.UID)]
	c.mu.Unlock()
	if r != nil {
		r.order(order{kind: kind})
	}
	return r
}

// refused is the status with which a request is refused; nil: it is not.
func (c *Cluster) refused(verb, resource string) *metav1.Status {
	c.mu.Lock()
	f := c.fault
	c.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(verb, resource)
}

// Forbid is a Fault that refuses one kind of request.
func Forbid(verb, resource, message string) Fault {
	return func(v, r string) *metav1.Status {
		if v != verb || r != resource {
			return nil
		}
		return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Message: strings.TrimSpace(resource + " is forbidden: " + message)}
	}
}
