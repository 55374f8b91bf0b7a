// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Timeouts of a fetch.
type Timeouts struct {
	Stall time.Duration // without a byte on a connection
	Whole time.Duration // of a fetch
	Pause time.Duration // before the first repetition of a request; it doubles
}

// DefaultTimeouts are those of a worker.
var DefaultTimeouts = Timeouts{Stall: time.Minute, Whole: 12 * time.Hour, Pause: 500 * time.Millisecond}

const (
	// attempts bounds the repetitions of a request without a byte of progress between them.
	attempts = 8
	hastily  = 2 // the same for a hasty request
	// enough is the progress in bytes after which a request is repeated at once: the server sends, and something between
	// cuts its connections.
	enough   = 64 << 10
	maxPause = 15 * time.Second
	// maxRetryAfter bounds how long a server may ask to wait.
	maxRetryAfter = 5 * time.Minute
	maxRedirects  = 10
	maxReply      = 16 << 20 // bytes of a reply of the hub's interface
	userAgent     = "mycelya-worker"
)

// web sends the requests of one fetch.
type web struct {
	request  Request
	endpoint *url.URL
	guard    *guard
	client   *http.Client
	timeouts Timeouts
}

func newWeb(r Request, endpoint *url.URL, timeouts Timeouts) *web {
	g := newGuard(endpoint)
	return &web{request: r, endpoint: endpoint, guard: g, client: g.client(timeouts), timeouts: timeouts}
}

// at is a URL of the endpoint. The parts are parts of a path, which are escaped.
func (w *web) at(parts ...string) *url.URL {
	u := *w.endpoint
	escaped := u.EscapedPath()
	for _, p := range parts {
		u.Path += "/" + p
		escaped += "/" + url.PathEscape(p)
	}
	u.RawPath = escaped
	return &u
}

// temporary is an answer or an error after which the same request may succeed.
type temporary struct {
	err   error
	after time.Duration // that the server asks for
}

func (t *temporary) Error() string { return t.err.Error() }
func (t *temporary) Unwrap() error { return t.err }

// open sends a request and follows redirects. It returns the response, whose status is below 300, and the place that
// answered. The token goes to the endpoint only.
func (w *web) open(ctx context.Context, method string, u *url.URL, header http.Header) (*http.Response, *url.URL,
	error) {
	for range maxRedirects {
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil && classOf(ip) == never {
			return nil, nil, w.unreachable(u, fmt.Errorf("%w: %v is not for servers of weights", errRefused, ip))
		}
		req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
		if err != nil {
			return nil, nil, errorf("The hub has an address that is none.")
		}
		req.Header = header.Clone()
		if req.Header == nil {
			req.Header = http.Header{}
		}
		req.Header.Set("User-Agent", userAgent)
		if w.request.Token != "" && u.Scheme == w.endpoint.Scheme && hostPort(u) == w.guard.endpoint {
			req.Header.Set("Authorization", "Bearer "+w.request.Token)
		}
		res, err := w.client.Do(req)
		if err != nil {
			return nil, nil, w.unreachable(u, err)
		}
		if res.StatusCode < 300 {
			return res, u, nil
		}
		drain(res.Body)
		if !isRedirect(res.StatusCode) {
			return nil, nil, w.refused(u, res)
		}
		next, err := u.Parse(res.Header.Get("Location"))
		if err != nil {
			return nil, nil, errorf("%s sends a redirect that is no address.", quote(u.Host))
		}
		if err := w.guard.follows(next); err != nil {
			return nil, nil, w.unreachable(next, err)
		}
		u = next
	}
	return nil, nil, errorf("%s sends more than %d redirects.", quote(w.endpoint.Host), maxRedirects)
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
		return true
	}
	return false
}

// drain reads a little of a body, so that its connection can be used again, and closes it.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

// unreachable turns the error of a connection into one for the user. The text never has the URL's query, which may be
// signed, and none of net/http's texts, which repeat it.
func (w *web) unreachable(u *url.URL, err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	host := quote(u.Host)
	var name *net.DNSError
	var record tls.RecordHeaderError
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, errRefused):
		return errorf("The worker does not fetch from %s: %v. Weights come from public servers; a hub inside the worker's "+
			"network must be the endpoint itself (HF_ENDPOINT).", host, err)
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &verify), errors.As(err, &unknown), errors.As(err, &record):
		return errorf("The worker cannot verify the certificate of %s: %v. If a proxy of the worker's network replaces "+
			"certificates, set SSL_CERT_FILE for the worker to its authority.", host, err)
	case errors.As(err, &name) && name.IsNotFound:
		return &temporary{err: errorf("The worker finds no server %s. Check HF_ENDPOINT, and whether the worker's host may "+
			"use the internet.", host)}
	}
	return &temporary{err: errorf("The worker cannot reach %s: %s. Check whether the worker's host may use the internet.",
		host, plain(err))}
}

// plain is the text of an error of the network without addresses of pages.
func plain(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection is refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the connection was reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection has ended early"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "there is no answer in time"
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return fmt.Sprintf("an error of type %T", err)
}

