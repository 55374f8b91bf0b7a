// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package transport carries the messages of package proto over a byte stream. It has the frames and their limits,
// reads bodies straight into their destination, and has the worker's handshake line and the check of the peer's user.
// It never interprets a message, never starts a goroutine, and never trusts a length that it has read.
//
// # The wire, version 1
//
// A stream is a sequence of frames in each direction. Integers are little-endian.
//
//	frame  = header meta body
//	header = 32 bytes:
//	          0  4  magic      "MYCL"
//	          4  1  version    1
//	          5  1  type       see Type
//	          6  2  flags      0
//	          8  8  sequence   chosen by the client; an answer has that of its request
//	         16  8  body       length in bytes, 0 to 1 TiB
//	         24  4  meta       length in bytes, 0 to 64 MiB
//	         28  4  reserved   0
//	meta   = the protobuf message of the type
//	body   = one Arrow IPC encapsulated message: a record batch of one column of fixed width without nulls.
//	         Its schema is never sent: it is field "data", uint8, not nullable. Behind that schema, bodies are an Arrow
//	         stream. meta gives the meaning of the bytes.
//
//	type       meta           body   from     answer
//	Hello      Hello                 both     each side's first frame, the client's first
//	Program    Program               client
//	Call       Call                  client   Done
//	Upload     Upload         yes    client
//	Free       FreeStorages          client
//	Read       Read                  client   ReadReply
//	ReadReply  ReadReply      yes    worker
//	Sync       Sync                  client   SyncReply
//	SyncReply  SyncReply             worker
//	Done       Done                  worker
//	Share      Share                 client             with a descriptor
//	Unshare    Unshare               client
//	UploadFrom UploadFrom            client   Uploaded
//	Uploaded   Uploaded              worker
//	Fail       Fail                  client
//	Resume     Resume                client
//	Ended      Ended                 client EndedReply  the only frame of its connection
//	EndedReply EndedReply            worker
//	Save       Save                  client StateReply
//	Find       Find                  client StateReply
//	Load       Load                  client StateReply
//	Drop       Drop                  client StateReply
//	Names      Names                 client StateReply
//	Checkpoint Checkpoint            client StateReply
//	Restore    Restore               client StateReply
//	StateReply StateReply            worker
//	Begin      Upload                client
//	Piece      Piece          yes    client
//	Offer      Offer                 client   Offered
//	Offered    Offered               worker
//	Settle     Settle                client
//	Fetch      Fetch                 client   Fetching  any number of times, until it says end
//	Fetching   Fetching              worker
//	Unfetch    Unfetch               client StateReply
//	Pass       Pass                  client StateReply
//	Take       Take                  client StateReply
//	Report     Report                client Reported    the only frame of its connection
//	Reported   Reported              worker
//
// Flow:
//
//  1. The client connects and sends Hello; the worker answers Hello. If its error is set, the worker closes. On TCP all
//     of this is inside TLS (Credentials), and the client's Hello goes with the hello of the link (proto/link).
//  2. Frames take effect in the order in which they were sent; answers come in the order of their requests.
//  3. A Program comes before the first Call of its key. The client does not wait for a Call: it may be many ahead.
//  4. An Upload makes its storage before any later frame takes effect. An empty upload or reply has no body.
//     A client may also send Begin, and the bytes in Pieces with the Begin's sequence number. Other frames may come
//     between the pieces, but none that uses the storage comes before the last piece. If the worker's Hello has offers,
//     the client may send one Offer between them, and waits for its answer before it takes the upload as complete.
//  5. Done with unknown_program: the worker had dropped the program. The call did not run. The worker queues later
//     frames, except Program and the frames of uploads. The client sends the Program and the same Call again, under the
//     same sequence number; then the worker takes the queued frames.
//  6. Client and worker on one host can share memory. If the worker's Hello takes blocks, a client on a unix socket may
//     send Share with the descriptor of a memory file (SCM_RIGHTS, on the frame's first byte); the file must be sealed
//     against shrinking. UploadFrom names bytes of the block and has no body. The client must not change these bytes
//     before Uploaded. Unshare ends a block.
//  7. After a Call that fails, or a Fail, calls do not run and are answered with skipped, until a Resume. So
//     nothing that the client sent before its user had seen the error changes a storage from before.
//  8. Each session has a process of its own on the worker. When it is lost, the client may open another connection and
//     send Ended as its first frame; the worker answers how the process ended, and closes. Over TCP the name in the TLS
//     handshake says so too (EndOf). A worker whose only stream is its stdin and stdout sends EndedReply there without
//     a question.
//     Who asks with Report how the worker does, at any time and on a connection like this one, gets its metrics.
//  9. A worker can keep tensors and whole sessions on its disk (Save to Restore). What is kept outlives the session and
//     the worker. Load names the Find that has found what it loads, and makes storages as Upload does.
//  10. A worker can fetch weights from a hub (Fetch). Other frames are answered meanwhile. Load makes storages with the
//     tensors of each file that a Fetching has told of, as for a Find, while the worker fetches the next file.
//  11. A client may have a session on each of the worker's devices: its Hello says which. Pass makes elements ready
//     for another session, and Take of that session makes a storage of them. Take comes after the answer to Pass. A
//     worker for one client tells its sessions from those of another one by the client's name in Hello.
//  12. A worker that ends a session because of an error in the stream sends Hello again with error set, and closes. So
//     does a worker that is being stopped, once it has answered the frames that had arrived.
//
// History: 1 is the first version. A frame that a peer may send only after the other's Hello has offered it (6) needs
// no new version.
package transport

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	protobuf "google.golang.org/protobuf/proto"
)

