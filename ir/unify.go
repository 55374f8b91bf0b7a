// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import "strings"

// callDims says, for operators of PyTorch, which sizes are equal by the operator's meaning. One pattern per argument of
// the schema, then one per result; what is left out is free. In a pattern
//
//	n m k …   one dim; the same letter is the same size
//	X Y …     any number of dims; the same letter is the same sizes (one per pattern, or +)
//	?         one dim, free
//	+         any number of dims, free
//
// and in place of a pattern _ is free, * broadcasts to result 0, and # is a list of sizes that result 0 has. An operand
// whose rank does not fit its pattern is left alone: some operators take optional leading dims.
var callDims = map[string]string{
	"aten::mm":                "nk,km->nm",
	"aten::bmm":               "bnk,bkm->bnm",
	"aten::addmm":             "*,nk,km->nm",
	"aten::baddbmm":           "*,bnk,bkm->bnm",
	"aten::mv":                "nk,k->n",
	"aten::addmv":             "*,nk,k->n",
	"aten::dot":               "n,n->",
	"aten::linear":            "Xk,ok,o->Xo",
	"aten::_addmm_activation": "*,nk,km->nm",

	"aten::_softmax":                   "X->X",
	"aten::_log_softmax":               "X->X",
	"aten::_softmax_backward_data":     "X,X->X",
	"aten::_log_softmax_backward_data": "X,X->X",
	"aten::_fused_rms_norm":            "X,_,*->X",
	"aten::native_layer_norm":          "X,_,*,*->X",
	"aten::native_layer_norm_backward": "X,X,_,Y,Y,*,*->X",
	"aten::native_batch_norm":          "ncX,c,c,c,c->ncX,c,c",
	"aten::native_batch_norm_backward": "ncX,ncX,c,c,c,c,c->ncX,c,c",
	"aten::native_group_norm":          "ncX,c,c->ncX",
	"aten::native_group_norm_backward": "ncX,ncX,_,_,c->ncX,c,c",
	"aten::native_dropout":             "X->X,X",
	"aten::native_dropout_backward":    "*,*",

	"aten::convolution":                       "n?+,_,o->no+",
	"aten::convolution_overrideable":          "n?+,_,o->no+",
	"aten::convolution_backward_overrideable": "no+,nX,Y->nX,Y,o",
	"aten::max_pool2d_with_indices":           "X??->Xhw,Xhw",
	"aten::max_pool2d_with_indices_backward":  "Xhw,Xij,_,_,_,_,_,Xhw->Xij",
	"aten::avg_pool2d":                        "X??->X??",
	"aten::avg_pool2d_backward":               "X??,Xij->Xij",
	"aten::_adaptive_avg_pool2d":              "X??->X??",
	"aten::_adaptive_avg_pool2d_backward":     "X??,Xij->Xij",

	"aten::embedding":                "?d,X->Xd",
	"aten::embedding_dense_backward": "Xd,X->?d",
	"aten::gather":                   "_,_,X->X",
	"aten::nll_loss_forward":         "nc,n,c",
	"aten::nll_loss_backward":        "_,nc,n,c->nc",
	"aten::mse_loss_backward":        "*,*,*",

	"aten::_scaled_dot_product_fused_attention_overrideable":          "bhsd,b?td,b?te->bhse",
	"aten::_scaled_dot_product_fused_attention_overrideable_backward": "bhse,bhsd,bgtd,bgte->bhsd,bgtd,bgte",

	"aten::empty.memory_format": "#",
	"aten::full":                "#",
	"aten::zeros":               "#",
	"aten::ones":                "#",
	"aten::rand":                "#",
	"aten::randn":               "#",

	// Elementwise operators with no own op: every operand broadcasts to the result.
	"aten::_to_copy":            "X->X",
	"aten::addcdiv":             "*,*,*",
	"aten::addcmul":             "*,*,*",
	"aten::bernoulli":           "X->X",
	"aten::clamp":               "X->X",
	"aten::clamp.Tensor":        "*,*,*",
	"aten::clamp_max":           "X->X",
	"aten::clamp_min":           "X->X",
	"aten::copy":                "X,*->X",
	"aten::cumsum":              "X->X",
	"aten::div.Tensor_mode":     "*,*",
	"aten::elu":                 "X->X",
	"aten::elu_backward":        "*,_,_,_,_,*",
	"aten::erfc":                "X->X",
	"aten::fill.Tensor":         "X->X",
	"aten::floor_divide":        "*,*",
	"aten::full_like":           "X->X",
	"aten::gelu":                "X->X",
	"aten::gelu_backward":       "*,*",
	"aten::hardtanh":            "X->X",
	"aten::hardtanh_backward":   "*,*",
	"aten::leaky_relu":          "X->X",
	"aten::leaky_relu_backward": "*,*",
	"aten::lerp.Scalar":         "*,*",
	"aten::lerp.Tensor":         "*,*,*",
	"aten::masked_fill.Scalar":  "*,*",
	"aten::masked_fill.Tensor":  "*,*",
	"aten::mse_loss":            "X,X",
	"aten::ones_like":           "X->X",
	"aten::rand_like":           "X->X",
	"aten::randn_like":          "X->X",
	"aten::sigmoid_backward":    "*,*",
	"aten::silu":                "X->X",
	"aten::silu_backward":       "*,*",
	"aten::cumprod":             "X->X",
	"aten::flip":                "X->X",
	"aten::index_add":           "X->X",
	"aten::index_copy":          "X->X",
	"aten::index_put":           "X->X",
	"aten::masked_scatter":      "X->X",
	"aten::roll":                "X->X",
	"aten::scatter.src":         "X->X",
	"aten::scatter.value":       "X->X",
	"aten::scatter_add":         "X->X",
	"aten::softplus":            "X->X",
	"aten::softplus_backward":   "*,*",
	"aten::sort":                "X->X,X",
	"aten::tan":                 "X->X",
	"aten::tanh_backward":       "*,*",
	"aten::threshold":           "X->X",
	"aten::threshold_backward":  "*,*",
	"aten::tril":                "X->X",
	"aten::triu":                "X->X",
	"aten::zero":                "X->X",
	"aten::zeros_like":          "X->X",
}

