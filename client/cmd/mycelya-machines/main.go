// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Mycelya-machines lets the command line (mycelya_cli) use the providers without Python's torch: it finds machines,
// ends them, reads their logs and metrics, and checks what a start needs. It prints one JSON object on stdout. It
// never starts a worker, and never opens a session.
//
//	mycelya-machines list
//	mycelya-machines end [-unused] PROVIDER:ID…
//	mycelya-machines logs|metrics PROVIDER NAME
//	mycelya-machines check [PROVIDER…]
//	mycelya-machines price PROVIDER [GPU [COUNT]]
//	mycelya-machines version
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/providers"
)

// options are the options of a provider, as -o host=gpu1 gives them.
type options map[string]string

func (o options) String() string { return "" }

func (o options) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return fmt.Errorf("%q is no option of a provider, as host=gpu1 is", text)
	}
	o[name] = value
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, providers.Table(), os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run does one command, and returns the exit code: 0, 1 after an error of the command, 2 for wrong arguments.
func run(ctx context.Context, table []providers.Row, args []string, stdout, stderr io.Writer) int {
	t := tool{table: table, options: options{}}
	flags := flag.NewFlagSet("mycelya-machines", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&t.paths.Worker, "worker", "", "the mycelya-worker program")
	flags.StringVar(&t.paths.Exec, "exec", "", "libmycelya_exec")
	flags.StringVar(&t.paths.TorchLib, "torch-lib", "", "the folder of libtorch_cpu")
	flags.DurationVar(&t.wait, "wait", time.Minute, "how long each provider may take")
	flags.Var(t.options, "o", "an option of the provider, as host=gpu1; may be repeated")
	flags.BoolVar(&t.unused, "unused", false, "end only machines that nobody uses")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	out, err := t.do(ctx, flags.Args())
	if err != nil {
		out = map[string]any{"error": err.Error()}
	}
	encoder := json.NewEncoder(stdout)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(out) != nil || err != nil {
		return 1
	}
	return 0
}

// tool is one run of this program.
type tool struct {
	table   []providers.Row
	paths   provider.Paths
	options options
	wait    time.Duration
	unused  bool
}

func (t *tool) do(ctx context.Context, args []string) (any, error) {
	command, rest := "", []string(nil)
	if len(args) > 0 {
		command, rest = args[0], args[1:]
	}
	switch {
	case command == "list" && len(rest) == 0:
		found, failed := t.sweep(ctx, func(provider.Found) bool { return false }, nil)
		return map[string]any{"machines": found, "errors": failed}, nil
	case command == "end" && len(rest) > 0:
		return t.end(ctx, rest)
	case (command == "logs" || command == "metrics") && len(rest) == 2:
		return t.read(ctx, command, rest[0], rest[1])
	case command == "check":
		return t.check(ctx, rest), nil
	case command == "price" && 1 <= len(rest) && len(rest) <= 3:
		return t.price(rest)
	case command == "version" && len(rest) == 0:
		return map[string]any{"build": transport.Build}, nil
	}
	return nil, fmt.Errorf("%q is no command; the head of this program's source lists the commands",
		strings.Join(args, " "))
}
