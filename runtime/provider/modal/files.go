// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"

	"github.com/mycelya/mycelya/runtime/provider"
)

// file is a file of this host that a sandbox gets.
type file struct{ path, name, hash string }

const reinstall = "Reinstall the package: pip install --force-reinstall --no-deps mycelya-torch."

// fileNames are the names of a plan's files in a sandbox. The start script has them, too.
var fileNames = [3]string{"mycelya-worker", "libmycelya_exec.so", "libmycelya_exec_cuda.so"}

// openFile hashes a file, and refuses one that cannot run in a sandbox.
func openFile(path, name string) (file, error) {
	fail := func(kind error, what any) (file, error) {
		return file{}, provider.Errorf(kind, "The file %q, which a Modal machine needs, cannot be used: %v. %s", path, what,
			reinstall)
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(provider.ErrNotFound, err)
	}
	defer f.Close()
	head, err := elf.NewFile(f)
	if err != nil || head.Machine != elf.EM_X86_64 {
		return fail(provider.ErrInvalidSpec, "it is not for Linux on x86-64, which all sandboxes of Modal have")
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return fail(provider.ErrUnavailable, err)
	}
	return file{path, name, hex.EncodeToString(hash.Sum(nil))}, nil
}

// The scripts of this file and start.go run in a POSIX shell with coreutils and gzip, as Debian has them.
const home = `here=${HOME:-/root}/.mycelya
same() { [ "$(sha256sum < "$here/$2")" = "$1  -" ]; }
`

// prepareScript takes files from the cache, and prints the names of those that must be sent. Its arguments: the folder
// of the cache, "" if there is none; hash and name of each file.
const prepareScript = `umask 077
` + home + `mkdir -p "$here"
cache=$1 all=yes
shift
while [ $# -gt 0 ]; do
  if [ -n "$cache" ] && cp "$cache/$1" "$here/$2" 2>/dev/null && same "$1" "$2"; then
    chmod 700 "$here/$2"
  else
    rm -f "$here/$2"
    echo "$2"
    all=no
  fi
  shift 2
done
[ $all = no ] || : > "$here/ready"
`

// receiveScript writes a file that comes on stdin, and puts it into the cache. Its arguments: the folder of the cache,
// hash and name of the file, "last" for the last file.
const receiveScript = `umask 077
` + home + `gzip -dc > "$here/$3" && chmod 700 "$here/$3" || exit 1
same "$2" "$3" || { echo "the file has changed on the way" >&2; exit 1; }
if [ -n "$1" ]; then
  mkdir -p "$1" && cp "$here/$3" "$1/$2.$$" && mv "$1/$2.$$" "$1/$2" || rm -f "$1/$2.$$"
fi
[ "$4" != last ] || : > "$here/ready"
`

const (
	// volumePath is where a sandbox has its volume.
	volumePath = "/mnt/mycelya"
	// chunk is how many bytes of a file one request carries.
	chunk = 1 << 20
	// poll is how often the plane is asked whether a sandbox runs.
	poll = 250 * time.Millisecond
)

// cache is the folder of files in a sandbox; "": none.
func (w *plan) cache() string {
	if w.volume == "" {
		return ""
	}
	return volumePath + "/files"
}

// send gives a sandbox the files that it lacks. It returns when the worker may start.
func (l *starter) send(ctx context.Context, in *instance) error {
	sb, err := l.client.Sandboxes.FromID(ctx, in.id)
	if err != nil {
		return err
	}
	// Writes to stdin take no context. They fail once the sandbox is detached.
	stop := context.AfterFunc(ctx, func() { _ = sb.Detach() })
	defer stop()
	defer func() { _ = sb.Detach() }()
	args := []string{"sh", "-c", prepareScript, "prepare", l.plan.cache()}
	for _, f := range l.plan.files {
		args = append(args, f.hash, f.name)
	}
	missing, err := l.first(ctx, in, sb, args)
	if err != nil {
		return err
	}
	for _, name := range missing {
		i := slices.IndexFunc(l.plan.files, func(f file) bool { return f.name == name })
		if i < 0 {
			return fmt.Errorf("a sandbox asks for %q", name)
		}
		word := "more"
		if name == missing[len(missing)-1] {
			word = "last"
		}
		f := l.plan.files[i]
		args := []string{"sh", "-c", receiveScript, "receive", l.plan.cache(), f.hash, f.name, word}
		if _, err := command(ctx, sb, args, f.path); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// first runs the first command of a sandbox once it runs, and returns the lines that it prints. The library reports a
// sandbox that has not started by an error without a type, so errors of it are tried again.
func (l *starter) first(ctx context.Context, in *instance, sb *sdk.Sandbox, args []string) ([]string, error) {
	began := time.Now()
	for {
		out, err := command(ctx, sb, args, "")
		if err == nil {
			return strings.Fields(out), nil
		}
		if ctx.Err() != nil || refuses(err) {
			return nil, err
		}
		if time.Since(began) > l.plan.start {
			return nil, errNotStarted
		}
		select {
		case <-in.Ended():
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(poll):
		}
	}
}

// command runs a command in a sandbox, with a file as its stdin, packed.
func command(ctx context.Context, sb *sdk.Sandbox, args []string, stdin string) (string, error) {
	p, err := sb.Exec(ctx, args, nil)
	if err != nil {
		return "", err
	}
	defer p.Stdout.Close()
	defer p.Stderr.Close()
	if stdin != "" {
		err = pack(p.Stdin, stdin)
	}
	out, err1 := io.ReadAll(p.Stdout)
	text, err2 := io.ReadAll(p.Stderr)
	code, err3 := p.Wait(ctx)
	for _, e := range []error{err1, err2, err3, err} {
		if e != nil {
			return "", e
		}
	}
	if code != 0 {
		return "", commandFailed(fmt.Sprintf("a command in the sandbox ended with code %d: %s", code,
			strings.TrimSpace(string(text))))
	}
	return string(out), nil
}

// commandFailed is the error of a command that has run.
type commandFailed string

func (c commandFailed) Error() string { return string(c) }

// pack writes a file to a stream, and ends the stream.
func pack(to io.WriteCloser, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	pieces := bufio.NewWriterSize(to, chunk)
	z, err := gzip.NewWriterLevel(pieces, gzip.BestSpeed)
	if err == nil {
		_, err = io.Copy(z, f)
	}
	for _, end := range []func() error{z.Close, pieces.Flush, to.Close} {
		if err == nil {
			err = end()
		}
	}
	return err
}
