// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package crash

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/bounds"
)

// Bounds are those of the folder of crashes.
var Bounds = bounds.Bounds{Bytes: 64 << 20, Number: 8, Counts: dumpName.MatchString, Draft: unfinished}

const (
	// Bounds of one crash: the bytes of its programs, and the numbers in the lists of its calls.
	maxProgramBytes = 32 << 20
	maxListed       = 1 << 18
)

const (
	dumpTime   = "20060102T150405.000Z"
	unfinished = ".new-"
)

var dumpName = regexp.MustCompile(`^\d{8}T\d{6}\.\d{3}Z-\d+$`)

// crash is the file crash.json of a crash's folder.
type crash struct {
	Time        time.Time      `json:"time"`
	Build       string         `json:"build"`
	Torch       string         `json:"torch"`
	Device      string         `json:"device"`
	DeviceName  string         `json:"device_name"`
	Pid         uint64         `json:"pid"`
	Code        int32          `json:"code"`
	Signal      string         `json:"signal"`
	OutOfMemory bool           `json:"out_of_memory"`
	Call        uint64         `json:"call"`           // the last one that has begun; 0: none
	Step        *uint64        `json:"step,omitempty"` // of it that ran; absent: none
	Programs    []crashProgram `json:"programs"`       // the last called one first
}

type crashProgram struct {
	Key   string `json:"key"`
	Bytes uint64 `json:"bytes"`
	File  string `json:"file,omitempty"` // absent: the bytes were not kept
}

// crashCall is a line of the file calls.jsonl. Parameters are words: integers, or the bits of floating-point numbers.
type crashCall struct {
	Call    uint64   `json:"call"`
	Program string   `json:"program"`
	Known   bool     `json:"known"` // whether the lists are
	Params  []string `json:"params,omitempty"`
	Inputs  []uint64 `json:"inputs,omitempty"`
	Outputs []uint64 `json:"outputs,omitempty"`
	Frees   []uint64 `json:"frees,omitempty"`
}

// Write makes the folder of a crash and returns its path.
func Write(folder string, end *proto.EndedReply, memory io.ReaderAt, log string, now time.Time) (string, error) {
	journal, err := readJournal(memory)
	if err != nil {
		return "", err
	}
	if folder, err = filepath.Abs(folder); err == nil {
		err = os.MkdirAll(folder, 0o700)
	}
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(folder, unfinished) // mode 0700
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, fmt.Sprintf("%s-%d", now.UTC().Format(dumpTime), end.Pid))
	if err = fillDump(dir, journal, end, memory, log, now); err == nil {
		err = os.Rename(dir, path)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", err
	}
	return path, nil
}

func fillDump(dir string, j *past, end *proto.EndedReply, memory io.ReaderAt, log string, now time.Time) error {
	c := crash{
		Time: now.UTC(), Build: transport.Build, Device: j.about[0], DeviceName: j.about[1], Torch: j.about[2],
		Pid: end.Pid, Code: end.Code, Signal: end.Signal, OutOfMemory: end.OutOfMemory, Call: end.Call,
	}
	if step := end.Step - 1; end.Step > 0 {
		c.Step = &step
	}
	left := uint64(maxProgramBytes)
	for i, p := range j.programs {
		entry := crashProgram{Key: hex.EncodeToString(p.key[:]), Bytes: p.bytes}
		if r := p.open(memory); r != nil && p.bytes <= left {
			left -= p.bytes
			entry.File = fmt.Sprintf("program-%d.pb", i)
			if err := writeFrom(filepath.Join(dir, entry.File), r); err != nil {
				return err
			}
		}
		c.Programs = append(c.Programs, entry)
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	calls, err := callLines(j.calls)
	if err != nil {
		return err
	}
	return errors.Join(
		writeFrom(filepath.Join(dir, "crash.json"), strings.NewReader(string(text)+"\n")),
		writeFrom(filepath.Join(dir, "calls.jsonl"), strings.NewReader(calls)),
		writeFrom(filepath.Join(dir, "log.txt"), strings.NewReader(log)))
}

func writeFrom(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// callLines are the lines of calls.jsonl. If the lists are long, the newest calls have theirs.
func callLines(calls []pastCall) (string, error) {
	lines := make([]string, len(calls))
	listed := 0
	for i := len(calls) - 1; i >= 0; i-- {
		c := calls[i]
		line := crashCall{Call: c.seq, Program: hex.EncodeToString(c.key[:])}
		if l := c.lists; l != nil {
			listed += len(l.Params) + len(l.Inputs) + len(l.Outputs) + len(l.Frees)
			if listed <= maxListed {
				line.Known, line.Inputs, line.Outputs, line.Frees = true, l.Inputs, l.Outputs, l.Frees
				for _, word := range l.Params {
					line.Params = append(line.Params, fmt.Sprintf("%#x", word))
				}
			}
		}
		text, err := json.Marshal(line)
		if err != nil {
			return "", err
		}
		lines[i] = string(text) + "\n"
	}
	return strings.Join(lines, ""), nil
}
