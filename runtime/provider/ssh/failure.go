// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// Exit codes of ssh: its own, and those of a shell that cannot run a program.
const (
	codeSSH           = 255
	codeNotExecutable = 126
	codeNotFound      = 127
)

// errGone means that nothing is known of a worker that has run before.
var errGone = errors.New("the host does not know it any more. It was restarted, or another process has ended the " +
	"machine")

// says are parts of what OpenSSH writes to stderr, with what they mean. The first that fits counts. %[1]s is the host.
var says = []struct {
	part string
	kind error
	text string
}{
	{"REMOTE HOST IDENTIFICATION HAS CHANGED", provider.ErrAuth,
		"The host %[1]s has another key than the one in your known_hosts file: it was installed anew, or somebody answers " +
			"in its place. Ask its administrator. If the new key is right, remove the old one: ssh-keygen -R <host name>."},
	{"Host key verification failed", provider.ErrAuth,
		"ssh does not know the key of %[1]s yet. Run \"ssh %[1]s true\" in a terminal once, and compare the fingerprint " +
			"that it shows with the one that the host's administrator gives you."},
	{"Too many authentication failures", provider.ErrAuth,
		"The host %[1]s has refused the first keys that ssh has offered. Name the right one in ~/.ssh/config: " +
			"IdentityFile, and IdentitiesOnly yes."},
	{"Permission denied", provider.ErrAuth,
		"The host %[1]s does not let you in with the keys that ssh has; a password cannot be asked for here. Check the " +
			"user in host=\"user@name\". Load your key with ssh-add, or install it there with \"ssh-copy-id %[1]s\"."},
	{"Could not resolve hostname", provider.ErrNotFound,
		"The name of the host %[1]s cannot be resolved. Check the name, your ~/.ssh/config, and the network."},
	{"Connection refused", provider.ErrUnavailable,
		"The host %[1]s refuses the connection: no ssh server listens there. Check the host, and its Port in ~/.ssh/config."},
	{"timed out", provider.ErrTimeout,
		"The host %[1]s does not answer. Check that it runs, and that the network lets ssh through; a VPN may be needed."},
	{"No route to host", provider.ErrUnavailable,
		"There is no way to the host %[1]s. Check that it runs, and your network; a VPN may be needed."},
	{"Network is unreachable", provider.ErrUnavailable,
		"There is no way to the host %[1]s. Check your network."},
	{"Bad configuration option", provider.ErrInvalidSpec,
		"ssh does not understand its options. The ssh machine needs OpenSSH 7.6 or newer."},
	{"command-line", provider.ErrInvalidSpec,
		"ssh does not understand its options. Check the option ssh= of the machine."},
}

// failure is the error of an ssh process that has ended before it should.
func (o options) failure(code int, log string) error {
	said := strings.TrimSpace(log)
	for _, s := range says {
		if code == codeSSH && strings.Contains(said, s.part) {
			return provider.Errorf(s.kind, "%s\nssh said:\n%s", fmt.Sprintf(s.text, o.host), said)
		}
	}
	switch {
	case code == codeNotFound:
		return provider.Errorf(provider.ErrNotFound, "There is no program %q on %s. Give the path of the interpreter that "+
			"has torch: RemoteMachine(\"ssh\", python=\"/path/to/python\").\nThe host said:\n%s", o.python, o.host, said)
	case code == codeNotExecutable:
		return provider.Errorf(provider.ErrNotFound, "%q on %s cannot be run. Give the path of the interpreter that has "+
			"torch: RemoteMachine(\"ssh\", python=\"/path/to/python\").\nThe host said:\n%s", o.python, o.host, said)
	case code == codeSSH:
		return provider.Errorf(provider.ErrUnavailable, "The connection to %s has ended. Check that \"ssh %[1]s true\" "+
			"works in a terminal.\nssh said:\n%s", o.host, said)
	case strings.Contains(said, "Traceback"):
		return provider.Errorf(provider.ErrUnavailable, "%q on %s has failed. The ssh machine needs Python 3.9 or newer "+
			"there.\nThe host said:\n%s", o.python, o.host, said)
	}
	return provider.Errorf(provider.ErrUnavailable, "The command on %s has ended with code %d before it has answered. "+
		"The account there may allow certain commands only.\nThe host said:\n%s", o.host, code, said)
}

