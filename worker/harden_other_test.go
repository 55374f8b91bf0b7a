// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package worker_test

// hardenedProcess has a meaning on Linux only.
func hardenedProcess() {}
