// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package proto holds the messages of mycelya.proto, and the differences between calls. It never runs anything and
// never reads tensor data.
package proto

// KeyBytes is the length of a program's key: 16 bytes of the skeleton's hash, 4 of the variant.
const KeyBytes = 20
