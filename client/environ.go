// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

/*
extern char** environ;
*/
import "C"

import (
	"os"
	"strings"
	"unsafe"
)

// takeEnvironment gives Go the environment that the process has now. A Go library begins with the one that the process
// was started with, and Python's os.environ changes only C's.
func takeEnvironment() error {
	var now []string
	for p := C.environ; p != nil && *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		now = append(now, C.GoString(*p))
	}
	left := map[string]string{}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		left[name] = value
	}
	for _, kv := range now {
		name, value, ok := strings.Cut(kv, "=")
		if old, had := left[name]; ok && name != "" && (!had || old != value) {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
		delete(left, name)
	}
	for name := range left {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	return nil
}
