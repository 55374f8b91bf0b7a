// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
)

const atenHead = `graph g r {
  dims n=4@0 m=5@1
  %0: f32[n,m] = input 0
  %1: f32[m] = input 1
  %2: f64[] = param 2
  %3: i64[n] = input 3
  %4: b8[n] = input 4
  %5: f32[] = input 5
  %6: i64[] = param 3
`

// parseNode parses one statement after atenHead, and returns the node.
func parseNode(t *testing.T, stmt string) (*ir.Graph, ir.NodeID) {
	g, err := ir.Parse(atenHead + "  " + stmt + "\n}")
	require.NoError(t, err, stmt) // it need not be valid
	return g, ir.NodeID(len(g.Nodes) - 1)
}

// statement is an op and its arguments as they are printed.
func statement(g *ir.Graph, n ir.Node, args []ir.Arg, t ir.Type) string {
	id := g.Add(n, args, []ir.Type{t})
	_, s, _ := strings.Cut(g.NodeString(id), "= ")
	return s
}

// TestFromATen: each operator with its arguments as recorded, and the own op that it is, if it is one.
func TestFromATen(t *testing.T) {
	for call, want := range map[string]string{
		"aten.add.Tensor %0 %1 1":                                    "add %0 %1",
		"aten.add.Scalar %0 %2 1":                                    "add %0 %2",
		"aten.add.Tensor %0 %2 1":                                    "add %0 %2",
		"aten.add.Tensor %0 %1 2":                                    "",
		"aten.add.Tensor %0 %1 1.0":                                  "",
		"aten.add.Tensor %0 %1 %6":                                   "", // a parameter is not known to be 1
		"aten.add.Tensor %0 %1":                                      "",
		"aten.add.Tensor %0 %1 1 1":                                  "",
		"aten.add.Scalar %0 %1 1":                                    "",
		"aten.add.Tensor %0! %1 1":                                   "",
		"aten.sub.Tensor %4 %4 1":                                    "", // refused by PyTorch: the call gives the error
		"aten.rsub.Scalar %0 %2 1":                                   "sub %2 %0",
		"aten.rsub.Tensor %0 %1 1":                                   "sub %1 %0",
		"aten.mul.Tensor %2 %0":                                      "mul %2 %0",
		"aten.mul.Tensor %2 %2":                                      "",
		"aten.mul.Scalar %0 %2":                                      "mul %0 %2",
		"aten.mul.Scalar %0 2":                                       "",
		"aten.div.Tensor_mode %0 %1 \"floor\"":                       "",
		"aten.relu %0":                                               "relu %0",
		"aten.relu %2":                                               "",
		"aten.relu_ %0":                                              "",
		"aten.pow.Tensor_Scalar %0 %2":                               "pow %0 %2",
		"aten.pow.Scalar %2 %0":                                      "pow %2 %0",
		"aten.eq.Scalar %3 %6":                                       "eq %3 %6",
		"aten.eq.Tensor %3 none":                                     "",
		"aten.bitwise_and.Scalar_Tensor %6 %3":                       "bit_and %6 %3",
		"aten.addcmul %0 %1 %2 1":                                    "fma %1 %2 %0",
		"aten.addcmul %0 %1 %2 2":                                    "",
		"aten.addcmul %3 %3 %3 1":                                    "", // of floats only
		"aten.where.self %4 %3 %6":                                   "where %4 %3 %6",
		"aten.where.self %3 %3 %6":                                   "",
		"aten.sum %0 none":                                           "sum %0 ints[] false",
		"aten.sum %0 f32":                                            "sum %0 ints[] false",
		"aten.sum %0 f64":                                            "",
		"aten.sum %3 i64":                                            "sum %3 ints[] false",
		"aten.sum.dim_IntList %0 [-1] true none":                     "sum %0 [1] true",
		"aten.sum.dim_IntList %0 [1, 0] false none":                  "sum %0 [1, 0] false",
		"aten.sum.dim_IntList %0 none false none":                    "sum %0 ints[] false",
		"aten.sum.dim_IntList %0 [2] true none":                      "",
		"aten.sum.dim_IntList %0 [1, -1] true none":                  "",
		"aten.sum.dim_IntList %0 [n] true none":                      "",
		"aten.sum.dim_IntList %5 [0] true none":                      "",
		"aten.sum.dim_IntList %0 [0] true f64":                       "",
		"aten.amax %0 ints[] false":                                  "amax %0 ints[] false",
		"aten.mean.dim %3 [0] false none":                            "",
		"aten.mean %0 none":                                          "mean %0 ints[] false",
		"aten._to_copy %0 f16 none none none false none":             "cast %0",
		"aten._to_copy %0 f16 layout:0 device:0 false true memfmt:1": "cast %0",
		"aten._to_copy %0 f16 layout:1 none none false none":         "",
		"aten._to_copy %0 f16 none none true false none":             "",
		"aten._to_copy %0 f16 none none none false memfmt:0":         "",
		"aten._to_copy %2 f16 none none none false none":             "",
		"aten._to_copy %0 none none none none false none":            "",
		"aten.full_like %0 %2 none none none none none":              "fill %0 %2",
		"aten.full_like %0 %2 f32 none device:0 false memfmt:1":      "fill %0 %2",
		"aten.full_like %0 %2 f64 none none none none":               "",
		"aten.full_like %0 1.5 none none none none none":             "",
		"aten.fill.Scalar %0 %2":                                     "fill %0 %2",
		"aten.clone %0 none":                                         "copy %0",
		"aten.clone %0 memfmt:2":                                     "copy %0",
		"my.op %0":                                                   "",
	} {
		g, id := parseNode(t, "%7: f32[n,m] = "+call)
		op, args, ok := ir.FromATen(g, g.CallName(id), g.NodeArgs(id))
		got := ""
		if ok {
			got = statement(g, ir.Node{Op: op}, args, ir.Type{DType: ir.F16})
		}
		assert.Equal(t, want, got, call)
	}
}

