// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakecluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// probePause is the time between two attempts of a startup probe.
const probePause = 20 * time.Millisecond

// process is a container.
type process struct {
	r      *running
	cmd    *exec.Cmd
	folder string
	done   chan struct{} // closed when it has ended
	last   order         // the order that has ended it
}

// start runs the command of a pod with its volumes.
func (r *running) start(pod *podObject, image Image, address string) (*process, error) {
	of := pod.Spec.Containers[0]
	if len(of.Command) == 0 || of.Command[0] != "mycelya-worker" {
		return nil, fmt.Errorf("exec: %q: executable file not found in $PATH", of.Command)
	}
	folder, err := os.MkdirTemp(r.c.config.Folder, "pod-") // mode 0700
	if err != nil {
		return nil, err
	}
	paths, err := r.mount(pod, folder)
	if err != nil {
		_ = os.RemoveAll(folder)
		return nil, err
	}
	within := func(text string) string {
		for there, here := range paths {
			if text == there || strings.HasPrefix(text, there+"/") {
				return here + strings.TrimPrefix(text, there)
			}
		}
		return text
	}
	args := append([]string{}, image.Args...)
	for _, a := range of.Command[1:] {
		if strings.HasPrefix(a, ":") { // a pod has an address of its own
			a = address + a
		}
		args = append(args, within(a))
	}
	p := &process{r: r, folder: folder, done: make(chan struct{})}
	p.cmd = exec.Command(image.Worker, args...)
	p.cmd.Env = append([]string{}, image.Env...)
	for _, e := range of.Env {
		p.cmd.Env = append(p.cmd.Env, e.Name+"="+within(e.Value))
	}
	p.cmd.Stdout, p.cmd.Stderr = &r.log, &r.log
	p.cmd.WaitDelay = time.Second // a process that it has started may hold its pipes
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		_ = os.RemoveAll(folder)
		return nil, err
	}
	r.pid.Store(int64(p.cmd.Process.Pid))
	go func() {
		_ = p.cmd.Wait()
		r.pid.Store(0)
		_ = os.RemoveAll(folder)
		close(p.done)
	}()
	r.change(func(p *podObject) {
		p.Status.Phase = corev1.PodRunning
		setContainer(p, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}})
		setCondition(p, corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady", "")
	})
	return p, nil
}

// mount makes the volumes of a pod in a folder, and returns their paths here by their paths in the container.
func (r *running) mount(pod *podObject, folder string) (map[string]string, error) {
	volumes := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		at := filepath.Join(folder, v.Name)
		switch {
		case v.PersistentVolumeClaim != nil:
			at = r.c.config.Claims[v.PersistentVolumeClaim.ClaimName]
		case v.Secret != nil:
			if err := r.writeSecret(pod, v.Secret, at); err != nil {
				return nil, err
			}
		case v.EmptyDir != nil:
			if err := os.Mkdir(at, 0o700); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("the volume %s is of no kind that this node knows", v.Name)
		}
		volumes[v.Name] = at
	}
	out := map[string]string{}
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		out[m.MountPath] = volumes[m.Name]
	}
	return out, nil
}

// writeSecret writes a secret as files with the mode that the pod wants.
func (r *running) writeSecret(pod *podObject, of *corev1.SecretVolumeSource, at string) error {
	secret, ok := r.c.store.get(key("secrets", pod.Namespace, of.SecretName)).(*corev1.Secret)
	if !ok {
		return fmt.Errorf("secret %q not found", of.SecretName)
	}
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if of.DefaultMode != nil {
		mode = os.FileMode(*of.DefaultMode)
	}
	for name, text := range secret.Data {
		if err := os.WriteFile(filepath.Join(at, name), text, mode); err != nil {
			return err
		}
	}
	return nil
}

// watch probes a process until it listens, and ends it at an order. It returns when the process has ended.
func (r *running) watch(p *process, address string) *process {
	probe := time.NewTicker(probePause)
	defer probe.Stop()
	for {
		select {
		case <-p.done:
			return p
		case o := <-r.orders:
			p.end(o)
			return p
		case <-probe.C:
			conn, err := net.DialTimeout("tcp", address, time.Second)
			if err != nil {
				continue
			}
			_ = conn.Close()
			probe.Stop()
			r.change(func(p *podObject) {
				*p.Status.ContainerStatuses[0].Started = true
				setCondition(p, corev1.PodReady, corev1.ConditionTrue, "", "")
			})
		}
	}
}

// end ends the process as an order says.
func (p *process) end(o order) {
	p.last = o
	grace := o.grace
	if o.kind == overdue || o.kind == evicted {
		grace = time.Second
	}
	if grace > 0 {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		timer := time.NewTimer(grace)
		defer timer.Stop()
		for waits := true; waits; {
			select {
			case <-p.done:
				return
			case again := <-p.r.orders:
				waits = again.kind != killed
			case <-timer.C:
				waits = false
			}
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// code is the exit code as a runtime of containers tells it.
func (p *process) code() int {
	const signalBase = 128
	s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && s.Signaled() {
		return signalBase + int(s.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// tail keeps the end of a log.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > 2*tailBytes {
		t.text = append(t.text[:0], t.text[len(t.text)-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

var errNotRunning = errors.New("container not running")
