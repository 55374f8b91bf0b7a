// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Command gen writes the files that derive from the catalogue: Go constants, C headers and C++ tables.
//
//	go run ./catalogue/gen          writes them
//	go run ./catalogue/gen -check   compares them with the committed files, and fails if one differs
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// output is one generated file, by its path from the root of the repository.
type output struct {
	path  string
	write func() ([]byte, error)
}

// outputs lists all generated files.
var outputs = slices.Concat(
	[]output{
		{"catalogue/operators.json", operatorsJSON},
		{"csrc/device/rules/operators.inc", operatorsInc},
		{"csrc/exec/program/running_stats.inc", runningStatsInc},
	},
	ownOutputs,
	wordFiles,
)

func main() {
	check := flag.Bool("check", false, "compare the files instead of writing them")
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run writes or compares all outputs below root.
func run(root string, check bool) error {
	for _, o := range outputs {
		text, err := o.write()
		if err != nil {
			return fmt.Errorf("%s: %w", o.path, err)
		}
		path := filepath.Join(root, filepath.FromSlash(o.path))
		if !check {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				return err
			}
			continue
		}
		committed, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(text, committed) {
			return fmt.Errorf("%s is stale; run make gen", o.path)
		}
	}
	return nil
}
