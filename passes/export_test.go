// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

// Unguarded returns options under which the guard of a rule is taken to be true.
func Unguarded(opt Options, rule string) Options {
	opt.unguarded = rule
	return opt
}
