// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

// In the loss of a class, one element of each row counts: the one whose position is the target. It is picked by a
// comparison, so that the operator is a part of the loop over the row. The largest of it and of -inf is the element
// itself, as is the sum of it and of zeros, but for the sign of zero.
const (
	nllPick = "v = unsq (within t x 1 ignore) 1; u = ne v ignore; h = eq (iota x 1) v; p = neg (amax (where h x -inf) 1); "
	nllHot  = "v = unsq (within t x 1 ignore) 1; h = logical_and (eq (iota x 1) v) (ne v ignore); "
)

var (
	nllForward = []Case{
		{"w=none reduction=0", nllPick + "-> flat (where u p 0) t, cast (sum_ (fill (f64 t) 0) all) x"},
		{"w!=none reduction=0",
			nllPick + "m = amax (where h (chan w x) -inf) 1; " +
				"-> flat (where u (mul p m) 0) t, cast (sum_ (fill (f64 t) 0) all) x"},
		{"w=none reduction=1",
			nllPick + "n = sum_ (cast (ne v ignore) x) all; -> div (sum_ (where u p 0) all) n, n"},
		{"w=none reduction=2", nllPick + "-> sum_ (where u p 0) all, sum_ (cast (ne v ignore) x) all"},
		{"w!=none reduction=1",
			nllPick + "m = where u (amax (where h (chan w x) -inf) 1) 0; n = sum_ m all; " +
				"-> div (sum_ (where u (mul p m) 0) all) n, n"},
		{"w!=none reduction=2",
			nllPick + "m = where u (amax (where h (chan w x) -inf) 1) 0; -> sum_ (where u (mul p m) 0) all, sum_ m all"},
	}
	nllBackward = []Case{
		{"w=none reduction=0", nllHot + "-> where h (neg (unsq g 1)) 0"},
		{"w=none reduction=1", nllHot + "-> where h (neg (div g total)) 0"},
		{"w=none reduction=2", nllHot + "-> where h (neg g) 0"},
		{"w!=none reduction=0", nllHot + "-> where h (neg (mul (chan w x) (unsq g 1))) 0"},
		{"w!=none reduction=1", nllHot + "-> where h (neg (mul (chan w x) (div g total))) 0"},
		{"w!=none reduction=2", nllHot + "-> where h (neg (mul (chan w x) g)) 0"},
	}
)

