// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/crash"
	"github.com/mycelya/mycelya/worker/session"
)

// Descriptors of a session's process, after the three that every process has.
const (
	controlFD    = 3 // a socket, over which connections come
	progressFD   = 4
	credentialFD = 5 // a pipe with the worker's credentials, if it has some
)

// Messages on the control socket: the process's, and the supervisor's.
const (
	claimByte    = 'c' // the name of a session follows
	enterByte    = 'e' // the name of the client follows
	questionByte = 'q' // see ask.go
)

const (
	messageConn   byte = iota // a connection, as a descriptor, or as two: see pipes
	messageNoted              // the supervisor knows the name, and has ended what must end before
	messageAnswer             // see ask.go
	messageDrain              // the session must answer what has arrived, and end: the worker is being stopped
	messageYield              // the same: another client takes its place
)

// maxHandshakes bounds the connections whose handshakes a process makes at the same time. The oldest is closed when
// there is another one, so that silent connections keep no client out.
const maxHandshakes = 16

// A Channel is a session process's end of what it shares with the supervisor.
type Channel struct {
	Progress *crash.Progress
	Journal  *crash.Journal // nil: the supervisor keeps no crashes
	Log      *slog.Logger
	Limits   link.Limits // of a client's link

	credentials *transport.Credentials // of clients that must prove who they are; nil: connections over TCP are refused
	control     *net.UnixConn
	asking      sync.Mutex // held while a question has no answer
	conns       chan net.Conn
	noted       chan struct{}
	answers     chan answered
	ended       chan struct{} // closed when the supervisor has ended
	drain       chan string   // gets the reason when the session must end
}

// OpenChannel opens the descriptors that the supervisor has passed to this process. secure: credentials are among them.
func OpenChannel(secure bool, log *slog.Logger) (*Channel, error) {
	memory, control := os.NewFile(progressFD, "progress"), os.NewFile(controlFD, "control")
	defer memory.Close()
	defer control.Close()
	p, journal, err := crash.OpenProgress(memory)
	if err != nil {
		return nil, fmt.Errorf("this program serves one session, and only mycelya-worker starts it: %w", err)
	}
	out := &Channel{
		Progress: p, Journal: journal, Log: log, Limits: link.Default, conns: make(chan net.Conn),
		noted: make(chan struct{}, 1), ended: make(chan struct{}), drain: make(chan string, 1),
		answers: make(chan answered, 1),
	}
	if secure {
		pipe := os.NewFile(credentialFD, "credentials")
		text, err := io.ReadAll(pipe)
		_ = pipe.Close()
		if err != nil {
			return nil, err
		}
		if out.credentials, err = transport.ParseCredentials(text); err != nil {
			return nil, err
		}
	}
	c, err := net.FileConn(control)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("the control descriptor is no unix socket")
	}
	out.control = u
	go out.listen()
	return out, nil
}

// listen takes the supervisor's messages until it ends.
func (c *Channel) listen() {
	defer close(c.ended)
	one, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(2*4))
	for {
		n, rn, _, _, err := c.control.ReadMsgUnix(one, rights)
		switch {
		case err != nil || n == 0:
			return
		case one[0] == messageNoted:
			c.noted <- struct{}{}
			continue
		case one[0] == messageAnswer:
			c.answers <- c.takeAnswer(rights[:rn])
			continue
		case one[0] == messageDrain, one[0] == messageYield: // one of them comes, once
			c.drain <- map[byte]string{messageDrain: stopText, messageYield: transport.AnotherClient}[one[0]]
			continue
		}
		conn, err := c.passed(rights[:rn])
		if err != nil {
			c.Log.Warn("the supervisor passed no connection", "error", err)
			continue
		}
		select {
		case c.conns <- conn:
		case <-c.ended:
		}
	}
}

// passed returns the connection whose descriptors came with a message.
func (c *Channel) passed(rights []byte) (net.Conn, error) {
	fds, err := descriptorsIn(rights)
	if err != nil {
		return nil, err
	}
	if len(fds) == 2 {
		return newPipes(fds[0], fds[1], c.Progress)
	}
	f := os.NewFile(uintptr(fds[0]), "client")
	defer f.Close() // FileConn duplicates it
	return net.FileConn(f)
}