// refused turns an answer of the server into an error for the user.
func (w *web) refused(u *url.URL, res *http.Response) error {
	host, status := quote(u.Host), res.StatusCode
	code := res.Header.Get("X-Error-Code")
	switch {
	case status < 500 && status != http.StatusTooManyRequests && hostPort(u) != w.guard.endpoint:
		// The hub has signed this address for a time.
		return &temporary{err: errorf("%s, where the hub says that a file is, does not give it out (%d). Try again later.",
			host, status)}
	case status == http.StatusTooManyRequests:
		return &temporary{errorf("%s answers that there were too many requests (429). Try again later, or pass a token, "+
			"which has a higher limit.", host), retryAfter(res.Header.Get("Retry-After"))}
	case status == http.StatusRequestTimeout || status >= 500:
		return &temporary{errorf("%s answers with an error of its own (%d). Try again later.", host, status),
			retryAfter(res.Header.Get("Retry-After"))}
	case code == "GatedRepo" || status == http.StatusForbidden && code == "":
		if w.request.Token == "" {
			return errorf("The repository %v is gated: its owner lets only some accounts read it. Ask for access on the "+
				"repository's page, and pass the account's token: token=….", &w.request)
		}
		return errorf("The repository %v is gated, and the token's account has no access. Ask for access on the "+
			"repository's page with this account.", &w.request)
	case code == "RevisionNotFound":
		return valuef("The repository %s has no revision %s. Give a branch, a tag or a commit.", quote(w.request.Repo),
			quote(w.request.Revision))
	case code == "EntryNotFound":
		return w.noPath()
	case status == http.StatusUnauthorized && w.request.Token != "" && code != "RepoNotFound":
		return errorf("%s does not accept the token (401). Make a new one in the hub's settings, with the right to read "+
			"%v.", host, &w.request)
	case code == "RepoNotFound" || status == http.StatusUnauthorized || status == http.StatusNotFound:
		text := "Check the name; for a private repository, pass a token: token=…."
		if w.request.Token != "" {
			text = "Check the name, and whether the token's account may read it."
		}
		return valuef("There is no repository %v on %s that this request may read. %s", &w.request,
			quote(w.endpoint.Host), text)
	}
	return errorf("%s answers with status %d, which the worker does not expect from a hub. Check HF_ENDPOINT.", host,
		status)
}

func (w *web) noPath() error {
	return valuef("The repository %v has no folder or file %s.", &w.request, quote(w.request.Path))
}

// retryAfter is the time in a Retry-After header: seconds, or a date.
func retryAfter(text string) time.Duration {
	if seconds, err := strconv.Atoi(strings.TrimSpace(text)); err == nil && seconds >= 0 {
		return min(time.Duration(min(seconds, 3600))*time.Second, maxRetryAfter)
	}
	if date, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(date), 0), maxRetryAfter)
	}
	return 0
}

// retry calls try until it succeeds, fails for good, or has failed too often without progress. try returns how many
// bytes have come.
func (w *web) retry(ctx context.Context, try func() (int64, error)) error {
	failed := 0
	for {
		came, err := try()
		if err == nil {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		var again *temporary
		if !errors.As(err, &again) {
			return err
		}
		if failed++; came > 0 {
			failed = 1
		}
		if failed == attempts || w.request.Hasty && failed == hastily {
			return again.err
		}
		pause := min(w.timeouts.Pause<<(failed-1), maxPause)
		pause = pause/2 + rand.N(pause/2+1)
		if came >= enough {
			pause = 0
		}
		pause = max(pause, again.after)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// json gets a reply of the hub's interface, and returns the URL of its next page, nil if there is none.
func (w *web) json(ctx context.Context, u *url.URL, into any) (next *url.URL, err error) {
	err = w.retry(ctx, func() (int64, error) {
		res, at, err := w.open(ctx, http.MethodGet, u, http.Header{"Accept": {"application/json"}})
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		in := w.watched(res.Body)
		defer in.timer.Stop()
		text, err := io.ReadAll(io.LimitReader(in, maxReply+1))
		switch {
		case err != nil:
			return 0, w.unreachable(at, err)
		case len(text) > maxReply:
			return 0, errorf("%s answers with more than %d MiB where a list is expected.", quote(at.Host), maxReply>>20)
		case json.Unmarshal(text, into) != nil:
			return 0, errorf("%s does not answer as a hub does. Check HF_ENDPOINT.", quote(at.Host))
		}
		next, err = nextPage(at, res.Header.Get("Link"))
		return 0, err
	})
	return next, err
}

// nextPage reads a Link header. A next page on another server is none.
func nextPage(u *url.URL, link string) (*url.URL, error) {
	for part := range strings.SplitSeq(link, ",") {
		target, params, _ := strings.Cut(part, ";")
		target = strings.TrimSpace(target)
		if !strings.Contains(params, `rel="next"`) || len(target) < 2 || target[0] != '<' || target[len(target)-1] != '>' {
			continue
		}
		next, err := u.Parse(target[1 : len(target)-1])
		if err != nil || next.Host != u.Host || next.Scheme != u.Scheme {
			return nil, errorf("%s names a next page that is on another server.", quote(u.Host))
		}
		return next, nil
	}
	return nil, nil
}

// watched is a body whose connection is closed when no byte comes for a while.
func (w *web) watched(body io.ReadCloser) *watchedBody {
	return &watchedBody{body, time.AfterFunc(w.timeouts.Stall, func() { _ = body.Close() }), w.timeouts.Stall, false}
}

type watchedBody struct {
	body  io.ReadCloser
	timer *time.Timer
	limit time.Duration
	ended bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if b.ended = b.ended || !b.timer.Stop(); b.ended {
		return n, context.DeadlineExceeded
	}
	if err == nil {
		b.timer.Reset(b.limit)
	}
	return n, err
}
