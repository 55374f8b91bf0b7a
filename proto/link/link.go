// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package link carries a stream of bytes in each direction between a client and a worker, over connections that may
// end. When one ends, the client dials again, each end says how many bytes it has received, and the other end sends the
// rest again. So each byte arrives exactly once. It never interprets the bytes, and never trusts a number that it has
// read.
//
// State is the protocol without clocks, sockets and goroutines. Stream is a net.Conn around it.
//
// # The wire, version 1
//
// Integers are little-endian. Each connection begins with a hello of the client and an answer of the worker, of 32
// bytes each. Records follow in both directions.
//
//	hello  =  0  4  magic     "MYLK"
//	          4  1  version   1
//	          5  1  fresh     1: no answer has been read yet for this stream, so the worker may not know it
//	          6  2  0
//	          8  8  epoch     number of the connection, which grows with each of them
//	         16  8  received  bytes of the stream that the client has received
//	         24  8  0
//	answer =  0  4  magic     "MYLK"
//	          4  1  version   1
//	          5  1  verdict   see Verdict
//	          6 10  0
//	         16  8  received  bytes of the stream that the worker has received
//	         24  8  0
//	record =  0  1  type      see recordType
//	          1  3  0
//	          4  4  length    of the bytes that follow, 0 if type is not data
//	          8  8  taken     bytes of the stream that the reader at this end has taken
//
// The client sends the first record of a stream with the hello of the first connection, before the answer: the worker
// cannot have received a byte yet. It sends a record so again only while every connection before has had an answer with
// a verdict, because a worker that has answered otherwise than with accepted has kept nothing. On any other connection
// the client waits for the number in the answer.
//
// A worker that speaks another version answers with its own, so that both ends can name both versions.
//
// Each end keeps the bytes that the other end's reader has not taken. The window bounds their number.
// After bye an end sends no more bytes. A connection that ends without bye has failed, and the client dials again.
package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Version is the version of the link's wire. Both ends must have the same.
const Version = 1

const (
	magic       = 0x4b4c594d // "MYLK"
	helloBytes  = 32
	recordBytes = 16
	// maxRecord bounds the bytes of a record.
	maxRecord = 64 << 10
	// maxUnsent bounds the bytes that wait until the connection takes more.
	maxUnsent = 4 * maxRecord
	// MaxFirst bounds the bytes that go with a hello: all of it is one record of TLS.
	MaxFirst = 8 << 10
)

// Limits of a stream, the same at both ends.
type Limits struct {
	Window  uint64        // bytes that may be sent and not taken
	Beat    time.Duration // a ping is sent so often
	Silence time.Duration // a connection on which nothing comes for so long has failed
	Grace   time.Duration // a stream without a connection ends after so long
}

// Default are the limits of a session's stream.
var Default = Limits{Window: 64 << 20, Beat: 5 * time.Second, Silence: 20 * time.Second, Grace: 10 * time.Minute}

// Verdict is a worker's answer to a connection.
type Verdict uint8

const (
	Accepted Verdict = 1 + iota
	// Again means that the connection has come to the process of another session. The client should connect again.
	Again
	// Unknown means that the worker does not know the stream, or not any more.
	Unknown
	// Replaced means that a connection with a larger epoch has come before.
	Replaced
	// Full means that the worker cannot start another session.
	Full
	// Stopping means that the worker is being stopped, and begins no stream.
	Stopping
	// OtherVersion means that the worker does not speak the client's version.
	OtherVersion
	numVerdicts
)

func (v Verdict) String() string {
	return map[Verdict]string{Accepted: "accepted", Again: "again", Unknown: "unknown", Replaced: "replaced",
		Full: "full", Stopping: "stopping", OtherVersion: "other version"}[v]
}

