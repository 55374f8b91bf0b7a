// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakecluster

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
)

// half is a stream that has headers alone.
type half struct {
	httpstream.Stream
	kind, request string
}

func (h *half) Headers() http.Header {
	out := http.Header{}
	out.Set(corev1.StreamType, h.kind)
	out.Set(corev1.PortForwardRequestIDHeader, h.request)
	return out
}

// TestPairs: the goroutines of a request's two streams run in either order.
func TestPairs(t *testing.T) {
	for _, order := range [][2]string{
		{corev1.StreamTypeError, corev1.StreamTypeData}, {corev1.StreamTypeData, corev1.StreamTypeError},
	} {
		f := &forwarding{pairs: map[string]pair{}}
		for _, request := range []string{"0", "1"} {
			_, whole := f.paired(&half{kind: order[0], request: request})
			require.False(t, whole)
		}
		p, whole := f.paired(&half{kind: order[1], request: "1"})
		require.True(t, whole)
		require.Equal(t, &half{kind: corev1.StreamTypeError, request: "1"}, p.errors)
		require.Equal(t, &half{kind: corev1.StreamTypeData, request: "1"}, p.data)
	}
}
