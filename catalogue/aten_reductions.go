// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import "fmt"

// ATen's variance is the sum of the squared deviations by the number of elements less the correction, which is 1 where
// it is absent. A negative divisor counts as 0.
func variance(results string) []Case {
	const body = "m = mean x in:d; e = sub x m; n = sum (fill (f64 x) 1) in:d; " +
		"v = div (sum (mul e e) in:d) (cast (maximum (sub n %s) 0) e); -> %s"
	return []Case{
		{"corr=none", fmt.Sprintf(body, "1", results)},
		{"corr!=none", fmt.Sprintf(body, "corr", results)},
	}
}

// place finds the first of the largest or smallest elements along a dim. A NaN is larger and smaller than numbers.
const place = "amin (where (logical_or (eq x m) (ne x x)) (iota x d) 9223372036854775807) d"

// reductionRows are operators that reduce dims and are not forms of own ops.
var reductionRows = []ATen{
	{Name: "aten::all.dim", Args: "x d keep", Cases: []Case{{"ints truth", "-> amin (logical_or x x) d"}}},
	{Name: "aten::any.dim", Args: "x d keep", Cases: []Case{{"ints truth", "-> amax (logical_or x x) d"}}},
	{Name: "aten::argmax", Args: "x d keep", Cases: []Case{{"d!=none ints", "m = amax x d; -> " + place}}},
	{Name: "aten::argmin", Args: "x d keep", Cases: []Case{{"d!=none ints", "m = amin x d; -> " + place}}},
	{Name: "aten::logsumexp", Args: "x d keep", Capture: Capture{Handling: Whole}, Cases: []Case{
		{"", "m = amax x in:d; f = where (eq (abs m) inf) 0 m; -> add (log (sum (exp (sub x f)) in:d)) f"},
	}},
	{Name: "aten::max.dim", Args: "x d keep", Cases: []Case{{"ints", "m = amax x d; -> m, " + place}}},
	{Name: "aten::min.dim", Args: "x d keep", Cases: []Case{{"ints", "m = amin x d; -> m, " + place}}},
	{Name: "aten::std.correction", Args: "x d corr keep", Cases: variance("sqrt v")},
	{Name: "aten::std_mean.correction", Args: "x d corr keep", Cases: variance("sqrt v, m")},
	{Name: "aten::var.correction", Args: "x d corr keep", Cases: variance("v")},
	{Name: "aten::var_mean.correction", Args: "x d corr keep", Cases: variance("v, m")},
}
