// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package emulate compiles printed kernels for the CPU, with g++ and emulate.h.
package emulate

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed emulate.h
var header []byte

// Build compiles a text, which includes "emulate.h", and links it as the file out. more: flags of the compiler.
//
// With ccache a text is compiled once on a host: all files lie in the current folder, so no path differs.
func Build(text []byte, out string, more ...string) error {
	folder, err := os.MkdirTemp(filepath.Dir(out), "emulate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	for name, data := range map[string][]byte{"emulate.h": header, "text.cpp": text} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			return err
		}
	}
	compiler := []string{"g++"}
	if _, err := exec.LookPath("ccache"); err == nil {
		compiler = []string{"ccache", "g++"}
	}
	// Contraction would round a product and a sum once. A vector at a wrong address, or an index beyond an array, ends
	// the process.
	flags := append([]string{"-std=c++17", "-O1", "-w", "-ffp-contract=off", "-fno-strict-aliasing",
		"-fsanitize=alignment,bounds"}, more...)
	compile := append(append(compiler, flags...), "-c", "text.cpp", "-o", "text.o")
	link := append(append([]string{"g++"}, flags...), "text.o", "-o", out)
	for _, command := range [][]string{compile, link} {
		run := exec.Command(command[0], command[1:]...)
		run.Dir = folder
		if output, err := run.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, output)
		}
	}
	return nil
}
