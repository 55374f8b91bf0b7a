// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Summary prints what became of the graphs of a folder.
//
//	go run ./tests/replay/summary tests/replay/corpus
package main

import (
	"fmt"
	"os"

	"github.com/mycelya/mycelya/tests/replay"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: summary FOLDER")
		os.Exit(2)
	}
	all, err := replay.Compile(os.Args[1], 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
	fmt.Print(replay.Text(all))
}