// networkRows are the operators of neural networks: normalisation, convolution, pooling, attention, losses.
var networkRows = []ATen{
	{Name: "aten::_softmax", Dims: "X->X", Args: "x d half", Cases: []Case{
		{"half=false", "e = exp (sub x (amax x d)); -> div e (sum e d)"},
	}},
	{Name: "aten::_log_softmax", Dims: "X->X", Args: "x d half", Cases: []Case{
		{"half=false", "s = sub x (amax x d); -> sub s (log (sum (exp s) d))"},
	}},
	{Name: "aten::_softmax_backward_data", Dims: "X,X->X", Args: "g y d t", Cases: []Case{
		{"", "-> mul (sub g (sum (mul g y) d)) y"},
	}},
	{Name: "aten::_log_softmax_backward_data", Dims: "X,X->X", Args: "g y d t", Cases: []Case{
		{"", "-> sub g (mul (exp y) (sum g d))"},
	}},
	{Name: "aten::_fused_rms_norm", Dims: "X,_,*->X", Args: "x shape w eps", Cases: []Case{
		{"eps!=none", "r = rsqrt (add (mean (mul x x) last:shape) eps); -> mul? (mul x r) w, r"},
	}},
	{Name: "aten::native_layer_norm", Dims: "X,_,*,*->X", Args: "x shape w b eps",
		Capture: Capture{Handling: Whole}, Cases: []Case{
			{"",
				"m = mean x last:shape; c = sub x m; r = rsqrt (add (mean (mul c c) last:shape) eps); " +
					"-> add? (mul? (mul c r) w) b, m, r"},
		}},
	{Name: "aten::native_layer_norm_backward", Dims: "X,X,_,Y,Y,*,*->X", Args: "g x shape m r w b mask", Cases: []Case{
		{"",
			"n = mul (sub x m) r; h = mul? g w; " +
				"i = sub (sub h (mean h last:shape)) (mul n (mean (mul h n) last:shape)); " +
				"-> mul i r, sum_ (mul g n) lead:shape, sum_ g lead:shape"},
	}},
	{Name: "aten::native_batch_norm", Dims: "ncX,c,c,c,c->ncX,c,c", Args: "x w b rm rv training momentum eps",
		Capture: Capture{RunningStats: 3, IfTraining: 5}, Cases: []Case{
			{"training=true rm!=none w!=none b!=none",
				"m = mean x chan; c = sub x m; v = mean (mul c c) chan; r = rsqrt (add v eps); u = flat m rm; " +
					"n = div (sum_ (fill (f64 x) 1) all) (sum_ (fill (f64 rm) 1) all); " +
					"-> add (mul (mul c r) (chan w x)) (chan b x), u, flat r rm, " +
					"add (mul rm (sub 1 (fill rm momentum))) (mul u momentum), " +
					"add (mul rv (sub 1 (fill rv momentum))) (mul (mul (flat v rm) (div n (sub n 1))) momentum)"},
			{"training=false rm!=none w!=none b!=none",
				"r = rsqrt (add rv eps); " +
					"-> add (mul (mul (sub x (chan rm x)) (chan r x)) (chan w x)) (chan b x), none, none"},
		}},
	{Name: "aten::native_batch_norm_backward", Dims: "ncX,ncX,c,c,c,c,c->ncX,c,c",
		Args: "g x w rm rv m r training eps mask", Cases: []Case{
			{"training=true",
				"c = sub x (chan m x); s = chan r x; a = sum g chan; d = sum (mul g c) chan; " +
					"n = cast (sum (fill (f64 x) 1) chan) s; " +
					"-> mul (sub (sub g (div a n)) (mul c (div (mul d (mul s s)) n))) (mul? s (chan w x)), mul d s, a"},
			{"training=false rm!=none",
				"s = chan (rsqrt (add rv eps)) x; " +
					"-> mul g (mul? s (chan w x)), mul (sum (mul g (sub x (chan rm x))) chan) s, sum g chan"},
		}},
	{Name: "aten::native_group_norm", Dims: "ncX,c,c->ncX", Args: "x w b n c s g eps",
		Capture: Capture{Handling: Whole, Kernel: "RecordGroupNorm"}, Cases: []Case{
			{"",
				"y = groups x g; m = mean_ y -1; d = sub y (unsq m -1); r = rsqrt (add (mean_ (mul d d) -1) eps); " +
					"-> add? (mul? (flat (mul d (unsq r -1)) x) (chan w x)) (chan b x), m, r"},
		}},
	{Name: "aten::native_group_norm_backward", Dims: "ncX,ncX,_,_,c->ncX,c,c",
		Capture: Capture{Kernel: "RecordGroupNorm"},
		Whole:   "it reduces along groups and along channels, in more kernels than PyTorch needs"},
	{Name: "aten::native_dropout", Dims: "X->X,X", Args: "x p train", Cases: []Case{
		{"train=true",
			"m = draw p x; q = sub 1 (fill (f64 x) p); " +
				"-> mul (mul x m) (cast (where (eq q 0) 0 (div 1 q)) x), m"},
	}},
	{Name: "aten::native_dropout_backward", Dims: "*,*", Args: "g m s", Cases: []Case{{"", "-> mul (mul g m) s"}}},
	{Name: "aten::convolution", Dims: "n?+,_,o->no+"},
	{Name: "aten::convolution_overrideable", Dims: "n?+,_,o->no+",
		Capture: Capture{Handling: Whole, RecordedAs: "aten::convolution", Classes: "---lll-ll"}},
	{Name: "aten::convolution_backward_overrideable", Dims: "no+,nX,Y->nX,Y,o",
		Capture: Capture{Handling: Whole, RecordedAs: "aten::convolution_backward", Rewrites: "ConvolutionBackwardArgs",
			Classes: "---slll-ll-"}},
	{Name: "aten::max_pool2d_with_indices", Dims: "X??->Xhw,Xhw"},
	{Name: "aten::max_pool2d_with_indices_backward", Dims: "Xhw,Xij,_,_,_,_,_,Xhw->Xij"},
	{Name: "aten::avg_pool2d", Dims: "X??->X??"},
	{Name: "aten::avg_pool2d_backward", Dims: "X??,Xij->Xij"},
	{Name: "aten::_adaptive_avg_pool2d", Dims: "X??->X??"},
	{Name: "aten::_adaptive_avg_pool2d_backward", Dims: "X??,Xij->Xij"},
	{Name: "aten::embedding", Dims: "?d,X->Xd", Args: "w i p g s", Cases: []Case{
		{"narrow ints truth", "-> take w (unsq (within i w 0) -1) 0"},
	}, Capture: Capture{Handling: Whole}},
	{Name: "aten::embedding_dense_backward", Dims: "Xd,X->?d"},
	{Name: "aten::nll_loss_forward", Dims: "Xc,X,c->X|", Args: "x t w reduction ignore", Cases: nllForward},
	{Name: "aten::nll_loss_backward", Dims: "X|,Xc,X,c->Xc", Args: "g x t w reduction ignore total", Cases: nllBackward},
	{Name: "aten::nll_loss2d_forward", Dims: "nchw,nhw,c->nhw|", Args: "x t w reduction ignore", Cases: nllForward},
	{Name: "aten::nll_loss2d_backward", Dims: "nhw|,nchw,nhw,c->nchw", Args: "g x t w reduction ignore total",
		Cases: nllBackward},
	{Name: "aten::mse_loss_backward", Dims: "*,*,*", Args: "g x y reduction", Cases: []Case{
		{"reduction=1 promote",
			"d = sub x y; -> mul (mul d (cast (div 2 (sum_ (fill (f64 d) 1) all)) d)) g"},
		{"promote", "-> mul (mul (sub x y) 2) g"},
	}},
	{Name: "aten::_scaled_dot_product_fused_attention_overrideable", Dims: "bhsd,b?td,b?te->bhse",
		Capture: Capture{Handling: Hand}},
	{Name: "aten::_scaled_dot_product_fused_attention_overrideable_backward",
		Dims: "bhse,bhsd,bgtd,bgte->bhsd,bgtd,bgte", Capture: Capture{Handling: Hand}},
	{Name: "aten::mse_loss", Dims: "X,X", Args: "x y reduction", Capture: Capture{Facts: MeetsDTypes}, Cases: []Case{
		{"reduction=0 promote", "d = sub x y; -> mul d d"},
		{"reduction=1 promote", "d = sub x y; -> mean_ (mul d d) all"},
		{"reduction=2 promote", "d = sub x y; -> sum_ (mul d d) all"},
	}},
	{Name: "aten::native_batch_norm.out", Capture: Capture{RunningStats: 3, IfTraining: 5}},
	{Name: "aten::batch_norm_update_stats", Capture: Capture{RunningStats: 1}},
	{Name: "aten::batch_norm_gather_stats", Capture: Capture{RunningStats: 3}},
	{Name: "aten::batch_norm_gather_stats_with_counts", Capture: Capture{RunningStats: 3}},
	{Name: "aten::smooth_l1_loss", Capture: Capture{Facts: MeetsDTypes}},
	{Name: "aten::_batch_norm_with_update", Capture: Capture{Handling: Dynamic}},
	{Name: "aten::_batch_norm_with_update.out",
		Capture: Capture{Handling: Dynamic, Infers: "aten::_batch_norm_with_update"}},
	{Name: "aten::_ctc_loss.Tensor", Capture: Capture{Handling: Dynamic}},
	{Name: "aten::_embedding_bag_backward", Capture: Capture{Handling: Hand}},
	{Name: "aten::_fused_sdp_choice", Capture: Capture{Handling: Hand}},
	{Name: "aten::_native_batch_norm_legit.out",
		Capture: Capture{Handling: Dynamic, Infers: "aten::_native_batch_norm_legit"}},
	{Name: "aten::_nested_tensor_from_mask_left_aligned", Capture: Capture{Handling: Hand}},
	{Name: "aten::_thnn_fused_gru_cell", Capture: Capture{Handling: Hand}},
	{Name: "aten::_thnn_fused_gru_cell_backward", Capture: Capture{Handling: Hand}},
	{Name: "aten::_thnn_fused_lstm_cell", Capture: Capture{Handling: Hand}},
	{Name: "aten::_thnn_fused_lstm_cell_backward_impl", Capture: Capture{Handling: Hand}},
	{Name: "aten::adaptive_avg_pool3d_backward.grad_input",
		Capture: Capture{Infers: "aten::_adaptive_avg_pool3d_backward"}},
	{Name: "aten::affine_grid_generator", Capture: Capture{Handling: Whole}},
	{Name: "aten::huber_loss_backward", Capture: Capture{Handling: Whole}},
	{Name: "aten::log_normal_", Capture: Capture{Infers: "aten::log_normal_"}},
	{Name: "aten::smooth_l1_loss_backward", Capture: Capture{Handling: Whole}},
	{Name: "aten::soft_margin_loss", Capture: Capture{Handling: Whole}},
	{Name: "aten::soft_margin_loss_backward", Capture: Capture{Handling: Whole}},
}
