// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"crypto/sha256"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/report"
)

// The core decides how an upload's bytes go to the worker: the worker reads them in shared memory, or they are sent in
// one frame or in pieces. On a slow link, the bytes of an upload in pieces are hashed meanwhile, and offered to the
// worker in case it has kept them; and pieces are compressed if that makes them smaller. If the bytes are those of a
// file on a hub, the worker can probably fetch them, and no piece is sent before it has answered the offer.

const (
	leastPiece = 64 << 10
	mostPiece  = 4 << 20
	// pieceTime is how long a piece may take on the link: so long does a program wait that comes while it is sent.
	pieceTime = 2 * time.Millisecond

	// rateTime is how long an upload must last before the link's rate is taken as that of the network: the link measures
	// what it carries, and less than it could carry when there is less to send.
	rateTime = 150 * time.Millisecond
	// On faster links, in bytes per second, hashing (2 GB/s on one core) and compressing (0.3 GB/s) do not pay.
	slowForHash     = 400e6
	slowForCompress = 150e6
	// A link whose round trip takes so many seconds counts as slow for hashing until its rate is known.
	longTrip = 0.005
	// leastOffer is how many bytes must be left to send for an offer.
	leastOffer = 1 << 20
	// A piece is sent as it is if compression leaves more than this part of it; then compression is tried again after
	// so many pieces.
	worthwhile = 0.9
	retryAfter = 16

	hashChunk = 1 << 20
)

// Upload is a new storage and its bytes.
type Upload struct {
	Storage uint64
	Data    []byte
	Address uintptr // of the bytes in the caller's memory, also if Data is a copy
	Shared  *Shared // nil: they are not in shared memory
	Release func()  // is called once, when Data is not used any more; nil: Data is the caller's, who waits

	by      *report.Charge
	counted bool    // by uploading
	from    *origin // nil: the worker cannot find the bytes elsewhere

	// Of an upload in pieces. Only the sender uses them, except for the hash.
	began   time.Time
	sent    int      // bytes
	offered int      // sent, at the Offer
	ratio   float64  // of the last compression of a piece: compressed to original; 0: none yet
	skip    int      // pieces to send before compression is tried again
	hashing *hashing // nil: the bytes are not hashed
}

// upload is the submission of an upload.
func (s *session) upload(u *Upload, t *Ticket, by *report.Charge) core.Upload {
	n := uint64(len(u.Data))
	u.by = by
	s.metrics.Uploaded(n, by)
	ev := core.Upload{Ref: u, Storage: u.Storage, Bytes: n}
	if t != nil {
		ev.Ticket, t.sends = t, true
	}
	if u.Shared != nil {
		ev.Block = u.Shared.Block
	} else if n > catalogue.UploadSmall {
		s.uploads(n)
		u.from, u.counted = s.originOf(u.Address, len(u.Data)), true
	}
	return ev
}

// release ends the use of the bytes.
func (u *Upload) release() {
	if h := u.hashing; h != nil {
		close(h.cancel)
		<-h.done
	}
	if u.Release != nil {
		u.Release()
	}
}

// keep copies bytes that are the caller's, or shared, so that they can be sent again after their owner has changed
// them.
func (u *Upload) keep() {
	if u.Release != nil && u.Shared == nil {
		return // they are a copy
	}
	data, free := copyOut(u.Data)
	u.release()
	u.Data, u.Release, u.Shared = data, free, nil
}

// sendUpload sends a frame of an upload.
func (s *session) sendUpload(a core.Send, u *Upload) {
	if a.Keep {
		u.keep()
	}
	n := uint64(len(u.Data))
	switch a.Type {
	case transport.Share:
		sent := core.Sent{Seq: a.Seq}
		defer func() { s.do(sent) }() // also if the send panics: the upload's owner waits for it
		sent.OK = s.share(a.Seq, u)
	case transport.UploadFrom:
		s.metrics.UploadShared.Add(n)
		s.write(a, u.by, &proto.UploadFrom{Storage: u.Storage, Block: u.Shared.Block, Offset: u.Shared.Offset, Bytes: n}, nil)
	case transport.Upload:
		sent := core.Sent{Seq: a.Seq}
		defer func() { s.do(sent) }()
		if m := (&proto.Upload{Storage: u.Storage, Bytes: n}); n <= catalogue.UploadSmall {
			s.hold(a, u.by, m, u.Data)
		} else {
			s.write(a, u.by, m, u.Data)
		}
		s.sent(u, len(u.Data))
		sent.OK = true
	case transport.Begin:
		u.began = time.Now()
		s.write(a, u.by, &proto.Upload{Storage: u.Storage, Bytes: n}, nil)
	case transport.Piece:
		s.sendPiece(a, u)
	case transport.Offer:
		s.sendOffer(a, u)
	case transport.Settle:
		s.settle(a, u)
	}
}

