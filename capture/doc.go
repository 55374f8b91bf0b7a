// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package capture turns a closed trace into a graph. It decodes the words of csrc/abi/mycelya.h, gives each storage an
// SSA value that writes replace, and lists what the program must store at the cut. It runs only for skeletons without a
// program. No decision depends on a size, so a graph is right for every size vector of its skeleton. The package does
// not depend on programs, sessions or the wire.
package capture
