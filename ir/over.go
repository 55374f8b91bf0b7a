// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

// over names the operators that compute a form of an own op and put the result where an operand is. They run the form's
// kernel on the form's operands, so the result has the same bits; a test on the worker's PyTorch compares them.
type over struct {
	self string // overwrites operand 0; "" if PyTorch has none. Arguments as the form's
	out  string // has one argument more, at the end: what it overwrites. "" if it would compute elsewhere and copy, or is never wanted
}

// overs has a row for each form of an elementwise op or fill, and for operators that are no own op and elementwise. PyTorch has no
// rule for these names: pow_'s overloads are not those of pow, fills are two operators with one in-place form, and out= overloads are
// named in three ways. The out= forms of unary ops and of tensor-with-number overloads are left out: what they could overwrite is
// operand 0.
var overs = map[string]over{
	"aten::neg":         {"aten::neg_", ""},
	"aten::abs":         {"aten::abs_", ""},
	"aten::sqrt":        {"aten::sqrt_", ""},
	"aten::rsqrt":       {"aten::rsqrt_", ""},
	"aten::exp":         {"aten::exp_", ""},
	"aten::log":         {"aten::log_", ""},
	"aten::sin":         {"aten::sin_", ""},
	"aten::cos":         {"aten::cos_", ""},
	"aten::tanh":        {"aten::tanh_", ""},
	"aten::sigmoid":     {"aten::sigmoid_", ""},
	"aten::relu":        {"aten::relu_", ""},
	"aten::reciprocal":  {"aten::reciprocal_", ""},
	"aten::floor":       {"aten::floor_", ""},
	"aten::ceil":        {"aten::ceil_", ""},
	"aten::sign":        {"aten::sign_", ""},
	"aten::erf":         {"aten::erf_", ""},
	"aten::exp2":        {"aten::exp2_", ""},
	"aten::log2":        {"aten::log2_", ""},
	"aten::log1p":       {"aten::log1p_", ""},
	"aten::expm1":       {"aten::expm1_", ""},
	"aten::trunc":       {"aten::trunc_", ""},
	"aten::round":       {"aten::round_", ""},
	"aten::isnan":       {"", ""}, // of a b8 it could; PyTorch has none
	"aten::logical_not": {"aten::logical_not_", ""},
	"aten::bitwise_not": {"aten::bitwise_not_", ""},
	"aten::_to_copy":    {"", ""}, // another dtype is another buffer

	"aten::add.Tensor":                {"aten::add_.Tensor", "aten::add.out"},
	"aten::add.Scalar":                {"aten::add_.Scalar", ""},
	"aten::sub.Tensor":                {"aten::sub_.Tensor", "aten::sub.out"},
	"aten::sub.Scalar":                {"aten::sub_.Scalar", ""},
	"aten::rsub.Tensor":               {"", ""}, // sub is emitted for it
	"aten::rsub.Scalar":               {"", ""},
	"aten::mul.Tensor":                {"aten::mul_.Tensor", "aten::mul.out"},
	"aten::mul.Scalar":                {"aten::mul_.Scalar", ""},
	"aten::div.Tensor":                {"aten::div_.Tensor", "aten::div.out"},
	"aten::div.Scalar":                {"aten::div_.Scalar", ""},
	"aten::pow.Tensor_Scalar":         {"aten::pow_.Scalar", ""},
	"aten::pow.Scalar":                {"", "aten::pow.Scalar_out"},
	"aten::pow.Tensor_Tensor":         {"aten::pow_.Tensor", "aten::pow.Tensor_Tensor_out"},
	"aten::maximum":                   {"", "aten::maximum.out"},
	"aten::minimum":                   {"", "aten::minimum.out"},
	"aten::eq.Scalar":                 {"aten::eq_.Scalar", ""},
	"aten::eq.Tensor":                 {"aten::eq_.Tensor", "aten::eq.Tensor_out"},
	"aten::ne.Scalar":                 {"aten::ne_.Scalar", ""},
	"aten::ne.Tensor":                 {"aten::ne_.Tensor", "aten::ne.Tensor_out"},
	"aten::lt.Scalar":                 {"aten::lt_.Scalar", ""},
	"aten::lt.Tensor":                 {"aten::lt_.Tensor", "aten::lt.Tensor_out"},
	"aten::le.Scalar":                 {"aten::le_.Scalar", ""},
	"aten::le.Tensor":                 {"aten::le_.Tensor", "aten::le.Tensor_out"},
	"aten::gt.Scalar":                 {"aten::gt_.Scalar", ""},
	"aten::gt.Tensor":                 {"aten::gt_.Tensor", "aten::gt.Tensor_out"},
	"aten::ge.Scalar":                 {"aten::ge_.Scalar", ""},
	"aten::ge.Tensor":                 {"aten::ge_.Tensor", "aten::ge.Tensor_out"},
	"aten::logical_and":               {"aten::logical_and_", "aten::logical_and.out"},
	"aten::logical_or":                {"aten::logical_or_", "aten::logical_or.out"},
	"aten::logical_xor":               {"aten::logical_xor_", "aten::logical_xor.out"},
	"aten::bitwise_and.Scalar":        {"aten::bitwise_and_.Scalar", ""},
	"aten::bitwise_and.Scalar_Tensor": {"", ""}, // its out= copies
	"aten::bitwise_and.Tensor":        {"aten::bitwise_and_.Tensor", "aten::bitwise_and.Tensor_out"},
	"aten::bitwise_or.Scalar":         {"aten::bitwise_or_.Scalar", ""},
	"aten::bitwise_or.Scalar_Tensor":  {"", ""},
	"aten::bitwise_or.Tensor":         {"aten::bitwise_or_.Tensor", "aten::bitwise_or.Tensor_out"},
	"aten::bitwise_xor.Scalar":        {"aten::bitwise_xor_.Scalar", ""},
	"aten::bitwise_xor.Scalar_Tensor": {"", ""},
	"aten::bitwise_xor.Tensor":        {"aten::bitwise_xor_.Tensor", "aten::bitwise_xor.Tensor_out"},
	"aten::atan2":                     {"aten::atan2_", "aten::atan2.out"},
	"aten::fmod.Scalar":               {"aten::fmod_.Scalar", ""},
	"aten::fmod.Tensor":               {"aten::fmod_.Tensor", "aten::fmod.Tensor_out"},
	"aten::remainder.Scalar":          {"aten::remainder_.Scalar", ""},
	"aten::remainder.Scalar_Tensor":   {"", ""},
	"aten::remainder.Tensor":          {"aten::remainder_.Tensor", "aten::remainder.Tensor_out"},

	"aten::where.self": {"", "aten::where.self_out"},

	"aten::full_like":   {"aten::fill_.Scalar", ""}, // less the arguments that say what to make
	"aten::fill.Scalar": {"aten::fill_.Scalar", ""},

	"aten::threshold_backward":   {"", "aten::threshold_backward.grad_input"},
	"aten::tanh_backward":        {"", "aten::tanh_backward.grad_input"},
	"aten::sigmoid_backward":     {"", "aten::sigmoid_backward.grad_input"},
	"aten::gelu_backward":        {"", "aten::gelu_backward.grad_input"},
	"aten::silu_backward":        {"", "aten::silu_backward.grad_input"},
	"aten::hardtanh_backward":    {"", "aten::hardtanh_backward.grad_input"},
	"aten::hardsigmoid_backward": {"", "aten::hardsigmoid_backward.grad_input"},
	"aten::leaky_relu_backward":  {"", "aten::leaky_relu_backward.grad_input"},
	"aten::elu_backward":         {"", "aten::elu_backward.grad_input"},
	"aten::softplus_backward":    {"", "aten::softplus_backward.grad_input"},

	"aten::gelu":               {"aten::gelu_", ""},
	"aten::silu":               {"aten::silu_", ""},
	"aten::mish":               {"aten::mish_", ""},
	"aten::leaky_relu":         {"aten::leaky_relu_", ""},
	"aten::elu":                {"aten::elu_", ""},
	"aten::hardtanh":           {"aten::hardtanh_", ""},
	"aten::hardswish":          {"aten::hardswish_", ""},
	"aten::hardsigmoid":        {"aten::hardsigmoid_", ""},
	"aten::softplus":           {"", "aten::softplus.out"},
	"aten::erfc":               {"aten::erfc_", ""},
	"aten::clamp":              {"aten::clamp_", ""},
	"aten::clamp_min":          {"aten::clamp_min_", ""},
	"aten::clamp_max":          {"aten::clamp_max_", ""},
	"aten::addcmul":            {"aten::addcmul_", "aten::addcmul.out"},
	"aten::addcdiv":            {"aten::addcdiv_", "aten::addcdiv.out"},
	"aten::lerp.Scalar":        {"aten::lerp_.Scalar", "aten::lerp.Scalar_out"},
	"aten::lerp.Tensor":        {"aten::lerp_.Tensor", "aten::lerp.Tensor_out"},
	"aten::masked_fill.Scalar": {"aten::masked_fill_.Scalar", ""}, // its out= copies
	"aten::div.Tensor_mode":    {"aten::div_.Tensor_mode", "aten::div.out_mode"},
}