// sendPiece sends the next piece of a large upload.
func (s *session) sendPiece(a core.Send, u *Upload) {
	sent := core.Sent{Seq: a.Seq}
	defer func() { s.do(sent) }() // also if the send panics: the upload's owner waits for it
	rate := s.networkRate(u)
	from := u.from
	if !s.hello.Fetches {
		from = nil
	}
	slow := rate > 0 && rate < slowForHash && (s.hello.Offers || from != nil) || rate == 0 && from != nil && s.far()
	if u.hashing == nil && slow && len(u.Data)-u.sent > leastOffer {
		u.hashing = &hashing{cancel: make(chan struct{}), done: make(chan struct{})}
		go u.hashing.run(s.hashes, u.Data, from, s.settings.Hub, func() { s.do(core.Hashed{Seq: a.Seq}) })
		if from != nil {
			sent.OK, sent.More, sent.Held = true, true, true
			return
		}
	}
	rest := u.Data[u.sent:]
	rest = rest[:min(len(rest), s.pieceBytes(u))]
	var meta protobuf.Message
	body := rest
	if rate > 0 && rate < slowForCompress {
		meta, body = s.compress(u, rest)
	}
	sent.OK = s.write(a, u.by, meta, body) > 0
	u.sent += len(rest)
	s.sent(u, len(rest))
	sent.More = u.sent < len(u.Data)
}

// compress returns the body of a piece and its description, which is nil if the body is the bytes themselves.
func (s *session) compress(u *Upload, rest []byte) (protobuf.Message, []byte) {
	if u.skip > 0 {
		u.skip--
		return nil, rest
	}
	small, err := s.compressor.Compress(rest)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	if u.ratio = float64(len(small)) / float64(len(rest)); u.ratio > worthwhile {
		u.ratio, u.skip = 0, retryAfter
		return nil, rest
	}
	s.metrics.UploadCompressed.Add(uint64(len(rest) - len(small)))
	return &proto.Piece{Bytes: uint64(len(rest))}, small
}

// networkRate is the rate of the network in bytes per second, as far as it is known; 0: it is not, or there is no link.
func (s *session) networkRate(u *Upload) float64 {
	l, ok := s.conn.Net().(*link.Stream)
	if !ok {
		return 0
	}
	if time.Since(u.began) > rateTime {
		s.linkRate = l.Measured().Rate
	}
	return s.linkRate
}

// far says whether the worker is behind a network.
func (s *session) far() bool {
	l, ok := s.conn.Net().(*link.Stream)
	return ok && l.RTT() > longTrip
}

// pieceBytes is the size of a piece for the link's rate. A unix socket carries the largest in about a millisecond.
func (s *session) pieceBytes(u *Upload) int {
	l, ok := s.conn.Net().(*link.Stream)
	if !ok {
		return mostPiece
	}
	n := l.Measured().Rate * pieceTime.Seconds()
	if u.ratio > 0 {
		n /= u.ratio
	}
	return int(min(max(n, leastPiece), mostPiece))
}

// sendOffer tells the worker the hash of a large upload's bytes.
func (s *session) sendOffer(a core.Send, u *Upload) {
	u.offered = u.sent
	s.metrics.RoundTrips.Add(1)
	s.write(a, u.by, &proto.Offer{Hash: u.hashing.hash, Source: u.hashing.source}, nil)
}

// settle ends an offer that has found something.
func (s *session) settle(a core.Send, u *Upload) {
	if a.Again {
		u.sent = u.offered
	} else {
		s.metrics.UploadDeduped.Add(uint64(len(u.Data) - u.sent))
		s.sent(u, len(u.Data)-u.sent)
	}
	s.write(a, u.by, &proto.Settle{Again: a.Again}, nil)
}

// hashing is the goroutine that hashes an upload.
type hashing struct {
	cancel chan struct{} // closed when the bytes are not used any more
	done   chan struct{}
	hash   []byte // once done; nil: it was canceled
	source *proto.Source
}

// run hashes bytes and then calls known, unless it is canceled. turn has room for one element: uploads are hashed one
// after another, because the first one's hash is needed first. from says where the bytes come from; it may be nil.
func (h *hashing) run(turn chan struct{}, data []byte, from *origin, endpoint string, known func()) {
	select {
	case turn <- struct{}{}:
		h.hash = h.sum(data)
		<-turn
	case <-h.cancel:
	}
	if h.hash != nil && from != nil {
		h.source = from.source(endpoint)
	}
	close(h.done)
	if h.hash != nil {
		known()
	}
}

// sum is the hash of bytes; nil: it was canceled.
func (h *hashing) sum(data []byte) []byte {
	sum := sha256.New()
	for len(data) > 0 {
		select {
		case <-h.cancel:
			return nil
		default:
		}
		n := min(len(data), hashChunk)
		sum.Write(data[:n])
		data = data[n:]
	}
	return sum.Sum(nil)
}