// Type is the type of a frame.
type Type uint8

const (
	Hello Type = 1 + iota
	Program
	Call
	Upload
	Free
	Read
	ReadReply
	Sync
	SyncReply
	Done
	Share
	Unshare
	UploadFrom
	Uploaded
	Fail
	Resume
	Ended
	EndedReply
	Save
	Find
	Load
	Drop
	Names
	Checkpoint
	Restore
	StateReply
	Begin
	Piece
	Offer
	Offered
	Settle
	Fetch
	Fetching
	Unfetch
	Pass
	Take
	Report
	Reported
	numTypes
)

var typeNames = [numTypes]string{
	"type 0", "Hello", "Program", "Call", "Upload", "Free", "Read", "ReadReply", "Sync", "SyncReply", "Done",
	"Share", "Unshare", "UploadFrom", "Uploaded", "Fail", "Resume", "Ended", "EndedReply",
	"Save", "Find", "Load", "Drop", "Names", "Checkpoint", "Restore", "StateReply",
	"Begin", "Piece", "Offer", "Offered", "Settle", "Fetch", "Fetching", "Unfetch", "Pass", "Take",
	"Report", "Reported",
}

func (t Type) String() string {
	if t >= numTypes {
		return fmt.Sprintf("type %d", uint8(t))
	}
	return typeNames[t]
}

const (
	// Version is the version of the wire. Both ends must have the same.
	Version = 2

	// MaxMeta bounds the metadata of a frame, in bytes: the largest program and the parameters of the largest call.
	MaxMeta = 64 << 20
	// MaxBody bounds the body of a frame, in bytes: more than any one storage on today's machines.
	MaxBody = 1 << 40

	headerBytes = 32
	magic       = 0x4c43594d // "MYCL"

	// A connection keeps a buffer for metadata up to this size. Larger metadata is allocated as it arrives.
	keepMeta = 1 << 20
	// A frame up to this size is written as one: TLS and links write each part of a frame by itself.
	joinBytes = 16 << 10
	// The size of the read buffer. The bytes of a body beyond it are read into their destination.
	readBuffer = 64 << 10
)

// ErrNoFile means that this connection cannot send descriptors. Nothing was sent, and the stream can be used.
var ErrNoFile = errors.New("transport: a descriptor cannot be sent")

// Errors of frames. After one of them the stream cannot be used.
var (
	ErrFrameMagic     = errors.New("transport: not a frame of this protocol")
	ErrFrameVersion   = errors.New("transport: wrong version of the wire")
	ErrFrameType      = errors.New("transport: unknown frame type")
	ErrFrameReserved  = errors.New("transport: a reserved field is not 0")
	ErrFrameLimit     = errors.New("transport: length over the limit")
	ErrFrameBody      = errors.New("transport: body is not the Arrow message it should be")
	ErrFrameMeta      = errors.New("transport: metadata does not decode")
	ErrFrameTruncated = errors.New("transport: stream ends inside a frame")
	ErrFrameUse       = errors.New("transport: wrong use of a connection")
	ErrFrameFile      = errors.New("transport: more descriptors than frames that carry one")
)

// Header describes a frame.
type Header struct {
	Type    Type
	Seq     uint64
	Meta    int    // bytes of metadata
	Payload uint64 // bytes of the payload in the Arrow body; 0 without a body
}

