// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package hub fetches the weights of models from a server with the interface of huggingface.co, and keeps them in a
// cache on the worker's disk. A helper process of the worker runs Serve for each request of a session. The session
// gets open files and reads the tensors itself.
//
// The package never executes or unpickles what it has fetched, never trusts a length, name or hash of a server, and
// never writes a token or a signed address into a log or an error.
package hub

import (
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strings"
	"unicode"
)

// DefaultEndpoint is the server that is meant by an empty endpoint.
const DefaultEndpoint = "https://huggingface.co"

// Request says what is to be fetched.
type Request struct {
	Endpoint string // "": DefaultEndpoint
	Repo     string // "owner/name", or "name"
	Revision string // a branch, a tag or a commit; "": main
	Path     string // a folder or a file of the repository; "": all of it
	Token    string // a secret; "": none
	// SHA256 is the hash of the one file that Path names; it needs no listing. "": the safetensors files of Path.
	SHA256 string
	Hasty  bool // give up early if no server answers: there is another way to the bytes
}

// Error is an error for the user, in whole sentences. Value: the request is wrong, not the state of the world.
type Error struct {
	Text  string
	Value bool
}

func (e *Error) Error() string { return e.Text }

func errorf(format string, args ...any) error { return &Error{Text: fmt.Sprintf(format, args...)} }

func valuef(format string, args ...any) error {
	return &Error{Text: fmt.Sprintf(format, args...), Value: true}
}

var (
	repoName = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,95}$`)
	hexHash  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

const (
	maxRevision = 256
	maxPath     = 1024
	maxToken    = 4096
)

// check checks a request, and brings it into the form that the rest of the package expects.
func (r *Request) check() (*url.URL, error) {
	if r.Endpoint == "" {
		r.Endpoint = DefaultEndpoint
	}
	if r.Revision == "" {
		r.Revision = "main"
	}
	r.Path = strings.TrimSuffix(r.Path, "/")
	switch {
	case !repoName.MatchString(r.Repo) || strings.Contains(r.Repo, ".."):
		return nil, valuef("%s is no name of a repository; it has the form owner/name, as in "+
			"\"openai-community/gpt2\".", quote(r.Repo))
	case len(r.Revision) > maxRevision || strings.Contains(r.Revision, "..") || !printable(r.Revision):
		return nil, valuef("%s is no revision; give a branch, a tag or a commit of the repository.", quote(r.Revision))
	case r.Path != "" && (len(r.Path) > maxPath || path.Clean("/"+r.Path) != "/"+r.Path || !printable(r.Path)):
		return nil, valuef("%s is no path in a repository; give a folder or a file as the hub shows it, as in "+
			"\"text_encoder\".", quote(r.Path))
	case len(r.Token) > maxToken || !printable(r.Token) || strings.ContainsAny(r.Token, " "):
		return nil, valuef("The token has characters that no token has; copy it again from the hub's settings.")
	case r.SHA256 != "" && (!hexHash.MatchString(r.SHA256) || r.Path == ""):
		return nil, valuef("%s is no SHA-256 of a file.", quote(r.SHA256))
	}
	u, err := url.Parse(r.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" || u.Opaque != "" {
		return nil, valuef("The endpoint of the hub must be the address of a server without a name, a password or a "+
			"query, as in %q; set HF_ENDPOINT to such an address, or unset it.", DefaultEndpoint)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	if u.Scheme == "http" && r.Token != "" && !isLoopback(u.Hostname()) {
		return nil, valuef("The endpoint %s is not encrypted, so others on the network could read the token. Set "+
			"HF_ENDPOINT to an https address, or pass no token.", quote(u.Scheme+"://"+u.Host))
	}
	return u, nil
}

// isLoopback says whether a host's name means the worker's own host.
func isLoopback(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	return host == "localhost"
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return r == '\\' || r == unicode.ReplacementChar || unicode.IsControl(r)
	})
}

// String describes a request for messages, without its secrets.
func (r *Request) String() string {
	text := r.Repo
	if r.Revision != "main" {
		text += "@" + r.Revision
	}
	return quote(text)
}