// Errors that end a stream, or a connection before it has one.
var (
	// ErrSilent means that the stream had no connection for the grace time.
	ErrSilent = errors.New("link: there was no connection for the grace time")
	// ErrUnknown means that the worker does not know the stream: its session has ended.
	ErrUnknown = errors.New("link: the worker does not know this session any more")
	// ErrReplaced means that another client has connected to the session.
	ErrReplaced = errors.New("link: another connection has taken the session over")
	// ErrFull means that the worker cannot start another session.
	ErrFull = errors.New("link: the worker cannot start another session")
	// ErrStopping means that the worker is being stopped.
	ErrStopping = errors.New("link: the worker is being stopped")
	// ErrProtocol means that the other end has sent what it must not send.
	ErrProtocol = errors.New("link: the other end broke the protocol")
	// ErrVersion means that the other end speaks another version of the link.
	ErrVersion = errors.New("link: the other end speaks another version")
)

// Hello is a client's first message on a connection.
type Hello struct {
	Fresh           bool
	Epoch, Received uint64
}

func (h Hello) encode() []byte {
	b := make([]byte, helloBytes)
	binary.LittleEndian.PutUint32(b, magic)
	b[4] = Version
	if h.Fresh {
		b[5] = 1
	}
	binary.LittleEndian.PutUint64(b[8:], h.Epoch)
	binary.LittleEndian.PutUint64(b[16:], h.Received)
	return b
}

// checkHead checks what a hello and an answer have in common, and that the bytes from.. and 24.. are 0.
func checkHead(b []byte, from, to int) error {
	if binary.LittleEndian.Uint32(b) != magic {
		return fmt.Errorf("%w: it does not begin as a link does", ErrProtocol)
	}
	if b[4] != Version {
		return fmt.Errorf("%w: %d, and this end speaks version %d", ErrVersion, b[4], Version)
	}
	for _, x := range append(b[from:to:to], b[24:]...) {
		if x != 0 {
			return fmt.Errorf("%w: a reserved field is not 0", ErrProtocol)
		}
	}
	return nil
}

func decodeHello(b []byte) (Hello, error) {
	if err := checkHead(b, 6, 8); err != nil {
		return Hello{}, err
	}
	h := Hello{b[5] == 1, binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
	if b[5] > 1 || h.Epoch == 0 {
		return Hello{}, fmt.Errorf("%w: a hello of epoch %d, fresh %d", ErrProtocol, h.Epoch, b[5])
	}
	return h, nil
}

func encodeAnswer(v Verdict, received uint64) []byte {
	b := make([]byte, helloBytes)
	binary.LittleEndian.PutUint32(b, magic)
	b[4], b[5] = Version, byte(v)
	binary.LittleEndian.PutUint64(b[16:], received)
	return b
}

func decodeAnswer(b []byte) (v Verdict, received uint64, err error) {
	if err := checkHead(b, 6, 16); err != nil {
		return 0, 0, err
	}
	if v = Verdict(b[5]); v == 0 || v >= numVerdicts {
		return 0, 0, fmt.Errorf("%w: verdict %d", ErrProtocol, v)
	}
	return v, binary.LittleEndian.Uint64(b[16:]), nil
}

// recordType is the type of a record.
type recordType uint8

const (
	data recordType = 1 + iota // bytes of the stream follow; none: only taken is news
	ping                       // the other end answers with pong
	pong
	bye // this end sends no more bytes
	numRecordTypes
)

// record is the header of a record.
type record struct {
	kind   recordType
	length uint32
	taken  uint64
}

func (r record) encode(b []byte) {
	binary.LittleEndian.PutUint32(b, uint32(r.kind))
	binary.LittleEndian.PutUint32(b[4:], r.length)
	binary.LittleEndian.PutUint64(b[8:], r.taken)
}

func decodeRecord(b []byte) (record, error) {
	kind := binary.LittleEndian.Uint32(b)
	r := record{recordType(kind), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])}
	if kind == 0 || kind >= uint32(numRecordTypes) || r.length > maxRecord || r.kind != data && r.length > 0 {
		return r, fmt.Errorf("%w: a record of type %d with %d bytes", ErrProtocol, kind, r.length)
	}
	return r, nil
}