// overForms is the other way round: the operator of which another is the overwriting one.
var overForms = func() map[string]string {
	m := map[string]string{}
	for form, o := range overs {
		if form == "aten::full_like" {
			continue // fill.Scalar has fill_'s arguments
		}
		for _, name := range []string{o.self, o.out} {
			if name != "" {
				m[name] = form
			}
		}
	}
	return m
}()

// Elementwise says whether a node computes each element of its result from one of each operand, in a way that has an operator which
// overwrites an operand, or could have one.
func (g *Graph) Elementwise(id NodeID) bool {
	n := &g.Nodes[id]
	if n.Op == OpCall {
		_, ok := overs[g.CallName(id)]
		return ok && n.N == 1 && n.Flags == 0 && len(g.Writes(id)) == 0
	}
	kind := Info(n.Op).Kind
	return kind == KindElementwise || kind == KindFill
}

// ToATenOver gives the operator and the arguments that compute an elementwise node and write the result, which must be of its type,
// over argument i; name "" if no operator does. The argument that is written is marked.
func ToATenOver(g *Graph, id NodeID, i int) (name string, args []Arg) {
	to := g.NodeArgs(id)[i]
	if to.Kind != ArgValue || g.Immediate(ValueID(to.V)) || !g.Elementwise(id) {
		return "", nil
	}
	to.Write = true
	var form string
	self := 0 // which argument is the operator's first one
	if g.Nodes[id].Op == OpCall {
		form, args = g.CallName(id), append([]Arg(nil), g.NodeArgs(id)...)
	} else {
		form, args = ToATen(g, id)
		if f, ok := ops.byATen[form]; ok {
			self = int(f.words[0][0] - '0')
		}
	}
	o := overs[form]
	switch {
	case i == self && o.self != "":
		if Info(g.Nodes[id].Op).Kind == KindFill {
			args = args[:2]
		}
		args[0] = to
		return o.self, args
	case o.out != "":
		return o.out, append(args, to)
	}
	return "", nil
}

// FormOver gives the operator that another computes over one of its arguments: the first or, out, an additional last one. It is
// "" for operators that are in no such pair.
func FormOver(name string) (form string, out bool) {
	form = overForms[name]
	return form, form != "" && overs[form].out == name
}
