// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import "github.com/mycelya/mycelya/runtime/provider"

// priced is the date of the prices. Source: the list at https://modal.com/pricing in dollars per second, as comparisons
// of that date quote it. A type that they do not quote has no price here: it is not known.
const priced = "2026-05-07"

// hourly are the list prices of one GPU, in dollars per hour. Processors and memory cost extra, and regions that are
// chosen cost a multiple.
var hourly = map[string]float64{
	"T4":        0.000164 * 3600,
	"L4":        0.000222 * 3600,
	"L40S":      0.000542 * 3600,
	"A100-80GB": 0.000694 * 3600,
	"H100":      0.001097 * 3600,
}

// Price implements provider.Pricer.
func (Provider) Price(gpu string, gpus int) (provider.Price, bool) {
	price, known := hourly[gpu]
	return provider.Price{PerHour: price * float64(max(gpus, 1)), Currency: "USD", Date: priced}, known
}
