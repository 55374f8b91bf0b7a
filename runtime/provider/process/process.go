// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package process has what providers share, above all those that start processes on this host: how a worker ends, the
// pipes, the log and the environment of a process, a private folder for sockets, and sentences about files and limits.
// It never starts a process.
package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// Reinstall is the remedy for a package that lacks a part of itself.
const Reinstall = "Reinstall the package: pip install --force-reinstall --no-deps mycelya-torch."

// ValidDevice says whether a worker can have a device: "cpu", "cuda:<number>", or "" for the best.
func ValidDevice(d string) bool {
	if n, ok := strings.CutPrefix(d, "cuda:"); ok {
		i, err := strconv.Atoi(n)
		return err == nil && i >= 0 && strconv.Itoa(i) == n
	}
	return d == "" || d == "cpu"
}

// Missing is the error of a part of this package that cannot be read.
func Missing(what, path string, err error) error {
	if path == "" {
		return provider.Errorf(provider.ErrNotFound, "The path of the %s is not known. %s", what, Reinstall)
	}
	return provider.Errorf(provider.ErrNotFound, "The %s %q cannot be used: %v. %s", what, path, Reason(err), Reinstall)
}

// Advice says what to do about an error that has to do with a limit, and otherwise what other says.
func Advice(err error, other string) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "This process has as many files open as it may. Close some, or raise the limit: ulimit -n 65536, " +
			"or resource.setrlimit(resource.RLIMIT_NOFILE, …) in Python."
	case errors.Is(err, syscall.ENFILE):
		return "The host has as many files open as it may. End other programs, or raise fs.file-max."
	case errors.Is(err, syscall.EAGAIN):
		return "The user has as many processes as allowed. End some, or raise the limit: ulimit -u."
	case errors.Is(err, syscall.ENOMEM):
		return "The host has too little memory for another process. End other programs."
	}
	return other
}

// Reason is an error of the file system without the path, which the sentence has already.
func Reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// MaxSocketPath is the longest path of a socket: Linux takes 107 bytes, macOS 103.
const MaxSocketPath = 103

// PrivateDir makes a folder that only this user can enter, with a path that is short enough for a socket whose name has
// so many bytes more than that of SocketIn. what is a part of the folder's name.
func PrivateDir(what string, more int) (string, error) {
	var errs []error
	for _, base := range []string{os.TempDir(), "/tmp"} {
		if abs, err := filepath.Abs(base); err == nil {
			base = abs
		}
		dir, err := os.MkdirTemp(base, transport.FolderPrefix+what) // mode 0700
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if len(SocketIn(dir))+more <= MaxSocketPath && !strings.ContainsAny(dir, "|\n") {
			return dir, nil
		}
		_ = os.Remove(dir)
		errs = append(errs, fmt.Errorf("%s is too long a path for a socket", base))
	}
	return "", provider.Errorf(
		provider.ErrUnavailable,
		"No folder for the worker's socket could be made: %v. Set TMPDIR to a short path that can be written.",
		errors.Join(errs...),
	)
}

// SocketIn is the path of the socket in a folder of PrivateDir.
func SocketIn(dir string) string { return filepath.Join(dir, "s") }
