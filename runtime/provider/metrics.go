// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package provider

import (
	"context"
	"strings"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// metricsWait bounds a question to a worker, which answers at once. Its connection may need some round trips.
const metricsWait = 20 * time.Second

// Metrics asks the worker of an instance for its metrics, in Prometheus's text format (worker/supervisor/status.go).
// The question has a connection of its own, so it is no client of the worker and disturbs none.
func Metrics(ctx context.Context, in Instance) (string, error) {
	if one, ok := in.(OneStream); ok && one.OneStream() {
		return "", Errorf(ErrUnavailable, "The worker %v has one stream, which its client uses, so nobody else can ask it.",
			in.Handle())
	}
	ctx, cancel := context.WithTimeout(ctx, metricsWait)
	defer cancel()
	reply, err := ask(ctx, in)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", Errorf(ErrUnavailable, "The worker %v does not report: %v", in.Handle(), err)
	}
	return reply.Metrics, nil
}

// HasClients asks the worker of an instance whether it serves a client, from whichever host.
func HasClients(ctx context.Context, in Instance) (bool, error) {
	text, err := Metrics(ctx, in)
	return err == nil && !strings.Contains("\n"+text, "\nmycelya_sessions 0\n"), err
}

func ask(ctx context.Context, in Instance) (*proto.Reported, error) {
	nc, err := Connect(ctx, in, transport.EndOf(transport.NewSessionName()))
	if err != nil {
		return nil, err
	}
	c := transport.New(nc)
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := c.Send(transport.Report, 0, new(proto.Report), nil); err != nil {
		return nil, err
	}
	h, err := c.Next()
	if err != nil {
		return nil, err
	}
	if h.Type != transport.Reported {
		return nil, Errorf(ErrVersion, "it has answered with a %v.", h.Type)
	}
	reply := new(proto.Reported)
	return reply, c.Meta(reply)
}
