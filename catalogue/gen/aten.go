// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"encoding/json"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
)

// operator is what Python reads about an ATen operator: the generator of the op table, and tests. Names lack "aten::".
type operator struct {
	Name       string `json:"name"`
	InPlace    string `json:"in_place,omitempty"`
	Out        string `json:"out,omitempty"`
	Decomposed bool   `json:"decomposed,omitempty"`
	Handling   string `json:"handling,omitempty"`
	Infers     string `json:"infers,omitempty"`
	RecordedAs string `json:"recorded_as,omitempty"`
}

var handlings = [...]string{"", "hand", "whole", "dynamic", "decompose"}

// operatorsJSON has one line per row of the catalogue.
func operatorsJSON() ([]byte, error) {
	short := func(name string) string { return strings.TrimPrefix(name, "aten::") }
	var b strings.Builder
	b.WriteString("[\n")
	rows := catalogue.ATenRows()
	for i, r := range rows {
		line, err := json.Marshal(operator{
			Name: short(r.Name), InPlace: short(r.InPlace), Out: short(r.Out), Decomposed: len(r.Cases) > 0,
			Handling: handlings[r.Capture.Handling], Infers: short(r.Capture.Infers),
			RecordedAs: short(r.Capture.RecordedAs),
		})
		if err != nil {
			return nil, err
		}
		b.Write(line)
		if i < len(rows)-1 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	b.WriteString("]\n")
	return []byte(b.String()), nil
}