// parseDims splits a row of callDims.
func parseDims(row string) (args, results []string) {
	a, r, ok := strings.Cut(row, "->")
	args = strings.Split(a, ",")
	if ok {
		results = strings.Split(r, ",")
	}
	return args, results
}

// InferCall unifies the sizes that are equal by the meaning of a node, an own op's or a call's, after it has been added
// with its result types. It never fails: what contradicts is left for the verifier or the operator itself to refuse.
func (g *Graph) InferCall(id NodeID) {
	n := &g.Nodes[id]
	results := g.Types[n.First : n.First+ValueID(n.N)]
	args := g.NodeArgs(id)
	if n.Op.Own() {
		g.unifyOwn(n.Op, args, results[0].Dims)
		return
	}
	if n.Op != OpCall {
		if n.Op == OpUpdate {
			g.unifyLists(results[0].Dims, g.Types[args[0].V].Dims)
		}
		return
	}
	writes := g.Writes(id)
	fresh := len(results) - len(writes)
	for i, w := range writes { // the new content has the operand's geometry
		g.unifyLists(g.Types[w].Dims, results[fresh+i].Dims)
		g.unifyLists(g.Types[w].Strides, results[fresh+i].Strides)
	}
	name := g.CallName(id)
	_, base, _ := strings.Cut(name, "::")
	switch {
	case len(args) == 0:
		return
	case args[0].Kind == ArgList && (strings.HasPrefix(base, "_foreach_") || strings.HasPrefix(base, "_fused_")):
		g.unifyForeach(args, results[:fresh])
		return
	case name == "aten::cat":
		g.unifyCat(args, results[0].Dims)
		return
	}
	row, ok := callDims[name]
	if !ok {
		name, inplace := FunctionalName(name)
		if !inplace && len(writes) > 0 {
			return
		}
		row, ok = callDims[name]
		if f, own := ops.byATen[name]; own && !ok && Info(f.op).Kind == KindElementwise {
			row, ok = strings.Repeat("*,", len(args)), true
		}
	}
	if !ok {
		return
	}
	if fresh == 0 {
		fresh = len(results) // an in-place operator: its result is the new content
	}
	g.unifyPatterns(row, args, results[:fresh])
}

// FunctionalName is the operator of which an in-place one is the variant: aten::add_.Tensor is that of aten::add.Tensor.
func FunctionalName(name string) (string, bool) {
	base, overload, dotted := strings.Cut(name, ".")
	f, ok := strings.CutSuffix(base, "_")
	if !ok || strings.HasSuffix(f, "_") {
		return name, false
	}
	if dotted {
		f += "." + overload
	}
	return f, true
}

