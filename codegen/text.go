// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"strings"
)

// Text lists the program: where each parameter and each input comes from, its steps, and which storages its outputs
// become. See program.Program.String for the notation.
func (c *Compiled) Text() string {
	var b strings.Builder
	derived := c.Derived
	for i, s := range c.Slots {
		if s == Computed {
			fmt.Fprintf(&b, "p%d = %s\n", i, derived[0])
			derived = derived[1:]
		} else {
			fmt.Fprintf(&b, "p%d = word %d\n", i, s)
		}
	}
	for i, s := range c.Inputs {
		fmt.Fprintf(&b, "b%d = storage %d\n", c.Program.Inputs[i], s)
	}
	b.WriteString(c.Program.StepsText())
	for i, s := range c.Outputs {
		fmt.Fprintf(&b, "storage %d = b%d\n", s, c.Program.Outputs[i])
	}
	return b.String()
}
