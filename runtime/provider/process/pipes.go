// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package process

import (
	"os"
	"os/exec"

	"github.com/mycelya/mycelya/runtime/provider"
)

// Pipes are this process's ends of a command's stdin, stdout and stderr.
type Pipes struct{ In, Out, Err *os.File }

// Connect gives a command three pipes, which name is in a sentence. The caller must call started after the command's
// start, also if that fails.
func Connect(cmd *exec.Cmd, name string) (mine Pipes, started func(), err error) {
	var theirs [3]*os.File
	started = func() {
		for _, f := range theirs {
			_ = f.Close() // a nil file has an error
		}
	}
	theirs[0], mine.In, err = os.Pipe()
	if err == nil {
		mine.Out, theirs[1], err = os.Pipe()
	}
	if err == nil {
		mine.Err, theirs[2], err = os.Pipe()
	}
	if err != nil {
		started()
		mine.Close()
		return mine, nil, provider.Errorf(provider.ErrUnavailable, "The pipes of %s cannot be made: %v. %s", name,
			Reason(err), Advice(err, ""))
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	return mine, started, nil
}

// Close closes the ends.
func (p Pipes) Close() {
	for _, f := range []*os.File{p.In, p.Out, p.Err} {
		_ = f.Close()
	}
}

// FDs returns the descriptors of files without those that are closed: their numbers may be those of other files.
// File.Fd would make a file blocking.
func FDs(files ...*os.File) (out []int) {
	for _, f := range files {
		if c, err := f.SyscallConn(); err == nil {
			_ = c.Control(func(fd uintptr) { out = append(out, int(fd)) })
		}
	}
	return out
}
