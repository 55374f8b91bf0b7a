// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package capture turns a closed trace into a graph: it decodes the words of csrc/abi/mycelya.h, gives each storage an SSA
// value that writes replace, and lists what must be stored at the cut. It never runs on a program that was seen before,
// never looks at sizes to decide anything (a graph is right for every size vector of its skeleton), and knows nothing of
// programs, sessions or wires.
package capture
