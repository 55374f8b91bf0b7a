// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

// PreparedBytes is the memory that a prepared program takes.
var PreparedBytes = preparedBytes
