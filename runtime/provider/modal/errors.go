// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"context"
	"errors"
	"fmt"

	sdk "github.com/modal-labs/libmodal/modal-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mycelya/mycelya/runtime/provider"
)

const signIn = "Set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token set` (pip install modal), which " +
	"writes them to ~/.modal.toml. https://modal.com/settings/tokens makes a token."

// explain makes an error of the library one of ours. doing completes "Modal could not …". The library gives raw errors
// of gRPC for everything that has to do with the account.
func explain(ctx context.Context, doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case known(err) != nil:
		return err
	case containsAny(err.Error(), "missing token_id"):
		return provider.Errorf(provider.ErrAuth, "There are no credentials for Modal. %s", signIn)
	}
	var build sdk.RemoteError
	if errors.As(err, &build) {
		return provider.Errorf(provider.ErrInvalidSpec, "Modal could not %s: %s.", doing, first(build.Exception))
	}
	remedy, kind := meaning(err)
	text := err.Error()
	var of interface{ GRPCStatus() *status.Status }
	if errors.As(err, &of) {
		text = of.GRPCStatus().Message() // without what the library has put around it
	}
	return &provider.Error{Kind: kind, Err: err, Text: fmt.Sprintf("Modal could not %s: %s. %s", doing, first(text),
		remedy)}
}

// meaning is what the reader of an error can do, and its kind.
func meaning(err error) (remedy string, kind error) {
	s, _ := status.FromError(err)
	switch s.Code() {
	case codes.Unauthenticated:
		return "Modal does not accept the token. " + signIn, provider.ErrAuth
	case codes.PermissionDenied:
		return "The token's user may not do that. Ask the owner of the Modal workspace.", provider.ErrAuth
	case codes.ResourceExhausted:
		if containsAny(s.Message(), "capacity", "no available", "not available") {
			return "Try again later, name other types with gpu_fallback=\"A100-80GB,H100\", or leave " +
				"out region=.", provider.ErrCapacity
		}
		return "Stop other machines (https://modal.com/apps lists them), or raise the limits of the " +
			"Modal workspace.", provider.ErrQuota
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return "https://modal.com/docs/guide/gpu lists the GPU types, and " +
			"https://modal.com/docs/guide/region-selection the regions.", provider.ErrInvalidSpec
	case codes.NotFound:
		return "Does the environment that MODAL_ENVIRONMENT or ~/.modal.toml names exist?", provider.ErrNotFound
	}
	if errors.As(err, new(sdk.NotFoundError)) {
		return "Does the environment that MODAL_ENVIRONMENT or ~/.modal.toml names exist?", provider.ErrNotFound
	}
	return "Is the network up? https://status.modal.com says whether Modal is.", provider.ErrUnavailable
}
