// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A session and its helper process share a socket. The session sends its Request once; the end of the session's side
// ends the fetch. The helper sends messages:
//
//	message = kind length json
//	kind    = 'p' progress | 'f' a file, with its descriptor on this byte | 'e' the end: an error, empty if there is none
//	length  = 4 bytes, little-endian: of the JSON, at most maxMessage
const maxMessage = 64 << 10

const (
	requestKind  = 'r'
	progressKind = 'p'
	fileKind     = 'f'
	endKind      = 'e'
)

// Serve reads a request from a session, and fetches what it names. It returns when the session has its answer, or has
// gone. It owns c.
func Serve(c *net.UnixConn, f *Fetcher) error {
	defer c.Close()
	var r Request
	if kind, file, err := receive(c, &r); err != nil || kind != requestKind || file != nil {
		return fmt.Errorf("hub: there is no request: %w", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { // nothing else comes
		_, _ = io.Copy(io.Discard, c)
		cancel(context.Canceled)
	}()
	var mu sync.Mutex
	tell := func(kind byte, m any, file *os.File) error {
		mu.Lock()
		defer mu.Unlock()
		return send(c, kind, m, file)
	}
	err := f.Fetch(ctx, r, func(p Progress) { _ = tell(progressKind, p, nil) }, func(f File) error {
		defer f.F.Close()
		return tell(fileKind, File{Folder: f.Folder, Path: f.Path, Size: f.Size}, f.F)
	})
	if ctx.Err() != nil {
		return nil
	}
	var end Error
	var mine *Error
	switch {
	case errors.As(err, &mine):
		end = *mine
	case err != nil:
		end = Error{Text: fmt.Sprintf("The weights cannot be fetched: %v.", err)}
	}
	return tell(endKind, end, nil)
}

// Ask sends a helper a request, and takes its answer: it calls progress, and each with each file as it comes. It
// returns how many came. To end the fetch early, close c.
func Ask(c *net.UnixConn, r Request, progress func(Progress), each func(File) error) (files int, err error) {
	if err := send(c, requestKind, r, nil); err != nil {
		return 0, err
	}
	for {
		var m struct {
			Progress
			Error
			Folder, Path string
			Size         int64
		}
		kind, file, err := receive(c, &m)
		if err != nil {
			return files, err
		}
		switch {
		case kind == fileKind && file != nil && files < maxFiles:
			files++
			if err := each(File{m.Folder, m.Path, m.Size, file}); err != nil {
				return files, err
			}
			continue
		case file != nil:
			_ = file.Close()
			return files, errors.New("hub: a descriptor that belongs to nothing")
		case kind == progressKind:
			progress(m.Progress)
		case kind == endKind && m.Text != "":
			return files, &Error{Text: m.Text, Value: m.Value}
		case kind == endKind:
			return files, nil
		default:
			return files, fmt.Errorf("hub: a message %q", kind)
		}
	}
}

// send sends a message, with a descriptor if there is one.
func send(c *net.UnixConn, kind byte, m any, file *os.File) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b := append(binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(text))), text...)
	if file == nil {
		_, err = c.Write(b)
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	n := 0
	err = raw.Control(func(fd uintptr) { n, _, sent = c.WriteMsgUnix(b, unix.UnixRights(int(fd)), nil) })
	if err = errors.Join(err, sent); err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}

// receive reads a message, and the descriptor that came with it; nil: none did.
func receive(c *net.UnixConn, into any) (kind byte, file *os.File, err error) {
	one, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, rn, _, _, err := c.ReadMsgUnix(one, rights)
	if err != nil || n == 0 {
		return 0, nil, cmp.Or(err, io.ErrUnexpectedEOF)
	}
	if file, err = descriptor(rights[:rn]); err != nil {
		return 0, nil, err
	}
	var length uint32
	if err = binary.Read(c, binary.LittleEndian, &length); err == nil && length > maxMessage {
		err = fmt.Errorf("hub: a message of %d bytes", length)
	}
	text := []byte(nil)
	if err == nil {
		text = make([]byte, length)
		_, err = io.ReadFull(c, text)
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil && file != nil {
		_ = file.Close()
		file = nil
	}
	return one[0], file, err
}

// descriptor is the descriptor in a control message; nil: there is none.
func descriptor(rights []byte) (*os.File, error) {
	if len(rights) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("hub: there are %d control messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	for _, fd := range fds[1:] {
		_ = unix.Close(fd)
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "weights"), nil
}
