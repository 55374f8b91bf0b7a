// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"embed"
	"html"
	"os"
	"path/filepath"
	"strings"
)

// The parts of the pages. A page is put together as text and refers to no other file.
//
//go:embed page
var pages embed.FS

// page is a template with its style, its script and these texts, which are HTML.
func page(name, script string, texts ...string) string {
	read := func(name string) string {
		data, err := pages.ReadFile("page/" + name)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		return string(data)
	}
	texts = append(texts, "{{style}}", read("page.css"), "{{script}}", read(script))
	return strings.NewReplacer(texts...).Replace(read(name))
}

// open opens a file of the run; the file is empty the first time. The caller holds the lock.
func (d *Dumper) open(name string) (*os.File, error) {
	if f := d.files[name]; f != nil {
		return f, nil
	}
	if err := os.MkdirAll(d.spec.To, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(d.spec.To, name))
	if err == nil {
		d.files[name] = f
	}
	return f, err
}

// write appends to a file of the run. The text stays in the file even if the process crashes later. The caller holds
// the lock.
func (d *Dumper) write(name, text string) {
	f, err := d.open(name)
	if err == nil {
		_, err = f.WriteString(text)
	}
	d.warn(err)
}

// index is index.html: a page that ends with the events so far and the closing tags. Each event overwrites the closing
// tags and writes them again after it. So the page is always complete, and its cost is linear in the number of events.
type index struct {
	end  int64 // of the last event; 0: nothing is written yet
	tail string
}

// add adds an event. The caller holds the dumper's lock.
func (x *index) add(d *Dumper, line string) error {
	f, err := d.open("index.html")
	if err != nil {
		return err
	}
	head := ""
	if x.end == 0 {
		head, x.tail, _ = strings.Cut(page("index.html", "index.js", "{{title}}",
			html.EscapeString("mycelya "+d.about.Mycelya)), "{{events}}\n")
	}
	_, err = f.WriteAt([]byte(head+line+x.tail), x.end)
	x.end += int64(len(head) + len(line))
	return err
}

// makeEmpty makes the folder of a program, deletes the files of an earlier run's program there, and leaves all other
// files.
func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".ir", ".txt", ".txtar", ".html":
			if why := os.Remove(filepath.Join(dir, e.Name())); err == nil {
				err = why
			}
		}
	}
	return err
}

// fileName keeps the characters that every file system accepts.
func fileName(name string) string {
	const most = 120 // bytes; a name may have 255
	if len(name) > most {
		name = strings.ToValidUTF8(name[len(name)-most:], "_")
	}
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(`/\<>"|?*`, r) || r < ' ' {
			return '_'
		}
		return r
	}, name)
}