func (g *Graph) unifyOwn(op Op, args []Arg, result []Dim) {
	info := Info(op)
	switch info.Shape {
	case ShapeFirst, ShapeBroadcast:
		for _, a := range args[:info.Arity()] {
			g.unifyBroadcast(g.Types[a.V].Dims, result)
		}
	case ShapeReduce:
		if dims, err := g.reduceDims(args); err == nil {
			g.unifyLists(dims, result)
		}
	}
}

// unifyLists unifies dims in pairs if there are equally many.
func (g *Graph) unifyLists(a, b []Dim) {
	if len(a) != len(b) {
		return
	}
	for i := range a {
		g.UnifyDims(a[i], b[i])
	}
}

// unifyBroadcast unifies the dims of an operand with the last ones of what it broadcasts to; those that are 1 expand.
func (g *Graph) unifyBroadcast(dims, to []Dim) {
	if len(dims) > len(to) {
		return
	}
	for i, d := range dims {
		if t := to[len(to)-len(dims)+i]; g.Find(d) != Const(1) && g.Find(t) != Const(1) {
			g.UnifyDims(d, t)
		}
	}
}

// unifyForeach treats operators over lists of tensors: the i-th of each list broadcast to the i-th of the first.
func (g *Graph) unifyForeach(args []Arg, fresh []Type) {
	first := g.List(args[0])
	to := func(i int, dims []Dim) {
		if first[i].Kind == ArgValue {
			g.unifyBroadcast(dims, g.Types[first[i].V].Dims)
		}
	}
	for _, a := range args[1:] {
		items := g.safeList(a)
		if (a.Sub != ListTensors && a.Sub != ListOptTensors) || len(items) != len(first) {
			continue
		}
		for i, item := range items {
			if item.Kind == ArgValue {
				to(i, g.Types[item.V].Dims)
			}
		}
	}
	if len(fresh) == len(first) {
		for i, t := range fresh {
			to(i, t.Dims)
		}
	}
}

// unifyCat treats cat(tensors, dim): all dims but one are the same. Tensors of another rank are the empty ones it skips.
func (g *Graph) unifyCat(args []Arg, result []Dim) {
	if len(args) < 2 || args[1].Kind != ArgInt {
		return
	}
	dim := args[1].V
	if dim < 0 {
		dim += int64(len(result))
	}
	for _, a := range g.safeList(args[0]) {
		if a.Kind != ArgValue || len(g.Types[a.V].Dims) != len(result) {
			continue
		}
		for i, d := range g.Types[a.V].Dims {
			if int64(i) != dim {
				g.UnifyDims(d, result[i])
			}
		}
	}
}

func (g *Graph) unifyPatterns(row string, args []Arg, results []Type) {
	patterns, resultPatterns := parseDims(row)
	bound := map[byte][]Dim{}
	for i, p := range resultPatterns {
		if i < len(results) && results[i].DType != Invalid {
			g.unifyPattern(p, results[i].Dims, bound)
		}
	}
	for i, p := range patterns {
		if i >= len(args) {
			break
		}
		switch a := args[i]; {
		case p == "#" && len(results) > 0:
			if items := g.safeList(a); len(items) == len(results[0].Dims) {
				for j, item := range items {
					if item.Kind == ArgDim {
						g.UnifyDims(Dim(item.V), results[0].Dims[j])
					}
				}
			}
		case a.Kind != ArgValue:
		case p == "*" && len(results) > 0:
			g.unifyBroadcast(g.Types[a.V].Dims, results[0].Dims)
		case p != "*":
			g.unifyPattern(p, g.Types[a.V].Dims, bound)
		}
	}
}

// unifyPattern matches one operand or result with its pattern, and unifies with what its letters are bound to.
func (g *Graph) unifyPattern(p string, dims []Dim, bound map[byte][]Dim) {
	if p == "_" {
		return
	}
	rest := len(dims) - len(p) // dims that the group takes, less one
	group := strings.ContainsAny(p, "+ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	if (!group && rest != 0) || rest < -1 {
		return
	}
	for i := range len(p) {
		n := 1
		c := p[i]
		if c == '+' || (c >= 'A' && c <= 'Z') {
			n = rest + 1
		}
		here := dims[:n]
		dims = dims[n:]
		switch b, ok := bound[c]; {
		case c == '?' || c == '+':
		case ok:
			g.unifyLists(b, here)
		default:
			bound[c] = here
		}
	}
}
