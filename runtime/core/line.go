// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

// line holds the sequence numbers of requests without an answer, oldest first. It allocates only when more of them wait
// than ever before.
type line struct {
	seqs  []uint64
	first int
}

func (l *line) push(seq uint64) {
	if l.first > 0 && len(l.seqs) == cap(l.seqs) {
		n := copy(l.seqs, l.seqs[l.first:])
		l.seqs, l.first = l.seqs[:n], 0
	}
	l.seqs = append(l.seqs, seq)
}

// isNext says whether the next answer must be that of a request.
func (l *line) isNext(seq uint64) bool { return l.first < len(l.seqs) && l.seqs[l.first] == seq }

func (l *line) pop() { l.first++ }