// Conn reads and writes frames. Several goroutines may send at the same time; one at a time may read.
type Conn struct {
	c net.Conn

	send         sender
	flushesAlone bool          // reads do not send held frames
	linger       time.Duration // how long a read waits before it sends them

	sleeper atomic.Pointer[sleeper] // set if reads wait on their own thread
	below   sleeping                // the same for the socket below TLS, or a link
	closed  atomic.Bool
	files   *fileReader // r reads from it if this end takes descriptors
	r       *bufio.Reader
	header  [headerBytes]byte
	meta    []byte
	pending body // of the frame that Next returned last
	readErr error

	progress progress
}

// New returns a Conn that owns c.
func New(c net.Conn) *Conn {
	out := &Conn{c: c}
	if l, ok := c.(linked); ok {
		l.OnWait(out.holds, func() { _, _ = out.Flush() }) // a failure stays with the sender
	}
	out.r = bufio.NewReaderSize((*source)(out), readBuffer)
	return out
}

// source is the reader below a Conn's buffer.
type source Conn

// linked is a link, whose reader knows when it would wait.
type linked interface {
	OnWait(held func() (time.Duration, bool), send func())
}

// holds reports whether frames wait that a read should send, and for how long it may wait before.
func (c *Conn) holds() (time.Duration, bool) { return c.linger, c.send.holds.Load() && !c.flushesAlone }

func (s *source) Read(p []byte) (int, error) {
	z := s.sleeper.Load()
	if _, link := s.c.(linked); !link && s.send.holds.Load() && !s.flushesAlone && !z.ready(s.linger) {
		if _, err := s.send.flush(s.c); err != nil {
			return 0, err
		}
	}
	s.progress.begin()
	n, err := s.wait(z, p)
	s.progress.end(n)
	return n, err
}

// wait reads, and waits in the kernel if there is a sleeper.
func (s *source) wait(z *sleeper, p []byte) (int, error) {
	if z != nil {
		if err := z.sleep(); err != nil {
			return 0, err
		}
		if s.closed.Load() {
			return 0, net.ErrClosed
		}
	}
	if s.files != nil {
		return s.files.Read(p)
	}
	return s.c.Read(p)
}

// Sleep makes reads wait in the kernel, on the reader's thread, instead of in Go's poller. An answer then wakes one
// thread less. Use it at an end with few connections. It works on unix sockets, on the TLS of ClientSide and
// WorkerSide, and on links. Deadlines do not end such a wait; Close does. Sleep must not be called during a read.
func (c *Conn) Sleep() {
	if s := sleepingOf(c.c); s != nil {
		c.below = s
		s.Sleep(true)
		return
	}
	if c.sleeper.Store(newSleeper(c.c)); c.closed.Load() {
		c.wake() // Close did not see the sleeper
	}
}

// Awake undoes Sleep: deadlines end reads again. It must not be called during a read.
func (c *Conn) Awake() {
	c.sleeper.Store(nil)
	if c.below != nil {
		c.below.Sleep(false)
	}
}

func (c *Conn) wake() {
	if z := c.sleeper.Load(); z != nil {
		z.wake()
	}
}

// Net returns the underlying connection.
func (c *Conn) Net() net.Conn { return c.c }

// TakeFiles makes this end take the descriptors that come with frames, and reports whether it can; only unix sockets on
// Linux can. Otherwise descriptors are closed as they arrive. TakeFiles must be called before the first Next.
func (c *Conn) TakeFiles() bool {
	c.files = newFileReader(c.c)
	return c.files != nil
}

// File returns the descriptor that came with the frame that Next returned last, or nil. The caller owns it.
func (c *Conn) File() *os.File {
	if c.files == nil {
		return nil
	}
	return c.files.take()
}

// Close closes the connection; a blocked Next, ReadBody or Send returns with an error.
func (c *Conn) Close() error {
	if c.files != nil {
		c.files.close()
	}
	c.closed.Store(true)
	c.wake()
	return c.c.Close()
}

// Next skips the unread part of the last frame's body, and reads the next frame's header and metadata. It returns
// io.EOF if the stream ends between two frames.
func (c *Conn) Next() (Header, error) {
	if c.readErr != nil {
		return Header{}, c.readErr
	}
	if err := c.Discard(); err != nil {
		return Header{}, err
	}
	h, err := c.next()
	if err != nil {
		c.readErr = err
	}
	return h, err
}

