// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package words reads what mycelya_operator_fuzz --words prints: programs with hostile arguments for one operator each.
// First come the contents of the storages, each with its length. For each program follow the number of its words, the
// words (part 3 of csrc/abi/mycelya.h), and its call as text with its length.
package words

import (
	"bufio"
	"encoding/binary"
	"io"

	"github.com/mycelya/mycelya/program"
)

// Contents reads the contents of the storages.
func Contents(in *bufio.Reader) ([][]byte, error) {
	n, err := readWord(in)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, n)
	for i := range out {
		if out[i], err = readBytes(in); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Program reads the next program, and its call as text. Its first buffers hold the contents.
func Program(in *bufio.Reader) (*program.Program, string, error) {
	n, err := readWord(in)
	if err != nil {
		return nil, "", err
	}
	words := make([]uint64, n)
	if err := binary.Read(in, binary.LittleEndian, words); err != nil {
		return nil, "", err
	}
	text, err := readBytes(in)
	if err != nil {
		return nil, "", err
	}
	p, err := program.Decode(words)
	return p, string(text), err
}

func readWord(in io.Reader) (uint64, error) {
	var b [8]byte
	_, err := io.ReadFull(in, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

func readBytes(in io.Reader) ([]byte, error) {
	n, err := readWord(in)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(in, b)
	return b, err
}
