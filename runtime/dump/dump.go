// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/mycelya/mycelya/proto/transport"
)

// About has the facts about the process that a dump shows.
type About struct {
	Mycelya string // version
	Passes  string // MYCELYA_PASSES
	Check   int    // MYCELYA_CHECK
}

// Dumper writes the output that its Spec selects. A nil Dumper writes nothing. All methods may be called at the same
// time.
type Dumper struct {
	spec   Spec
	about  About
	stderr io.Writer
	log    *slog.Logger

	mu     sync.Mutex
	shown  int // programs with graphs
	cuts   int
	timed  int                 // calls and steps that are listed
	epoch  int64               // when the first one began
	named  map[[2]int][]string // by device and program: the names of steps
	files  map[string]*os.File // of the run, open
	index  index
	warned bool
}

// New returns the dumper of a spec; nil for a nil spec.
func New(s *Spec, about About, stderr io.Writer, log *slog.Logger) *Dumper {
	if s == nil {
		return nil
	}
	return &Dumper{spec: *s, about: about, stderr: stderr, log: log, files: map[string]*os.File{},
		named: map[[2]int][]string{}}
}

// maxCuts bounds the cuts that a run lists, to about 30 MB. Otherwise a loop that runs for days would fill the disk.
const maxCuts = 100_000

// Cut is the end of a trace.
type Cut struct {
	Device  int
	Place   string // "train.py:41"
	Reason  string // its name, "read"
	Why     string // the clause after "because"
	Ops     int
	Program int // the program that computes the trace
	New     bool
}

// Cut reports a cut. If its program is new, the program's Begin comes next.
func (d *Dumper) Cut(c Cut) {
	if d == nil || !strings.Contains(c.Place, d.spec.Only) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cuts++
	if d.cuts > maxCuts {
		if d.cuts == maxCuts+1 {
			d.why(fmt.Sprintf("… later cuts are not listed: there are more than %d.\n", maxCuts))
		}
		return
	}
	d.event(cutEvent{"cut", d.cuts, c.Device, c.Place, c.Reason, c.Ops, c.Program, c.New})
	kind := ""
	if c.New {
		kind = ", a new one"
	}
	d.why(fmt.Sprintf("cut %d%s at %s because %s: %s, program #%d%s\n", d.cuts, of(c.Device), c.Place, c.Why,
		count(c.Ops, "op"), c.Program, kind))
}

// of names a device, unless it is the first.
func of(device int) string {
	if device == 0 {
		return ""
	}
	return fmt.Sprintf(" of mycelya:%d", device)
}

// Frame reports a frame that was sent or received.
func (d *Dumper) Frame(device int, sent bool, t transport.Type, seq, bytes uint64) {
	if d == nil || !d.spec.Wire {
		return
	}
	line := fmt.Sprintf("%-8s %-10s %6d  %s%s\n", map[bool]string{true: "sent", false: "received"}[sent], t, seq,
		count(int(bytes), "byte"), of(device))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spec.To == "-" {
		d.print("# " + line)
		return
	}
	d.write("wire.txt", line)
}

// why writes lines of why.txt. The caller holds the lock.
func (d *Dumper) why(lines string) {
	switch {
	case d.spec.To != "-":
		d.write("why.txt", lines)
	case d.spec.Why: // as comments, so that the graphs between them can still be read
		d.print("# " + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", "\n# ") + "\n")
	}
}

// print writes to stderr. The caller holds the lock.
func (d *Dumper) print(text string) {
	_, err := io.WriteString(d.stderr, text)
	d.warn(err)
}

// warn reports the first failure. The caller holds the lock.
func (d *Dumper) warn(err error) {
	if err != nil && !d.warned {
		d.warned = true
		d.log.Warn("MYCELYA_DUMP can't be written", "error", err)
	}
}

// event adds an event to the run's events.jsonl. The caller holds the lock.
func (d *Dumper) event(e any) {
	if d.spec.To == "-" {
		return
	}
	if d.files[eventsFile] == nil {
		d.eventLine(runEvent{"run", eventsFormat, d.about.Mycelya, d.about.Passes, d.about.Check, d.spec.Only, d.spec.Max})
	}
	d.eventLine(e)
}

func (d *Dumper) eventLine(e any) {
	line, err := json.Marshal(e) // escapes < and >, so that a page can hold it
	if err != nil {
		panic("BUG: an event doesn't encode: " + err.Error())
	}
	d.write(eventsFile, string(line)+"\n")
	d.warn(d.index.add(d, string(line)+"\n"))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
