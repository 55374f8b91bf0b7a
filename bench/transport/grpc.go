// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// messageBytes is the size of a message of a transfer. gRPC's own limit is 4 MiB.
	messageBytes = 1 << 20
	// windowBytes replaces gRPC's windows, which begin with 64 KiB.
	windowBytes = 16 << 20

	service   = "mycelya.bench.Peer"
	sendAll   = "/" + service + "/Up"    // a number of bytes and messages, answered by an empty message
	fetchAll  = "/" + service + "/Down"  // a number of bytes, answered by messages
	exchange  = "/" + service + "/Trips" // each message has its answer
	exchange1 = "/" + service + "/Trip"  // one message and its answer
)

// grpcPeer is a peer on a gRPC connection. Each transfer is a call. Messages are protobuf's BytesValue.
type grpcPeer struct {
	conn  *grpc.ClientConn
	trips grpc.ClientStream // nil: each round trip is a call
}

func openGRPC(address string, secret *tls.Config, unary bool) (peer, error) {
	how := insecure.NewCredentials()
	if secret != nil {
		how = credentials.NewTLS(secret)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(how),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes))
	if err != nil || unary {
		return &grpcPeer{conn: conn}, err
	}
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	trips, err := conn.NewStream(context.Background(), both, exchange)
	return &grpcPeer{conn, trips}, err
}

func (p *grpcPeer) up(src []byte) error {
	s, err := p.conn.NewStream(context.Background(), &grpc.StreamDesc{ClientStreams: true}, sendAll)
	if err != nil {
		return err
	}
	if err := s.SendMsg(wrapperspb.UInt64(uint64(len(src)))); err != nil {
		return err
	}
	if err := sendMessages(s, src); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return s.RecvMsg(new(wrapperspb.BytesValue))
}

func (p *grpcPeer) down(dst []byte) error {
	s, err := p.conn.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true}, fetchAll)
	if err != nil {
		return err
	}
	if err := s.SendMsg(wrapperspb.UInt64(uint64(len(dst)))); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return receiveMessages(s, dst)
}

func (p *grpcPeer) trip() error {
	message, answer := wrapperspb.Bytes(make([]byte, tripBytes)), new(wrapperspb.BytesValue)
	if p.trips == nil {
		return p.conn.Invoke(context.Background(), exchange1, message, answer)
	}
	if err := p.trips.SendMsg(message); err != nil {
		return err
	}
	return p.trips.RecvMsg(answer)
}

// sendMessages sends bytes on a call of the client or the server.
func sendMessages(s interface{ SendMsg(any) error }, src []byte) error {
	for len(src) > 0 {
		n := min(len(src), messageBytes)
		if err := s.SendMsg(wrapperspb.Bytes(src[:n])); err != nil {
			return err
		}
		src = src[n:]
	}
	return nil
}

// receiveMessages receives bytes until dst is full or the messages end.
func receiveMessages(s interface{ RecvMsg(any) error }, dst []byte) error {
	for len(dst) > 0 {
		var message wrapperspb.BytesValue
		if err := s.RecvMsg(&message); err != nil {
			return err
		}
		dst = dst[copy(dst, message.Value):]
	}
	return nil
}

// grpcServer answers the calls.
type grpcServer struct{ memory *memory }

func (g grpcServer) up(_ any, s grpc.ServerStream) error {
	var n wrapperspb.UInt64Value
	if err := s.RecvMsg(&n); err != nil {
		return err
	}
	if err := g.memory.use(n.Value, func(b []byte) error { return receiveMessages(s, b) }); err != nil {
		return err
	}
	return s.SendMsg(new(wrapperspb.BytesValue))
}

func (g grpcServer) down(_ any, s grpc.ServerStream) error {
	var n wrapperspb.UInt64Value
	if err := s.RecvMsg(&n); err != nil {
		return err
	}
	return g.memory.use(n.Value, func(b []byte) error { return sendMessages(s, b) })
}

func (g grpcServer) trips(_ any, s grpc.ServerStream) error {
	for {
		var message wrapperspb.BytesValue
		if err := s.RecvMsg(&message); err != nil {
			return nil // the client has closed the call
		}
		if err := s.SendMsg(&message); err != nil {
			return err
		}
	}
}

func (g grpcServer) trip(
	_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor,
) (any, error) {
	var message wrapperspb.BytesValue
	err := decode(&message)
	return &message, err
}

// listenGRPC starts a server and returns its address. secret nil: without TLS.
func listenGRPC(secret *tls.Config, m *memory) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	how := insecure.NewCredentials()
	if secret != nil {
		how = credentials.NewTLS(secret)
	}
	server := grpc.NewServer(grpc.Creds(how), grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(windowBytes))
	g := grpcServer{m}
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Trip", Handler: g.trip}},
		Streams: []grpc.StreamDesc{
			{StreamName: "Up", Handler: g.up, ClientStreams: true},
			{StreamName: "Down", Handler: g.down, ServerStreams: true},
			{StreamName: "Trips", Handler: g.trips, ServerStreams: true, ClientStreams: true},
		},
	}, g)
	go func() { report(gRPC, server.Serve(l)) }()
	return l.Addr().String(), nil
}
