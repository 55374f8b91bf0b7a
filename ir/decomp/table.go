// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package decomp

// Row is one operator, or a case of one, in own ops.
//
// Args names the arguments of its schema in order. When says what it is for, in words that must all hold:
//
//	name=value, name!=value  literals; none is an absent argument
//	ints, truth              integers, and truth, too; a row without is for floats only, and what PyTorch doesn't compute says so
//	a~b                      two tensors of the same dtype
//	exact                    literals that the dtype has, if it is a 16-bit float
//	promote                  no condition: operands meet in one dtype first
//
// Body is statements "name = expr" with ; between and "-> expr, …" at the end, the results in the schema's order, then the new
// contents of written operands. An expr is a name, a number, or an op with operands, in parentheses within another:
//
//	add x y …                own elementwise ops; with a ? after the name, the other operand where one is absent
//	sum x dims …             own reductions, which keep the dims as 1; with a _ after the name they don't
//	fill x n                 like x, n everywhere
//	f32 x, f64 x, cast x y   x in that dtype, in y's
//	as x y                   x, of y's sizes, in y's dtype and in memory of its own
//	flat x y                 x in y's sizes: x's but for dims of 1, or as many elements of row-major memory
//	groups x g               x of sizes [n,c,…] as [n,g,…]: g groups of channels, each in one dim
//	gather x d i             aten::gather
//	draw p x                 truth for each element of x, but with probability p, of PyTorch's random numbers
//	unsq x                   x with one more dim, of size 1, at the end
//	chan w x                 w, one element per channel, as it broadcasts to x: [c] as [c,1,1] for [n,c,h,w]
//
// dims are the name of an argument that holds one or several, all, last:name and lead:name (as many as the list has, and the
// others), end (the last one), chan (all but dim 1).
//
// A body computes in f32 where the operands are f16 or bf16, and rounds its results once, as ATen does. With promote, all operands are
// of the dtype in which they meet: f64 beside bf16 is f64.
type Row struct {
	Name, Args, When, Body string
}

