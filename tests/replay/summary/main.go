// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Summary prints the results of compiling the graphs of a folder.
//
//	go run ./tests/replay/summary [-json] [-repeats=N] tests/replay/corpus
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/mycelya/mycelya/tests/replay"
)

func main() {
	asJSON := flag.Bool("json", false, "print a JSON array, with the times")
	repeats := flag.Int("repeats", 0, "how many times to measure the time of each graph")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: summary [-json] [-repeats=N] FOLDER")
		os.Exit(2)
	}
	all, err := replay.Compile(flag.Arg(0), 0, *repeats)
	if err == nil && *asJSON {
		err = json.NewEncoder(os.Stdout).Encode(all)
	} else if err == nil {
		fmt.Print(replay.Text(all))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
}