// descriptorsIn returns the descriptors, at least one, that came with a message.
func descriptorsIn(rights []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("there are %d control messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	return fds, nil
}

// Wait returns when the supervisor has ended.
func (c *Channel) Wait() { <-c.ended }

// Stop gets the reason when the session must end: see Server.Stop.
func (c *Channel) Stop() <-chan string { return c.drain }

// handshake is what has become of a connection.
type handshake struct {
	raw   net.Conn
	tls   *tls.Conn
	name  string
	hello link.Hello
	err   error
}

// Accept waits for the client. Without credentials, the first connection over a unix socket is the client's: the
// supervisor has checked its user. With credentials, it is the first one that proves by its certificate that it is
// the client; any number of others may come before. Accept returns a link then, which gets the later connections of
// the client too. Accept closes all other connections, also later. io.EOF: the supervisor has ended.
func (c *Channel) Accept() (net.Conn, error) {
	var under []net.Conn // connections with handshakes, oldest first
	results := make(chan handshake)
	for {
		select {
		case <-c.ended:
			return nil, io.EOF
		case conn := <-c.conns:
			if _, tcp := conn.(*net.TCPConn); !tcp && c.credentials == nil {
				go c.acceptMore("", nil, under, results)
				return conn, nil
			}
			under = c.begin(conn, under, results)
		case h := <-results:
			under = remove(under, h.raw)
			if !c.proved(h) {
				continue
			}
			if !h.hello.Fresh { // the session was that of another process
				go func() { _ = link.Refuse(h.tls, link.Unknown) }()
				continue
			}
			stream := link.NewWorker(c.Limits)
			go c.acceptMore(h.name, stream, under, results)
			if err := c.tell(claimByte, h.name); err != nil {
				return nil, err
			}
			return stream, stream.Attach(h.tls, h.hello)
		}
	}
}

// begin begins the handshake of a connection, whose result comes later. It returns the connections with handshakes.
func (c *Channel) begin(conn net.Conn, under []net.Conn, results chan<- handshake) []net.Conn {
	if c.credentials == nil {
		_ = conn.Close()
		return under
	}
	if len(under) >= maxHandshakes {
		_ = under[0].Close() // its handshake fails
	}
	go func() { results <- c.shake(conn) }()
	return append(under, conn)
}

// proved says whether a connection is that of a client, and otherwise closes it.
func (c *Channel) proved(h handshake) bool {
	if h.err != nil {
		c.Log.Warn("a connection is refused", "from", h.raw.RemoteAddr(), "error", h.err)
		_ = h.raw.Close()
	}
	return h.err == nil
}

func remove(conns []net.Conn, c net.Conn) []net.Conn {
	for i, x := range conns {
		if x == c {
			return append(conns[:i], conns[i+1:]...)
		}
	}
	return conns
}

// shake makes the handshake of a connection.
func (c *Channel) shake(raw net.Conn) handshake {
	ctx, cancel := context.WithTimeout(context.Background(), session.HelloWait)
	defer cancel()
	out := handshake{raw: raw, tls: c.credentials.WorkerSide(raw)}
	if out.err = out.tls.HandshakeContext(ctx); out.err == nil {
		out.name, out.err = transport.NameOf(out.tls)
	}
	if out.err == nil {
		_ = out.tls.SetReadDeadline(time.Now().Add(session.HelloWait))
		out.hello, out.err = link.ReadHello(out.tls)
	}
	return out
}

// Enter tells the supervisor the name of the client, and waits until the sessions of another client have ended if the
// worker is for one: see Server.Enter.
func (c *Channel) Enter(client string) error { return c.tell(enterByte, client) }

// tell tells the supervisor a name, and waits until the supervisor knows it. When it knows that of this process's
// session, other connections for the session find this process.
func (c *Channel) tell(what byte, name string) error {
	if _, err := c.control.Write(append([]byte{what}, name...)); err != nil {
		return err
	}
	select {
	case <-c.noted:
		return nil
	case <-c.ended:
		return io.EOF
	}
}

// acceptMore takes the connections that come when this process has its client. Those of the client are for its link.
// The supervisor may have passed on a client of another session before this process had a client; acceptMore tells such
// a client to connect again.
func (c *Channel) acceptMore(session string, stream *link.Stream, under []net.Conn, results chan handshake) {
	for {
		select {
		case <-c.ended:
			return
		case conn := <-c.conns:
			under = c.begin(conn, under, results)
		case h := <-results:
			under = remove(under, h.raw)
			switch {
			case !c.proved(h):
			case stream == nil || h.name != session:
				go func() { _ = link.Refuse(h.tls, link.Again) }()
			default:
				c.Log.Info("the client has connected again", "from", h.raw.RemoteAddr(), "epoch", h.hello.Epoch)
				go func() { _ = stream.Attach(h.tls, h.hello) }()
			}
		}
	}
}

// controlPair makes a control socket: this process's end, and that of a process that is to be started.
func controlPair() (*net.UnixConn, *os.File, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range pair {
		syscall.CloseOnExec(fd)
	}
	mine, other := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	defer mine.Close() // FileConn duplicates it
	c, err := net.FileConn(mine)
	if err != nil {
		_ = other.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), other, nil
}

// filled returns the read end of a pipe with these bytes, which fit into a pipe's buffer.
func filled(text []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_ = w.SetWriteDeadline(time.Now().Add(time.Second))
	_, err = w.Write(text)
	if err = errors.Join(err, w.Close()); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}