// rows are tried in order; the first whose arguments fit is it. The formulas are those of ATen's own kernels, of those for CPUs where
// CUDA's are others (addcdiv); where ATen has two that differ in the last place (lerp, by the weight), so has the row. A product and a
// sum that compilers have made one instruction there are one op here, fma.
var rows = []Row{
	// Elementwise.
	{"aten::add.Tensor", "x y a", "promote", "-> fma y a x"},
	{"aten::add.Tensor", "x y a", "promote ints truth", "-> add x (mul y a)"},
	{"aten::add.Scalar", "x y a", "a=1 ints truth", "-> add x y"},
	{"aten::sub.Tensor", "x y a", "promote", "-> fma y (neg (fill x a)) x"},
	{"aten::sub.Tensor", "x y a", "promote ints", "-> sub x (mul y a)"},
	{"aten::sub.Scalar", "x y a", "a=1 ints", "-> sub x y"},
	{"aten::pow.Tensor_Scalar", "x n", "n=2 ints truth", "-> mul x x"},
	{"aten::pow.Tensor_Scalar", "x n", "n=3 ints truth", "-> mul (mul x x) x"},
	{"aten::pow.Tensor_Scalar", "x n", "exact ints truth", "-> pow x n"},
	{"aten::square", "x", "ints truth", "-> mul x x"},
	// Of a zero and a bound that is one, ATen keeps the first, and maximum the second.
	{"aten::clamp", "x lo hi", "ints", "-> minimum? hi (maximum? lo x)"},
	{"aten::clamp.Tensor", "x lo hi", "promote ints", "-> minimum? (maximum? x lo) hi"},
	{"aten::clamp_min", "x lo", "ints", "-> maximum lo x"},
	{"aten::clamp_max", "x hi", "ints", "-> minimum hi x"},
	{"aten::hardtanh", "x lo hi", "ints", "-> minimum hi (maximum lo x)"},
	{"aten::masked_fill.Scalar", "x m n", "ints truth", "-> where m n x"},
	{"aten::masked_fill.Tensor", "x m n", "n~x ints truth", "-> where m n x"},
	{"aten::zero", "x", "ints truth", "-> fill x 0"},
	{"aten::fill.Scalar", "x n", "ints truth", "-> fill x n"},
	{"aten::full_like", "x n t l d p f", "ints truth", "-> fill x n"},
	{"aten::zeros_like", "x t l d p f", "ints truth", "-> fill x 0"},
	{"aten::ones_like", "x t l d p f", "ints truth", "-> fill x 1"},
	{"aten::copy", "x y b", "ints truth", "-> as y x"},
	{"aten::addcmul", "x a b n", "promote", "-> fma (mul a n) b x"},
	{"aten::addcmul", "x a b n", "promote ints", "-> add x (mul (mul a n) b)"},
	{"aten::addcdiv", "x a b n", "promote", "-> add x (div (mul a n) b)"},
	{"aten::lerp.Scalar", "x y n", "promote", lerp},
	{"aten::lerp.Tensor", "x y n", "promote", "d = sub y x; -> where (lt (abs n) 0.5) (fma d n x) (fma d (sub n 1) y)"},
	{"aten::leaky_relu", "x n", "", "-> where (gt x 0) x (mul x n)"},
	{"aten::elu", "x a s i", "", "-> where (lt x 0) (mul (mul (expm1 (mul x i)) a) s) (mul x s)"},
	{"aten::softplus", "x b t", "", "y = mul x b; -> where (gt y t) x (div (log1p (exp y)) b)"},
	{"aten::silu", "x", "", "-> div x (add (exp (neg x)) 1)"},
	{"aten::gelu", "x approximate", "approximate=none", "-> mul (mul x 0.5) (add (erf (mul x 0.7071067811865476)) 1)"},
	{"aten::gelu", "x approximate", "approximate=tanh",
		"u = mul (add x (mul (mul (mul x x) x) 0.044715)) 0.7978845608028654; -> mul (mul x 0.5) (add (tanh u) 1)"},

	// Their gradients.
	{"aten::threshold_backward", "g x t", "promote ints", "-> where (le x t) 0 g"},
	{"aten::sigmoid_backward", "g y", "promote", "-> mul (mul g (sub 1 y)) y"},
	{"aten::tanh_backward", "g y", "promote", "-> mul g (fma (neg y) y 1)"},
	{"aten::leaky_relu_backward", "g x n self_is_result", "promote", "-> where (gt x 0) g (mul g n)"},
	{"aten::silu_backward", "g x", "promote", "s = sigmoid x; -> mul (mul g s) (fma x (sub 1 s) 1)"},
	{"aten::gelu_backward", "g x approximate", "approximate=none promote",
		"c = mul (add (erf (mul x 0.7071067811865476)) 1) 0.5; p = mul (exp (mul (mul x x) -0.5)) 0.3989422804014327; -> mul g (add c (mul x p))"},
	{"aten::gelu_backward", "g x approximate", "approximate=tanh promote",
		"q = mul x x; t = tanh (mul (add x (mul (mul q x) 0.044715)) 0.7978845608028654); " +
			"d = mul (add (mul q 0.134145) 1) 0.7978845608028654; " +
			"-> mul g (add (mul (add t 1) 0.5) (mul (mul (mul x 0.5) (sub 1 (mul t t))) d))"},
	{"aten::native_dropout", "x p train", "train=true",
		"m = draw p x; q = sub 1 (fill (f64 x) p); -> mul (mul x m) (cast (where (eq q 0) 0 (div 1 q)) x), m"},
	{"aten::native_dropout_backward", "g m s", "", "-> mul (mul g m) s"},

	// Along rows.
	{"aten::_softmax", "x d half", "half=false", "e = exp (sub x (amax x d)); -> div e (sum e d)"},
	{"aten::_log_softmax", "x d half", "half=false", "s = sub x (amax x d); -> sub s (log (sum (exp s) d))"},
	{"aten::_softmax_backward_data", "g y d t", "", "p = mul g y; -> sub p (mul y (sum p d))"},
	{"aten::_log_softmax_backward_data", "g y d t", "", "-> sub g (mul (exp y) (sum g d))"},
	{"aten::_fused_rms_norm", "x shape w eps", "eps!=none",
		"r = rsqrt (add (mean (mul x x) last:shape) eps); -> mul? (mul x r) w, r"},
	{"aten::native_layer_norm", "x shape w b eps", "",
		"m = mean x last:shape; c = sub x m; r = rsqrt (add (mean (mul c c) last:shape) eps); -> add? (mul? (mul c r) w) b, m, r"},
	{"aten::native_layer_norm_backward", "g x shape m r w b mask", "",
		"n = mul (sub x m) r; h = mul? g w; i = sub (sub h (mean h last:shape)) (mul n (mean (mul h n) last:shape)); " +
			"-> mul i r, sum_ (mul g n) lead:shape, sum_ g lead:shape"},

	// Along channels.
	{"aten::native_batch_norm", "x w b rm rv training momentum eps", "training=true rm!=none w!=none b!=none",
		"m = mean x chan; c = sub x m; v = mean (mul c c) chan; r = rsqrt (add v eps); u = flat m rm; " +
			"n = div (sum_ (fill (f64 x) 1) all) (sum_ (fill (f64 rm) 1) all); " +
			"-> add (mul (mul c r) (chan w x)) (chan b x), u, flat r rm, " +
			"add (mul rm (sub 1 (fill rm momentum))) (mul u momentum), " +
			"add (mul rv (sub 1 (fill rv momentum))) (mul (mul (flat v rm) (div n (sub n 1))) momentum)"},
	{"aten::native_batch_norm", "x w b rm rv training momentum eps", "training=false rm!=none w!=none b!=none",
		"r = rsqrt (add rv eps); -> add (mul (mul (sub x (chan rm x)) (chan r x)) (chan w x)) (chan b x), none, none"},

	// Along groups of channels.
	{"aten::native_group_norm", "x w b n c s g eps", "",
		"y = groups x g; m = mean_ y end; d = sub y (unsq m); r = rsqrt (add (mean_ (mul d d) end) eps); " +
			"-> add? (mul? (flat (mul d (unsq r)) x) (chan w x)) (chan b x), m, r"},

	// Losses.
	{"aten::mse_loss", "x y reduction", "reduction=0 promote", "d = sub x y; -> mul d d"},
	{"aten::mse_loss", "x y reduction", "reduction=1 promote", "d = sub x y; -> mean_ (mul d d) all"},
	{"aten::mse_loss", "x y reduction", "reduction=2 promote", "d = sub x y; -> sum_ (mul d d) all"},
	{"aten::mse_loss_backward", "g x y reduction", "reduction=1 promote",
		"d = sub x y; -> mul (mul d (cast (div 2 (sum_ (fill (f64 d) 1) all)) d)) g"},
	{"aten::mse_loss_backward", "g x y reduction", "promote", "-> mul (mul (sub x y) 2) g"},
	{"aten::nll_loss_forward", "x t w reduction ignore", "w=none reduction=1",
		nll + "n = sum_ (cast u x) all; -> div (sum_ l all) n, n"},
	{"aten::nll_loss_forward", "x t w reduction ignore", "w=none reduction=2",
		nll + "-> sum_ l all, sum_ (cast u x) all"},

	// Norms of gradients.
	{"aten::linalg_vector_norm", "x n dim keep dtype", "n=2 dim=none dtype=none", "-> sqrt (sum_ (mul x x) all)"},
}

