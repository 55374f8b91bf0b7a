// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	// maxFiles bounds the files that a fetch takes, and maxListed those of a repository.
	maxFiles  = 4096
	maxListed = 200_000

	weightsEnd = ".safetensors"
	indexEnd   = ".safetensors.index.json"
)

// pickled are the endings of files that only pickle reads.
var pickled = []string{".bin", ".pt", ".pth", ".ckpt", ".pkl"}

// remote is a file of a repository.
type remote struct {
	path string // in the repository
	size int64
	hash hash
}

// listed is an entry of a repository's listing.
type listed struct {
	Type string `json:"type"`
	Path string `json:"path"`
	OID  string `json:"oid"`
	Size int64  `json:"size"`
	LFS  *struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	} `json:"lfs"`
}

var commitName = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

// commit is the commit that the request's revision means now.
func (w *web) commit(ctx context.Context) (string, error) {
	var info struct {
		SHA string `json:"sha"`
	}
	_, err := w.json(ctx, w.at(append(w.repo(), "revision", w.request.Revision)...), &info)
	if err != nil {
		return "", err
	}
	if !commitName.MatchString(info.SHA) {
		return "", errorf("%s does not answer as a hub does: it names no commit. Check HF_ENDPOINT.", quote(w.endpoint.Host))
	}
	return info.SHA, nil
}

// repo is the path of the repository in the hub's interface.
func (w *web) repo() []string {
	return append([]string{"api", "models"}, strings.Split(w.request.Repo, "/")...)
}

// list lists the files of the request's path at a commit.
func (w *web) list(ctx context.Context, commit string) ([]remote, error) {
	folder := w.request.Path
	if isWeights(folder) || strings.HasSuffix(folder, indexEnd) {
		folder = parent(folder)
	}
	parts := append(w.repo(), "tree", commit)
	if folder != "" {
		parts = append(parts, strings.Split(folder, "/")...)
	}
	u := w.at(parts...)
	u.RawQuery = url.Values{"recursive": {"true"}}.Encode()
	var out []remote
	for u != nil {
		var page []listed
		next, err := w.json(ctx, u, &page)
		if err != nil {
			return nil, err
		}
		for _, l := range page {
			if f, ok := l.file(); ok && (folder == "" || strings.HasPrefix(f.path, folder+"/")) {
				out = append(out, f)
			}
		}
		if len(out) > maxListed || next != nil && len(page) == 0 {
			return nil, errorf("The repository %v has more than %d files. Give path= with a folder of it.", &w.request,
				maxListed)
		}
		u = next
	}
	return out, nil
}

// file is the file of an entry; false: it is none that can be fetched.
func (l *listed) file() (remote, bool) {
	f := remote{path: l.Path, size: l.Size, hash: hash{kind: git, hex: l.OID}}
	if l.LFS != nil {
		f.size, f.hash = l.LFS.Size, hash{kind: sha256Hash, hex: strings.TrimPrefix(l.LFS.OID, "sha256:")}
	}
	plain := l.Path != "" && len(l.Path) <= maxPath && path.Clean("/"+l.Path) == "/"+l.Path && printable(l.Path)
	return f, l.Type == "file" && plain && f.size >= 0 && f.size < 1<<50 && f.hash.valid()
}

// parent is the folder of a file: "" is the repository itself.
func parent(file string) string {
	if folder := path.Dir(file); folder != "." {
		return folder
	}
	return ""
}

func isWeights(name string) bool { return strings.HasSuffix(name, weightsEnd) }

// choice is what a listing has: files with weights, and indexes that name such files.
type choice struct {
	files, indexes []remote
}

// choose chooses the files of the request. In each folder these are, as transformers and diffusers choose: the one file
// of the usual name; else the shards of an index; else all safetensors files. Variants, as model.fp16.safetensors, are
// left out where the plain form exists.
func (w *web) choose(all []remote) (out choice, err error) {
	if p := w.request.Path; isWeights(p) || strings.HasSuffix(p, indexEnd) {
		i := slices.IndexFunc(all, func(f remote) bool { return f.path == p })
		switch {
		case i < 0:
			return out, w.noPath()
		case isWeights(p):
			return choice{files: all[i : i+1]}, nil
		}
		return choice{indexes: all[i : i+1]}, nil
	}
	folders := map[string][]remote{}
	for _, f := range all {
		if isWeights(f.path) || strings.HasSuffix(f.path, indexEnd) {
			folders[parent(f.path)] = append(folders[parent(f.path)], f)
		}
	}
	for _, files := range folders {
		of := chooseIn(files)
		out.files, out.indexes = append(out.files, of.files...), append(out.indexes, of.indexes...)
	}
	byPath := func(a, b remote) int { return cmp.Compare(a.path, b.path) }
	slices.SortFunc(out.files, byPath)
	slices.SortFunc(out.indexes, byPath)
	switch n := len(out.files) + len(out.indexes); {
	case n == 0:
		return out, w.nothing(all)
	case n > maxFiles:
		return out, errorf("%v has %d files of weights; at most %d are fetched at once. Give path= with a folder of it.",
			&w.request, n, maxFiles)
	}
	return out, nil
}

