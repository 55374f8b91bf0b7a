// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"fmt"
	"html"
	"strings"

	"github.com/mycelya/mycelya/ir"
)

// html is graph.html: a column for each stage that changed something, and one for the plan. Each mention of a value
// has the number of the value's family (ir.Lineage) in data-v, each origin its own number in data-o. page/graph.js
// highlights them.
func (p *Program) html() string {
	w := writer{same: p.same, origins: map[string]int{}}
	var unchanged []string
	for _, s := range p.stages {
		if s.hidden {
			unchanged = append(unchanged, s.name)
			continue
		}
		w.stage(s)
	}
	switch {
	case p.err != "":
		w.text("error", p.err, "failed")
	case p.plan != "":
		w.text("plan", p.plan, count(p.event.Steps, "step"))
	}
	about := fmt.Sprintf("%s, key %s", p.of.Reason, p.event.Key)
	if len(unchanged) > 0 {
		about += "; unchanged by " + strings.Join(unchanged, ", ")
	}
	title := fmt.Sprintf("#%d%s %s", p.of.Number, of(p.of.Device), p.of.Place)
	return page("graph.html", "graph.js", "{{title}}", html.EscapeString(title), "{{about}}", html.EscapeString(about),
		"{{columns}}", w.b.String())
}

// writer makes the columns of a page.
type writer struct {
	b       strings.Builder
	same    *ir.Lineage
	columns int
	origins map[string]int // numbers, in the order of their appearance
}

func (w *writer) f(format string, args ...any) { fmt.Fprintf(&w.b, format, args...) }

// stage writes the column of a graph.
func (w *writer) stage(s stage) {
	about := count(s.nodes, "node")
	if len(s.rules) > 0 {
		about += ", " + count(len(s.rules), "rule") + " applied"
	}
	w.begin(fmt.Sprintf("%02d %s", s.number, s.name), about)
	if len(s.rules) > 0 {
		w.f("<details><summary>rules</summary><ul>\n")
		for _, r := range s.rules {
			w.f("<li>%s ", html.EscapeString(r.Rule))
			w.origin(originText(r.Origin))
			w.f("</li>\n")
		}
		w.f("</ul></details>\n")
	}
	w.lines(len(s.lines), func(i int) { w.line(&s.lines[i], s.names) })
	w.f("</section>\n")
}

// originText is an origin as the printer writes it behind a #.
func originText(o ir.Origin) string {
	if o.File == "" {
		return ""
	}
	return "# " + place(o)
}

// text writes a column of plain lines.
func (w *writer) text(name, text, about string) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	w.begin(name, about)
	w.lines(len(lines), func(i int) { w.b.WriteString(html.EscapeString(lines[i])) })
	w.f("</section>\n")
}

func (w *writer) begin(name, about string) {
	w.columns++
	w.f("<section class=\"column\" aria-labelledby=\"c%d\">\n<h2 id=\"c%d\">"+
		"<button type=\"button\" aria-expanded=\"true\">%s</button></h2>\n<p>%s</p>\n",
		w.columns, w.columns, html.EscapeString(name), html.EscapeString(about))
}

// chunk is the number of lines that the browser lays out together; it skips chunks that are not visible.
const chunk = 100

func (w *writer) lines(n int, line func(i int)) {
	w.f("<div class=\"lines\">")
	for i := range n {
		if i%chunk == 0 {
			w.f("<div class=\"chunk\" style=\"--lines:%d\">", min(chunk, n-i))
		}
		w.b.WriteString("<div class=\"line\">")
		line(i)
		w.b.WriteString("</div>")
		if i%chunk == chunk-1 || i == n-1 {
			w.b.WriteString("</div>")
		}
	}
	w.f("</div>\n")
}

// line writes a line of a graph: <b> is where a value is defined, <a> where it is used, <i> the origin.
func (w *writer) line(l *line, ids []int) {
	end := 0
	for _, sp := range l.spans {
		if sp.value >= len(ids) {
			continue
		}
		tag := "a"
		if sp.binder {
			tag = "b"
		}
		w.b.WriteString(html.EscapeString(l.text[end:sp.lo]))
		w.f("<%s data-v=\"%d\">%s</%s>", tag, w.same.Family(ids[sp.value]), html.EscapeString(l.text[sp.lo:sp.hi]), tag)
		end = sp.hi
	}
	w.b.WriteString(html.EscapeString(l.text[end:l.comment]))
	w.origin(l.text[l.comment:])
}

func (w *writer) origin(text string) {
	if text == "" {
		return
	}
	n, ok := w.origins[text]
	if !ok {
		n = len(w.origins)
		w.origins[text] = n
	}
	w.f("<i data-o=\"%d\">%s</i>", n, html.EscapeString(text))
}