const lerp = "d = sub y x; w = fill d n; -> where (lt (abs w) 0.5) (fma d w x) (fma d (sub w 1) y)"

const nll = "u = ne t ignore; i = where u t 0; l = where u (neg (flat (gather x 1 (unsq i)) t)) 0; "

// kept says why operators that a kernel could compute are left to PyTorch.
var kept = map[string]string{
	"aten::_fused_adam_":         "PyTorch computes all its tensors in one kernel",
	"aten::_fused_adamw_":        "PyTorch computes all its tensors in one kernel",
	"aten::_foreach_norm.Scalar": "PyTorch computes all its tensors in two kernels",
	"aten::_fused_sgd_":          "PyTorch computes all its tensors in one kernel",

	"aten::native_group_norm_backward": "it folds along groups, and along channels: more kernels than it is alone",
}

// Draw is the operator that draws the mask of a dropout: its sizes, and the probability of false. A kernel computes with what it made.
const Draw = "mycelya::dropout_mask"

// points are operators that stay calls, because they draw numbers or look at where an element is, and that make each
// element of their results from elements of their operands at places that are known or, in gather, read.
var points = map[string]bool{
	"aten::bernoulli": true, "aten::bernoulli_.float": true, "aten::rand_like": true,
	"aten::cat": true, "aten::tril": true, "aten::triu": true, "aten::gather": true, "aten::nll_loss_backward": true,
}
