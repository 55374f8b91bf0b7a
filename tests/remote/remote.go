// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package remote starts the real mycelya-worker on a TCP port for test programs, and watches its supervisor: memory,
// descriptors, goroutines, sessions, and secrets in its log.
package remote

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
)

// Options say how a worker starts.
type Options struct {
	Program string   // path of mycelya-worker
	Flags   []string // besides those of the port, the credentials and the status page
	Log     string   // path of the file that gets the output of the worker and its sessions
	// Wrap is a command that starts the program with its flags, as a shell with limits does; nil: none.
	Wrap []string
}

// Worker is a running worker.
type Worker struct {
	Addr   string // address and port
	PID    int    // of the supervisor
	Client *transport.Credentials

	folder  string // of the status page's socket, until the worker has ended
	log     string
	secrets [][]byte
	cmd     *exec.Cmd
	stdin   *os.File
	done    chan struct{} // closed when the worker has ended
	err     error
}

// lease is longer than any run.
const lease = 24 * time.Hour

// handshakeWait is how long a worker has to print its handshake.
const handshakeWait = time.Minute

// Start starts a worker and returns when it listens.
func Start(o Options) (*Worker, error) {
	client, worker, err := transport.Mint(lease)
	if err != nil {
		return nil, err
	}
	secret, err := worker.Encode()
	if err != nil {
		return nil, err
	}
	w := &Worker{Client: client, log: o.Log, done: make(chan struct{})}
	if err := w.noteSecrets(client, worker); err != nil {
		return nil, err
	}
	if w.folder, err = os.MkdirTemp("", "mrw"); err != nil {
		return nil, err
	}
	line := append(append([]string{}, o.Wrap...), o.Program, "--listen", "127.0.0.1:0", "--credentials", "-",
		"--status", "unix:"+w.page(), "--stdin-eof")
	w.cmd = exec.Command(line[0], append(line[1:], o.Flags...)...)
	out, err := os.OpenFile(o.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		_ = os.RemoveAll(w.folder)
		return nil, err
	}
	defer out.Close()
	w.cmd.Stderr = out
	if err := w.start(secret); err != nil {
		return nil, err
	}
	return w, nil
}

// start starts the command, passes the secret, and takes the handshake.
func (w *Worker) start(secret []byte) error {
	r, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	w.cmd.Stdin, w.stdin = r, stdin
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := w.cmd.Start(); err != nil {
		_ = os.RemoveAll(w.folder)
		return err
	}
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		lines <- line
		w.err = w.cmd.Wait()
		_ = os.RemoveAll(w.folder)
		close(w.done)
	}()
	if _, err := stdin.Write(secret); err != nil {
		return errors.Join(err, w.Stop())
	}
	select {
	case line := <-lines:
		h, err := transport.ParseHandshake(line)
		if err != nil {
			return errors.Join(err, w.Stop())
		}
		w.Addr, w.PID = h.Addr, h.PID
		return nil
	case <-time.After(handshakeWait):
		return errors.Join(errors.New("the worker printed no handshake"), w.Stop())
	}
}

// page is the socket of the status page. A port that is free now may be another process's by the time of the start.
func (w *Worker) page() string { return filepath.Join(w.folder, "status") }

// Done is closed when the worker has ended.
func (w *Worker) Done() <-chan struct{} { return w.done }

// Stop ends the worker, and returns an error if the worker has ended in another way than it should.
func (w *Worker) Stop() error {
	select {
	case <-w.done:
		return fmt.Errorf("the worker has ended by itself: %v", w.cmd.ProcessState)
	default:
	}
	_ = w.stdin.Close()
	select {
	case <-w.done:
	case <-time.After(time.Minute):
		_ = w.cmd.Process.Kill()
		<-w.done
		return errors.New("the worker did not end when its stdin ended")
	}
	return w.err
}

// Connect opens a TLS connection for a session's name.
func (w *Worker) Connect(ctx context.Context, name string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", w.Addr)
	if err != nil {
		return nil, err
	}
	secure := w.Client.ClientSide(c, name)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return secure, nil
}

// dialWait bounds the time until a session has a connection.
const dialWait = time.Minute

// Link opens the link of a new session, and sends its first bytes: see link.Dial.
func (w *Worker) Link(name string, first []byte) (*link.Stream, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialWait)
	defer cancel()
	dial := func(ctx context.Context) (net.Conn, error) { return w.Connect(ctx, name) }
	return link.Dial(ctx, link.Default, dial, first, func(link.Notice) {})
}

// Ended asks how the process of a session has ended.
func (w *Worker) Ended(name string) (*proto.EndedReply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialWait)
	defer cancel()
	nc, err := w.Connect(ctx, transport.EndOf(name))
	if err != nil {
		return nil, err
	}
	c := transport.New(nc)
	defer func() { _ = c.Close() }()
	_ = nc.SetDeadline(time.Now().Add(dialWait))
	if err := c.Send(transport.Ended, 1, &proto.Ended{}, nil); err != nil {
		return nil, err
	}
	reply := new(proto.EndedReply)
	if _, err := Expect(c, transport.EndedReply, reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// Expect takes the next frame, which must have a type.
func Expect(c *transport.Conn, typ transport.Type, m protobuf.Message) (transport.Header, error) {
	h, err := c.Next()
	if err != nil {
		return h, err
	}
	if h.Type != typ {
		return h, fmt.Errorf("a %v frame instead of %v", h.Type, typ)
	}
	return h, c.Meta(m)
}

// noteSecrets notes each line of the keys of both ends.
func (w *Worker) noteSecrets(all ...*transport.Credentials) error {
	for _, c := range all {
		text, err := c.Encode()
		if err != nil {
			return err
		}
		_, key, found := bytes.Cut(text, []byte("-----BEGIN PRIVATE KEY-----\n"))
		key, _, ended := bytes.Cut(key, []byte("-----END"))
		if !found || !ended {
			return errors.New("the credentials have no private key")
		}
		for line := range bytes.Lines(key) {
			// The last line may be short. Sixteen characters do not appear by chance.
			if line = bytes.TrimSpace(line); len(line) >= 16 {
				w.secrets = append(w.secrets, line)
			}
		}
	}
	return nil
}

// CheckLog returns an error if the log of the worker has a part of a key, or says that the worker has a bug.
func (w *Worker) CheckLog() error {
	f, err := os.Open(w.log)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		for _, secret := range append(w.secrets, []byte("PRIVATE KEY")) {
			if bytes.Contains(line, secret) {
				return errors.New("the worker's log has a part of a key")
			}
		}
		if bytes.Contains(line, []byte("level=ERROR msg=panic")) {
			return fmt.Errorf("a session has panicked: %s", strings.TrimSpace(string(line)))
		}
		if err != nil {
			return nil
		}
	}
}

// Children are the processes of the worker's sessions.
func (w *Worker) Children() (out []string, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", w.PID))
	if err != nil {
		return nil, err
	}
	for _, name := range tasks {
		if b, err := os.ReadFile(name); err == nil { // a thread may have ended
			out = append(out, strings.Fields(string(b))...)
		}
	}
	return out, nil
}