// TestToATen: the operator that is emitted for each own op.
func TestToATen(t *testing.T) {
	for own, want := range map[string]string{
		"f32[n,m] = add %0 %1":         "aten.add.Tensor %0 %1 1",
		"f32[n,m] = add %0 %2":         "aten.add.Tensor %0 %2 1",
		"f32[n,m] = sub %2 %0":         "aten.sub.Tensor %2 %0 1",
		"f32[n,m] = mul %2 %0":         "aten.mul.Tensor %2 %0",
		"f32[n,m] = pow %0 %1":         "aten.pow.Tensor_Tensor %0 %1",
		"f32[n,m] = pow %0 %2":         "aten.pow.Tensor_Scalar %0 %2",
		"f32[n,m] = pow %2 %0":         "aten.pow.Scalar %2 %0",
		"b8[n,m] = eq %0 %1":           "aten.eq.Tensor %0 %1",
		"b8[n,m] = eq %0 %2":           "aten.eq.Scalar %0 %2",
		"b8[n,m] = lt %2 %0":           "aten.lt.Tensor %2 %0",
		"i64[n] = bit_or %6 %3":        "aten.bitwise_or.Scalar_Tensor %6 %3",
		"f32[n,m] = fma %0 %1 %2":      "aten.addcmul %2 %0 %1 1",
		"i64[n] = where %4 %3 %6":      "aten.where.self %4 %3 %6",
		"f32[n,m] = relu %0":           "aten.relu %0",
		"f16[n,m] = cast %0":           "aten._to_copy %0 f16 none none none false none",
		"f32[n,m] = fill %0 %2":        "aten.full_like %0 %2 none none none none none",
		"f32[n,m] = copy %0":           "aten.clone %0 memfmt:0",
		"f32[n,m]{1,n} = copy %0":      "",
		"f32[n,1] = sum %0 [1] true":   "aten.sum.dim_IntList %0 [1] true none",
		"f32[] = mean %0 ints[] false": "aten.mean.dim %0 ints[] false none",
		"f32[m] = amin %0 [0] false":   "aten.amin %0 [0] false",
		"f32[m] = view %0 offset=0":    "",
		"f32[m] = empty":               "",
		"f32[m] = my.op":               "",
	} {
		g, id := parseNode(t, "%7: "+own)
		name, args := ir.ToATen(g, id)
		got := ""
		if name != "" {
			got = statement(g, ir.Node{Op: ir.OpCall, Name: g.Intern(name)}, args, ir.Type{DType: ir.F16})
		}
		assert.Equal(t, want, got, own)
	}
}

// TestATenBack: what is emitted for an own op is recognised as that op with the same arguments, for all of them.
func TestATenBack(t *testing.T) {
	seen := 0
	for op := ir.OpNeg; op < ir.NumOps; op++ {
		for v, number := range map[int]int{0: 2, 3: 6, 4: 6} { // f32, i64, b8
			args := []ir.Arg{ir.Value(ir.ValueID(v))}
			info := ir.Info(op)
			g, _ := parseNode(t, "%7: f32[] = my.op")
			switch {
			case op == ir.OpFma:
				args = append(args, args[0], ir.Value(ir.ValueID(number)))
			case op == ir.OpWhere:
				args = []ir.Arg{ir.Value(4), ir.Value(3), ir.Value(6)}
			case info.Kind == ir.KindFill:
				args = append(args, ir.Value(ir.ValueID(number)))
			case info.Kind == ir.KindReduce:
				args = append(args, g.AddList(ir.ListInts, []ir.Arg{{Kind: ir.ArgInt, V: 0}}), ir.Arg{Kind: ir.ArgBool, V: 1})
			case info.Arity() == 2:
				args = append(args, args[0])
			}
			typ, err := g.Infer(op, args, ir.F16)
			if err != nil {
				continue
			}
			seen++
			id := g.Add(ir.Node{Op: op, Record: -1}, args, []ir.Type{typ})
			require.NoError(t, g.Check(id))
			name, call := ir.ToATen(g, id)
			require.NotEmpty(t, name, op)
			op2, args2, ok := ir.FromATen(g, name, call)
			require.True(t, ok, "%s: %s", op, name)
			assert.Equal(t, op, op2)
			back := g.Add(ir.Node{Op: op2, Record: -1}, args2, []ir.Type{typ})
			assert.Equal(t, g.Key(id, nil), g.Key(back, nil), "%s: %s", op, name)
		}
	}
	assert.Greater(t, seen, 100)
}

func TestFunctionalName(t *testing.T) {
	for name, want := range map[string]string{
		"aten::add_.Tensor":        "aten::add.Tensor",
		"aten::relu_":              "aten::relu",
		"aten::relu":               "",
		"aten::__and__.Tensor":     "",
		"aten::add.Tensor_":        "",
		"aten::_fused_adamw_":      "aten::_fused_adamw",
		"aten::random_.from":       "aten::random.from",
		"mycelya::resize_storage":  "",
		"aten::_foreach_add_.List": "aten::_foreach_add.List",
	} {
		got, ok := ir.FunctionalName(name)
		assert.Equal(t, want != "", ok, name)
		if ok {
			assert.Equal(t, want, got)
		} else {
			assert.Equal(t, name, got)
		}
	}
}
