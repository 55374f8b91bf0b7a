// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
)

// TestSchemas: a call of an operator of PyTorch that its schema or its meaning excludes is an error, at the place of
// the argument that is wrong.
func TestSchemas(t *testing.T) {
	const head = "graph a sync {\ndims n=4@0 m=5@1\n%0: f32[n,m] = input 0\n%1: i64[n] = input 1\n%2: f64[] = param 2\n" +
		"%3: f32[] = input 2\n"
	for _, c := range []struct {
		text string
		at   string // the error is where this stands last
		want string // "": the call is right
	}{
		{"%4: f32[n,n] = aten.mm %0 %0", "%0", "argument mat2 of aten::mm has size n where m is expected: nk,km->nm"},
		{"%4: f32[n,n] = aten.mm %0 %3", "%3", "argument mat2 of aten::mm has 0 dims: nk,km->nm"},
		{"%4: f32[n,m] = aten._softmax %0 7 false", "7", "argument dim of aten::_softmax is 7: expected -2 to 1"},
		{"%4: f32[n,m] = aten._softmax %0 -2 false", "", ""},
		{"%4: f32[n,m] = aten._softmax %0 1.5 false", "1.5", "argument dim of aten::_softmax takes int, not a float"},
		{"%4: f32[n,m] = aten._softmax %0 1", "aten",
			"aten::_softmax takes 3 arguments, not 2: bool half_to_float is missing"},
		{"%4: f32[n,m] = aten._softmax %0 1 false 3", "3", "aten::_softmax takes 3 arguments, not 4"},
		{`%4: f32[n,m] = aten.add.Tensor %0 "x" 1`, `"x"`, "argument other of aten::add.Tensor takes Tensor, not a string"},
		{"%4: f32[n,m] = aten.add.Tensor %0 %2 1", "", ""},
		{"%4: f32[m,n] = aten.add.Tensor %0 %0 1", "%0 %0",
			"argument self of aten::add.Tensor has size n where m is expected"},
		{"%4: f32[n,m] = aten.nosuch %0", "aten", "PyTorch has no operator aten::nosuch that a program can call"},
		{"%4: f32[n,m] = aten.relu_ %0", "%0", "aten::relu_ writes its argument self: expected %0!"},
		{"%4: f32[n,m] = aten.neg %0!", "%0!", "aten::neg does not write its argument self"},
		{"%4: f32[n,m] = aten.cat tensors[%0, 3] 0", "3]", "item 1 does not fit in a list of tensors"},
		{"%4: f32[n,m] = aten.cat %0 0", "%0 0", "argument tensors of aten::cat takes Tensor[], not a tensor"},
		{"%4: f32[n,m] = aten.sum.dim_IntList %0 [0, 9] false none", "9]",
			"argument dim of aten::sum.dim_IntList is 9: expected -2 to 1"},
		{"%4: f32[n,m] = aten.clone %0 none", "", ""},
		{"%4: f32[n,m], %5: f32[] = aten.clone %0 none", "aten", "aten::clone makes 1 new tensors, not 2"},
		{"%4: f32[], %5: f32[] = aten.nll_loss_forward %0 %1 none 1 -100", "", ""},
		{"%4: f32[n], %5: f32[] = aten.nll_loss_forward %0 %1 none 0 -100", "", ""},
		{"%4: f32[m], %5: f32[] = aten.nll_loss_forward %0 %1 none 0 -100", "%0",
			"argument self of aten::nll_loss_forward has size n where m is expected: Xc,X,c->X|"},
		{"%4: f32[n,m], %5: f32[n,m] = aten._foreach_mul.List [%3, %0] [%0, %3]", "", ""},
		{"%4: f32[n,m], %5: f32[n,m] = aten._foreach_mul.List [%0, %0] [%3, %1]", "[%3, %1]",
			"argument other of aten::_foreach_mul.List has size n where m is expected"},
		{"%4: f32[], %5: f32[] = aten._foreach_norm.Scalar [%0, %1] 2 none", "", ""},
		{"%5: f32[0] = empty\n%4: f32[n,m], %6: f32[m], %7: f32[m] = aten.native_batch_norm_backward %0 %0 none none none " +
			"%5 %5 false 0.5 [true, true, true]", "", ""},
		{"%4: f32[n,m] = other.op %0 [1] \"x\"", "", ""},
	} {
		t.Run(c.text, func(t *testing.T) {
			text := head + c.text + "\noutput %4 -> s3\n}\n"
			g, err := ir.Parse(text)
			require.NoError(t, err)
			err = ir.Verify(g)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			var at *ir.PositionError
			require.True(t, errors.As(err, &at))
			assert.Equal(t, 7, at.Line)
			assert.Equal(t, strings.LastIndex(c.text, c.at)+1, at.Col)
			err = ir.Verify(g.Clone())
			require.ErrorContains(t, err, c.want)
			assert.False(t, errors.As(err, &at), "a copy has no text")
		})
	}
}
