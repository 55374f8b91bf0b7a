// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package kernels makes machine code of printed kernels and keeps it. It never runs any.
package kernels