func (c *Conn) next() (Header, error) {
	b := c.header[:]
	if n, err := io.ReadFull(c.r, b); err != nil {
		if n == 0 {
			return Header{}, err
		}
		return Header{}, truncated(err)
	}
	h := Header{Type: Type(b[5]), Seq: binary.LittleEndian.Uint64(b[8:])}
	bodyBytes, metaBytes := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint32(b[24:])
	switch {
	case binary.LittleEndian.Uint32(b) != magic:
		return Header{}, ErrFrameMagic
	case b[4] != Version:
		return Header{}, fmt.Errorf("%w: the peer speaks version %d, this end version %d", ErrFrameVersion, b[4], Version)
	case h.Type == 0 || h.Type >= numTypes:
		return Header{}, fmt.Errorf("%w: %d", ErrFrameType, b[5])
	case b[6] != 0 || b[7] != 0 || binary.LittleEndian.Uint32(b[28:]) != 0:
		return Header{}, ErrFrameReserved
	case metaBytes > MaxMeta:
		return Header{}, over(h.Type, "metadata", uint64(metaBytes), MaxMeta)
	case bodyBytes > MaxBody:
		return Header{}, over(h.Type, "body", bodyBytes, MaxBody)
	}
	h.Meta = int(metaBytes)
	if err := c.readMeta(h.Meta); err != nil {
		return Header{}, err
	}
	if bodyBytes > 0 {
		var err error
		if c.pending, err = readPrefix(c.r, bodyBytes); err != nil {
			return Header{}, err
		}
		h.Payload = c.pending.payload
	}
	return h, nil
}

// readMeta never allocates more than keepMeta bytes beyond the bytes that have arrived.
func (c *Conn) readMeta(n int) error {
	if cap(c.meta) > keepMeta {
		c.meta = nil
	}
	c.meta = c.meta[:0]
	for len(c.meta) < n {
		lo := len(c.meta)
		hi := min(n, lo+keepMeta)
		if hi > cap(c.meta) {
			grown := make([]byte, lo, min(n, max(hi, 2*cap(c.meta))))
			copy(grown, c.meta)
			c.meta = grown
		}
		c.meta = c.meta[:hi]
		if _, err := io.ReadFull(c.r, c.meta[lo:hi]); err != nil {
			return truncated(err)
		}
	}
	return nil
}

// Meta decodes the metadata of the frame that Next returned last.
func (c *Conn) Meta(m protobuf.Message) error {
	if err := protobuf.Unmarshal(c.meta, m); err != nil {
		return fmt.Errorf("%w: %w", ErrFrameMeta, err)
	}
	return nil
}

// MetaBytes returns the undecoded metadata of the frame that Next returned last. The next call of Next overwrites it.
func (c *Conn) MetaBytes() []byte { return c.meta }

const partBytes = 1 << 20

// ReadBody reads the payload of the frame that Next returned last into dst, which must have exactly its length.
func (c *Conn) ReadBody(dst []byte) error { return c.ReadCounted(dst, func(int) {}) }

// ReadCounted is ReadBody, and calls came with each number of bytes that has come, at most partBytes.
func (c *Conn) ReadCounted(dst []byte, came func(n int)) error {
	if uint64(len(dst)) != c.pending.payload {
		return fmt.Errorf("%w: the destination has %d bytes, the payload %d", ErrFrameUse, len(dst), c.pending.payload)
	}
	p := c.pending
	c.pending = body{}
	err := skip(c.r, p.before)
	for err == nil && len(dst) > 0 {
		var n int
		n, err = io.ReadFull(c.r, dst[:min(len(dst), partBytes)])
		dst = dst[n:]
		came(n)
	}
	if err == nil {
		err = skip(c.r, p.after)
	}
	if err != nil {
		c.readErr = truncated(err)
	}
	return c.readErr
}

// Discard skips the unread part of the body of the frame that Next returned last.
func (c *Conn) Discard() error {
	p := c.pending
	c.pending = body{}
	if err := skip(c.r, p.before+p.payload+p.after); err != nil {
		c.readErr = truncated(err)
	}
	return c.readErr
}

func skip(r *bufio.Reader, n uint64) error {
	for n > 0 {
		k, err := r.Discard(int(min(n, 1<<30)))
		if err != nil {
			return err
		}
		n -= uint64(k)
	}
	return nil
}

// truncated turns the end of the stream inside a frame into ErrFrameTruncated, and wraps other errors.
func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrFrameTruncated
	}
	return fmt.Errorf("transport: receive: %w", err)
}
