// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakeplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"strconv"
	"sync"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
)

// authority has the certificate of the tunnels with TLS.
type authority struct {
	config *tls.Config
	text   []byte // of the certificate
	err    error
}

// shared is the authority of all planes of a process: a process that is their client, too, reads the roots of TLS once.
var shared = sync.OnceValue(newAuthority)

// newAuthority makes a certificate for 127.0.0.1.
func newAuthority() authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{err: err}
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tunnels of a fake plane"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	return authority{config, text, err}
}

// tunnels are the ports of this host that lead into a sandbox.
type tunnels struct {
	s         *sandbox
	listeners []net.Listener
	data      []*pb.TunnelData

	mu    sync.Mutex
	over  bool
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

// open opens a tunnel for each port of a sandbox.
func (t *tunnels) open(ports []*pb.PortSpec) error {
	t.conns = map[net.Conn]struct{}{}
	for _, port := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		at := l.Addr().(*net.TCPAddr)
		data := pb.TunnelData_builder{ContainerPort: port.GetPort()}
		blocked := func(f Faults) bool { return f.BlockTLS }
		if port.GetUnencrypted() {
			if far, err := t.far(at.String()); err != nil {
				return err
			} else if far != nil {
				at = far
			}
			host, number := "127.0.0.1", uint32(at.Port)
			data.UnencryptedHost, data.UnencryptedPort = &host, &number
			blocked = func(f Faults) bool { return f.BlockRaw }
		} else {
			data.Host, data.Port = "127.0.0.1", uint32(at.Port)
		}
		t.listeners = append(t.listeners, l)
		t.data = append(t.data, data.Build())
		target := net.JoinHostPort(t.s.ip, strconv.Itoa(int(port.GetPort())))
		t.wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.wg.Go(func() { t.serve(c, target, !port.GetUnencrypted(), blocked) })
			}
		})
	}
	return nil
}

// far is the address from which Options.Serve leads to a tunnel; nil: nothing leads there.
func (t *tunnels) far(to string) (*net.TCPAddr, error) {
	serve := t.s.plane.options.Serve
	if serve == nil {
		return nil, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t.listeners = append(t.listeners, l)
	t.wg.Go(func() { serve(l, to) })
	return l.Addr().(*net.TCPAddr), nil
}

// serve forwards one connection.
func (t *tunnels) serve(c net.Conn, target string, secure bool, blocked func(Faults) bool) {
	if !t.hold(c) {
		return
	}
	defer t.drop(c)
	if blocked(t.s.plane.fault()) {
		_, _ = io.Copy(io.Discard, c) // until the client or the sandbox ends
		return
	}
	outer := c
	if secure {
		outer = tls.Server(c, shared().config)
	}
	inner, err := net.Dial("tcp", target)
	if err != nil || !t.hold(inner) {
		return
	}
	defer t.drop(inner)
	defer t.s.busy()()
	ended := make(chan struct{}, 2)
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		ended <- struct{}{}
	}
	go pipe(inner, outer)
	go pipe(outer, inner)
	<-ended
	<-ended
}

// hold notes a connection until drop. False: the tunnels are closed.
func (t *tunnels) hold(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		_ = c.Close()
		return false
	}
	t.conns[c] = struct{}{}
	return true
}

func (t *tunnels) drop(c net.Conn) {
	_ = c.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

// close ends all connections.
func (t *tunnels) close() {
	t.mu.Lock()
	t.over = true
	for _, l := range t.listeners {
		_ = l.Close()
	}
	for c := range t.conns {
		_ = c.Close()
	}
	t.mu.Unlock()
	t.wg.Wait()
}