// refusal is the error of an agent that cannot do what it was asked.
func (o options) refusal(a *answer) error {
	switch a.Error {
	case "architecture":
		return provider.Errorf(provider.ErrInvalidSpec, "The host %s is %s on %s, this package's worker runs on %s on %s "+
			"only. Use a host of the same kind.", o.host, a.System, a.Machine, systemName(), machineName())
	case "torch":
		return provider.Errorf(provider.ErrNotFound, "The interpreter %s on %s (Python %s) has no torch. Install it there, "+
			"or give the path of another interpreter: RemoteMachine(\"ssh\", python=\"/path/to/python\").", a.Python, o.host,
			a.Version)
	case "version":
		return provider.Errorf(provider.ErrVersion, "%s on %s has torch %s. This package has libraries for torch %s. "+
			"Install one of these there, best this environment's: %s -m pip install torch==%s.", a.Python, o.host, a.Version,
			strings.Join(a.Names, ", "), a.Python, strings.Split(a.Text, "+")[0])
	case "noexec":
		return provider.Errorf(provider.ErrInvalidSpec, "The folder %q on %s is on a file system that runs no programs "+
			"(noexec). Give another one: RemoteMachine(\"ssh\", folder=\"/a/folder\").", a.Path, o.host)
	case "full":
		return provider.Errorf(provider.ErrUnavailable, "There is no room on %s (%s). Free some, or give another folder: "+
			"RemoteMachine(\"ssh\", folder=\"/a/folder\").", o.host, a.Text)
	case "folder":
		return provider.Errorf(provider.ErrInvalidSpec, "A folder on %s cannot be used (%s). Change its mode, or give "+
			"another one: RemoteMachine(\"ssh\", folder=\"/a/folder\").", o.host, a.Text)
	case "damaged":
		return provider.Errorf(provider.ErrUnavailable, "The file %q has come to %s with other bytes. Try again.", a.Path,
			o.host)
	case "name":
		return provider.Errorf(provider.ErrInvalidSpec, "A machine with this name runs already on %s, as process %d. Use it "+
			"with RemoteMachine.attach(name, \"ssh\", host=%q), or choose another name.", o.host, a.PID, o.host)
	case "none":
		return provider.Errorf(provider.ErrNotFound, "No machine with this name runs on %s. %s", o.host, others(a.Names))
	case "gone":
		return provider.Errorf(provider.ErrNotFound, "The worker on %s has ended: %v.", o.host, errGone)
	case "stuck":
		return provider.Errorf(provider.ErrTimeout, "The worker on %s, process %d, does not end: it is blocked in the "+
			"operating system.", o.host, a.PID)
	case "program":
		return provider.Errorf(provider.ErrInvalidSpec, "The host %s cannot run the worker program: %s. %s", o.host, a.Text,
			process.Reinstall)
	case "start":
		return provider.Errorf(provider.ErrUnavailable, "The worker on %s %s", o.host, a.howItEnded())
	}
	return provider.Errorf(provider.ErrVersion, "BUG: the agent on %s said %q.", o.host, a.Error)
}

// howItEnded ends a sentence about a worker that has ended before it could be used.
func (a *answer) howItEnded() string {
	if a.Exit == nil {
		return fmt.Sprintf("does not start: %s.", a.Text)
	}
	if a.Text != "" {
		return fmt.Sprintf("does not start: %s.", a.Text)
	}
	return fmt.Sprintf("%v before it could be used. %s", exitOf(a.Exit), process.Tail(a.Exit.Log))
}

// others lists the machines that run, in a sentence.
func others(names []string) string {
	if len(names) == 0 {
		return "None runs there; RemoteMachine(\"ssh\", host=…, name=…, detached=True) starts one."
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = fmt.Sprintf("%q", n)
	}
	return "There are " + strings.Join(quoted, ", ") + "."
}
