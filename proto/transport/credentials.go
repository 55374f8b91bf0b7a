// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"time"
)

// Credentials are one end's certificate and key, and the certificate of the authority that signed both ends'. Mint
// makes them for one worker and its client. Mint does not keep the authority's key, so nobody can make a third
// certificate.
type Credentials struct {
	leaf      tls.Certificate
	authority *x509.Certificate
}

const (
	// nameSuffix ends the names of sessions in a TLS handshake. It is not a name in DNS: addresses and ports of workers
	// may change on the way, as behind a tunnel.
	nameSuffix = ".session.mycelya.internal"
	// clockSkew is by how much the clocks of client and worker may differ.
	clockSkew = 24 * time.Hour
)

// ErrCredentials means that bytes are not the credentials that Encode has made.
var ErrCredentials = errors.New("transport: not the credentials of a worker")

// Mint makes the credentials of a client and of a worker that lives for at most lease.
func Mint(lease time.Duration) (client, worker *Credentials, err error) {
	now := time.Now()
	template := func(name string) *x509.Certificate {
		return &x509.Certificate{
			Subject:               pkix.Name{CommonName: name},
			NotBefore:             now.Add(-clockSkew),
			NotAfter:              now.Add(lease + clockSkew),
			BasicConstraintsValid: true,
		}
	}
	ca := template("mycelya authority")
	ca.IsCA, ca.MaxPathLenZero, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	authority, key, _, err := sign(ca, ca, nil)
	if err != nil {
		return nil, nil, err
	}
	leaf := func(c *x509.Certificate, usage x509.ExtKeyUsage) (*Credentials, error) {
		c.KeyUsage, c.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}
		cert, leafKey, der, err := sign(c, authority, key)
		if err != nil {
			return nil, err
		}
		return &Credentials{
			leaf:      tls.Certificate{Certificate: [][]byte{der}, PrivateKey: leafKey, Leaf: cert},
			authority: authority,
		}, nil
	}
	if client, err = leaf(template("mycelya client"), x509.ExtKeyUsageClientAuth); err != nil {
		return nil, nil, err
	}
	server := template("mycelya worker")
	server.DNSNames = []string{"*" + nameSuffix}
	if worker, err = leaf(server, x509.ExtKeyUsageServerAuth); err != nil {
		return nil, nil, err
	}
	return client, worker, nil
}

