// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package session

import (
	"errors"
	"os"
)

// Only Linux can seal memory, so memory is not shared on other systems. transport takes no descriptors there either.
func checkMemory(*os.File, uint64) error         { return errors.ErrUnsupported }
func mapMemory(*os.File, uint64) ([]byte, error) { return nil, errors.ErrUnsupported }
func unmapMemory([]byte)                         {}

// mapPages does nothing here: the pages are mapped when they are used.
func mapPages([]byte, bool) {}