// usual are the stems of the file that a folder's model is in, in the order in which libraries look for them.
var usual = []string{"model", "diffusion_pytorch_model"}

// chooseIn chooses among the safetensors files and indexes of one folder.
func chooseIn(files []remote) (out choice) {
	find := func(name string) (remote, bool) {
		i := slices.IndexFunc(files, func(f remote) bool { return path.Base(f.path) == name })
		if i < 0 {
			return remote{}, false
		}
		return files[i], true
	}
	for _, stem := range usual {
		if f, ok := find(stem + weightsEnd); ok {
			return choice{files: []remote{f}}
		}
		if f, ok := find(stem + indexEnd); ok {
			return choice{indexes: []remote{f}}
		}
	}
	for _, f := range files {
		if strings.HasSuffix(f.path, indexEnd) {
			out.indexes = append(out.indexes, f)
		}
	}
	if len(out.indexes) > 0 {
		slices.SortFunc(out.indexes, func(a, b remote) int {
			return cmp.Or(cmp.Compare(len(a.path), len(b.path)), cmp.Compare(a.path, b.path))
		})
		out.indexes = out.indexes[:1] // the shortest name is that without a variant
		return out
	}
	for _, f := range files {
		stem := strings.TrimSuffix(path.Base(f.path), weightsEnd)
		base, _, variant := strings.Cut(stem, ".")
		if _, plain := find(base + weightsEnd); !variant || !plain {
			out.files = append(out.files, f)
		}
	}
	return out
}

// nothing says why a listing has no weights.
func (w *web) nothing(all []remote) error {
	if len(all) == 0 {
		if w.request.Path != "" {
			return w.noPath()
		}
		return valuef("The repository %v is empty.", &w.request)
	}
	for _, f := range all {
		if slices.Contains(pickled, path.Ext(f.path)) {
			return valuef("The repository %v has weights only as pickle files (%s and the like). A pickle file can run any "+
				"program when it is loaded, so the worker does not read it. Use a repository or a revision with safetensors "+
				"files, or load the file on the client with torch.load and move the tensors to the device.", &w.request,
				quote(f.path))
		}
	}
	where := "The repository"
	if w.request.Path != "" {
		where = "The folder " + quote(w.request.Path) + " of the repository"
	}
	return valuef("%s %v has no safetensors files.", where, &w.request)
}

// shards are the files that an index names, which must be in the listing, beside the index.
func (w *web) shards(index remote, text []byte, all []remote) ([]remote, error) {
	var content struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &content); err != nil || len(content.Map) == 0 {
		return nil, errorf("The index %s of the repository %v does not name any file of weights.", quote(index.path),
			&w.request)
	}
	names := map[string]struct{}{}
	for _, name := range content.Map {
		names[name] = struct{}{}
	}
	if len(names) > maxFiles {
		return nil, errorf("The index %s names %d files; at most %d are fetched.", quote(index.path), len(names), maxFiles)
	}
	byPath := map[string]remote{}
	for _, f := range all {
		byPath[f.path] = f
	}
	var out []remote
	for name := range names {
		f, ok := byPath[path.Join(parent(index.path), name)]
		if !ok || !isWeights(name) {
			return nil, errorf("The index %s of the repository %v names the file %s, which is no safetensors file of the "+
				"repository. The repository is incomplete; its owner must upload the file.", quote(index.path), &w.request,
				quote(name))
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b remote) int { return cmp.Compare(a.path, b.path) })
	return out, nil
}

// fileURL is the address of a file of a commit.
func (w *web) fileURL(commit, file string) *url.URL {
	parts := append(strings.Split(w.request.Repo, "/"), "resolve", commit)
	return w.at(append(parts, strings.Split(file, "/")...)...)
}

// mayRead asks whether the request may read a file, without its bytes.
func (w *web) mayRead(ctx context.Context, commit string, f remote) error {
	return w.retry(ctx, func() (int64, error) {
		res, _, err := w.open(ctx, http.MethodHead, w.fileURL(commit, f.path), http.Header{"Accept-Encoding": {"identity"}})
		if err == nil {
			drain(res.Body)
		}
		return 0, err
	})
}