// sign makes a key and a certificate for it. by nil: the key signs its own certificate.
func sign(c, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	if by == nil {
		by = key
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		return nil, nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, der, err
}

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// Encode returns the credentials as PEM: the certificate, its key, and the authority. They are a secret.
func (c *Credentials) Encode() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(c.leaf.PrivateKey)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, b := range []pem.Block{
		{Type: pemCertificate, Bytes: c.leaf.Certificate[0]},
		{Type: pemKey, Bytes: key},
		{Type: pemCertificate, Bytes: c.authority.Raw},
	} {
		if err := pem.Encode(&out, &b); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// ReadCredentials reads the text of Encode from the beginning of a stream, and not more. It does not check the text.
func ReadCredentials(r io.Reader) ([]byte, error) {
	var text, line []byte
	for blocks := 0; blocks < 3; {
		one := make([]byte, 1)
		if _, err := io.ReadFull(r, one); err != nil {
			return nil, fmt.Errorf("%w: the stream ends before them: %w", ErrCredentials, err)
		}
		text, line = append(text, one[0]), append(line, one[0])
		if one[0] == '\n' {
			if bytes.HasPrefix(line, []byte("-----END ")) {
				blocks++
			}
			line = line[:0]
		}
	}
	return text, nil
}

// ParseCredentials is the inverse of Encode. Its errors have no part of the text, which is a secret.
func ParseCredentials(text []byte) (*Credentials, error) {
	var blocks [3][]byte
	for i, want := range []string{pemCertificate, pemKey, pemCertificate} {
		b, rest := pem.Decode(text)
		if b == nil || b.Type != want {
			return nil, fmt.Errorf("%w: block %d of 3 is not a %s", ErrCredentials, i+1, strings.ToLower(want))
		}
		blocks[i], text = b.Bytes, rest
	}
	leaf, err1 := x509.ParseCertificate(blocks[0])
	key, err2 := x509.ParsePKCS8PrivateKey(blocks[1])
	authority, err3 := x509.ParseCertificate(blocks[2])
	if err1 != nil || err2 != nil || err3 != nil || len(bytes.TrimSpace(text)) > 0 {
		return nil, fmt.Errorf("%w: a block does not decode, or text follows", ErrCredentials)
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(leaf.PublicKey) || leaf.CheckSignatureFrom(authority) != nil {
		return nil, fmt.Errorf("%w: the key or the authority is of another certificate", ErrCredentials)
	}
	return &Credentials{
		leaf:      tls.Certificate{Certificate: [][]byte{blocks[0]}, PrivateKey: signer, Leaf: leaf},
		authority: authority,
	}, nil
}

// config is what both ends share. Only TLS 1.3 is spoken, and no session is resumed: a resumed handshake would not show
// the certificates.
func (c *Credentials) config() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(c.authority)
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{c.leaf},
		RootCAs:                pool,
		ClientCAs:              pool,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled: true,
		// Full records from the beginning: nobody waits for a part of a record.
		DynamicRecordSizingDisabled: true,
	}
}

// Client is the configuration of a client's end for a session's connections. name is NewSessionName's.
func (c *Credentials) Client(name string) *tls.Config {
	out := c.config()
	out.ServerName = name + nameSuffix
	return out
}

// Worker is the configuration of a worker's end.
func (c *Credentials) Worker() *tls.Config { return c.config() }

// ClientSide is TLS on a connection to a worker, for the session with this name. The handshake is the caller's.
func (c *Credentials) ClientSide(raw net.Conn, name string) *tls.Conn {
	return tls.Client(below(raw), c.Client(name))
}

// WorkerSide is TLS on a connection of a client. The handshake is the caller's.
func (c *Credentials) WorkerSide(raw net.Conn) *tls.Conn { return tls.Server(below(raw), c.Worker()) }

// NewSessionName returns a random name for a session. A connection's TLS handshake says which session it is for, in
// clear; the certificates protect the session.
func NewSessionName() string { return strings.ToLower(rand.Text()) }

// EndOf is the name that a client uses to ask how a session has ended. With that of no session it may ask the worker
// for a Report.
func EndOf(session string) string { return endPrefix + session }

// SessionOf is the inverse of EndOf. False: the name is that of a session.
func SessionOf(name string) (session string, end bool) { return strings.CutPrefix(name, endPrefix) }

const (
	endPrefix = "end-"
	// NameBytes is the length of a session's name.
	NameBytes = 26
)

// NameOf is the name of the session that a client has asked for. The handshake of the worker's end must be over.
func NameOf(c *tls.Conn) (string, error) {
	name, err := shortName(c.ConnectionState().ServerName)
	if _, end := SessionOf(name); end && err == nil {
		err = errors.New("transport: a question for the end of a session came to the session")
	}
	return name, err
}

// shortName is a name in a handshake without its suffix.
func shortName(full string) (string, error) {
	name, ok := strings.CutSuffix(full, nameSuffix)
	if !ok || !validName(name) {
		return "", fmt.Errorf("transport: a TLS client asks for %q, which is not a session", full)
	}
	return name, nil
}

// ValidClient reports whether a name can be that of a client, which is one of NewSessionName's.
func ValidClient(name string) bool {
	_, end := SessionOf(name)
	return !end && validName(name)
}

// validName reports whether a name is one of NewSessionName's or EndOf's.
func validName(name string) bool {
	name, _ = SessionOf(name)
	return len(name) == NameBytes && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz234567") == ""
}
