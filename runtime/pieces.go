// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"crypto/sha256"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/runtime/core"
)

// Large uploads are sent in pieces. On a slow link, the bytes of an upload are hashed meanwhile, and offered to the
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

// pieces is the state of an upload that is sent in pieces. Only the sender uses it, except for the hash.
type pieces struct {
	began   time.Time
	sent    int // bytes
	offered int // sent, at the Offer

	ratio float64 // of the last compression of a piece: compressed to original; 0: none yet
	skip  int     // pieces to send before compression is tried again

	hashing *hashing // nil: the bytes are not hashed
}

// hashing is the goroutine that hashes an upload.
type hashing struct {
	cancel chan struct{} // closed when the bytes are not used any more
	done   chan struct{}
	hash   []byte // once done; nil: it was canceled
	source *proto.Source
}

// end ends the use of the upload's bytes.
func (p *pieces) end() {
	if h := p.hashing; h != nil {
		close(h.cancel)
		<-h.done
	}
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

// sendPiece sends the next piece of a large upload.
func (s *session) sendPiece(a core.Send, u *upload) {
	sent := core.Sent{Seq: a.Seq}
	defer func() { s.do(sent) }() // also if the send panics: the upload's owner waits for it
	p := u.pieces
	rate := s.networkRate(p)
	from := u.from
	if !s.hello.Fetches {
		from = nil
	}
	slow := rate > 0 && rate < slowForHash && (s.hello.Offers || from != nil) || rate == 0 && from != nil && s.far()
	if p.hashing == nil && slow && len(u.data)-p.sent > leastOffer {
		p.hashing = &hashing{cancel: make(chan struct{}), done: make(chan struct{})}
		go p.hashing.run(s.hashes, u.data, from, s.settings.Hub, func() { s.do(core.Hashed{Seq: a.Seq}) })
		if from != nil {
			sent.OK, sent.More, sent.Held = true, true, true
			return
		}
	}
	rest := u.data[p.sent:]
	rest = rest[:min(len(rest), s.pieceBytes(p))]
	var meta protobuf.Message
	body := rest
	if rate > 0 && rate < slowForCompress {
		meta, body = s.compress(p, rest)
	}
	sent.OK = s.write(a, u.by, meta, body) > 0
	p.sent += len(rest)
	s.sent(u, len(rest))
	sent.More = p.sent < len(u.data)
}

// compress returns the body of a piece and its description, which is nil if the body is the bytes themselves.
func (s *session) compress(p *pieces, rest []byte) (protobuf.Message, []byte) {
	if p.skip > 0 {
		p.skip--
		return nil, rest
	}
	small, err := s.compressor.Compress(rest)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	if p.ratio = float64(len(small)) / float64(len(rest)); p.ratio > worthwhile {
		p.ratio, p.skip = 0, retryAfter
		return nil, rest
	}
	s.metrics.uploadCompressed.Add(uint64(len(rest) - len(small)))
	return &proto.Piece{Bytes: uint64(len(rest))}, small
}

// networkRate is the rate of the network in bytes per second, as far as it is known; 0: it is not, or there is no link.
func (s *session) networkRate(p *pieces) float64 {
	l, ok := s.conn.Net().(*link.Stream)
	if !ok {
		return 0
	}
	if time.Since(p.began) > rateTime {
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
func (s *session) pieceBytes(p *pieces) int {
	l, ok := s.conn.Net().(*link.Stream)
	if !ok {
		return mostPiece
	}
	n := l.Measured().Rate * pieceTime.Seconds()
	if p.ratio > 0 {
		n /= p.ratio
	}
	return int(min(max(n, leastPiece), mostPiece))
}

// sendOffer tells the worker the hash of a large upload's bytes.
func (s *session) sendOffer(a core.Send, u *upload) {
	p := u.pieces
	p.offered = p.sent
	s.metrics.roundTrips.Add(1)
	s.write(a, u.by, &proto.Offer{Hash: p.hashing.hash, Source: p.hashing.source}, nil)
}

// settle ends an offer that has found something.
func (s *session) settle(a core.Send, u *upload) {
	p := u.pieces
	if a.Again {
		p.sent = p.offered
	} else {
		s.metrics.uploadDeduped.Add(uint64(len(u.data) - p.sent))
		s.sent(u, len(u.data)-p.sent)
	}
	s.write(a, u.by, &proto.Settle{Again: a.Again}, nil)
}
