// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mycelya/mycelya/runtime/provider"
)

// plan is a checked Spec.
type plan struct {
	provider.Spec
	backend string
	gpus    []string // in the order of tries, with their numbers: "H100:2"; "" is none
	device  string   // of the worker
	regions []string
	volume  string // name; "" is none
	state   string // the folder on it for what sessions keep
	image   string // of a registry
	torch   string // PyTorch's version for the image; "" is none
	tunnel  string // "tcp", "tls", or "" for the first that works
	start   time.Duration
	files   []file   // that a sandbox gets
	machine *machine // if it is detached
}

const (
	// defaultImage has a C library that is newer than those of the systems on which the package is built, and the
	// programs of a small Debian.
	defaultImage = "python:3.12-slim-trixie"
	// defaultGPU is the cheapest.
	defaultGPU = "T4"
	// defaultStart is how long a sandbox may wait for a GPU.
	defaultStart = 10 * time.Minute
	// maxLease is Modal's limit.
	maxLease = 24 * time.Hour
	// leastClock is the shortest time of a sandbox's own clocks. The worker has the same clocks and keeps shorter times;
	// a sandbox must live until its worker has started.
	leastClock = time.Minute
)

// Option is one of the provider's own. Its value matches Values, a regular expression; Help ends the sentence "use …".
type Option struct{ Name, Values, Help string }

// Options lists the provider's own options.
func Options() []Option {
	return []Option{
		{"gpu_fallback", `[A-Za-z0-9+!-]+(,[A-Za-z0-9+!-]+)*`,
			"GPU types to try in this order if gpu_type has no capacity, as 'A100-80GB,H100'"},
		{"region", `[a-z0-9-]+(,[a-z0-9-]+)*`,
			"regions of Modal, as 'us-east' or 'us,eu' (default: any; a choice costs more)"},
		{"volume", `[A-Za-z0-9._-]{1,64}`,
			"the name of a Modal volume for what save() and checkpoint() keep, compiled kernels and the worker's files " +
				"(default: all of them end with the sandbox)"},
		{"image", `[A-Za-z0-9][A-Za-z0-9._:/@-]*`,
			"an image of a registry with Python 3.11 or newer and pip (default: '" + defaultImage + "')"},
		{"tunnel", `tcp|tls`, "'tcp' (a high port) or 'tls' (port 443) (default: the first that works)"},
		{"start_timeout", `[1-9][0-9]{0,4}`, "seconds that a sandbox may wait for a GPU (default: 600)"},
	}
}

// knownOptions finds options that do not exist.
func knownOptions(given map[string]string) error {
	var names []string
	for _, o := range Options() {
		names = append(names, o.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		i := slices.Index(names, name)
		if i < 0 || !whole(Options()[i].Values, given[name]) {
			return provider.Errorf(provider.ErrInvalidSpec, "%s=%q is not an option of a Modal machine. Its options are %s.",
				name, given[name], strings.Join(names, ", "))
		}
	}
	return nil
}

func whole(pattern, text string) bool {
	return regexp.MustCompile("^(?:" + pattern + ")$").MatchString(text)
}

// plan checks a Spec, and finds errors that would appear later, after money was spent.
func (p Provider) plan(s provider.Spec) (*plan, error) {
	invalid := func(format string, args ...any) (*plan, error) {
		return nil, provider.Errorf(provider.ErrInvalidSpec, format, args...)
	}
	if err := knownOptions(s.Options); err != nil {
		return nil, err
	}
	w := &plan{Spec: s, backend: cmp.Or(p.Backend, "torch"), image: cmp.Or(s.Options["image"], defaultImage),
		volume: s.Options["volume"], state: "machines/" + escape(cmp.Or(s.Session, p.unnamed)),
		tunnel: s.Options["tunnel"], start: defaultStart}
	if text := s.Options["region"]; text != "" {
		w.regions = strings.Split(text, ",")
	}
	if n, err := strconv.Atoi(s.Options["start_timeout"]); err == nil {
		w.start = time.Duration(n) * time.Second
	}
	switch {
	case s.Threads < 0:
		return invalid("A worker cannot have %d threads.", s.Threads)
	case !whole(`|cpu|cuda(:(0|[1-9][0-9]*))?`, s.Device):
		return invalid("The device %q does not exist; a worker on Modal has \"cpu\" or \"cuda:<number>\".", s.Device)
	case s.Lease <= 0 || s.Lease > maxLease:
		return invalid("A Modal machine needs a timeout of at most 24 hours, not %v: it costs money until then.", s.Lease)
	case s.Idle <= 0:
		return invalid("A Modal machine needs an idle_timeout: it costs money while nobody uses it.")
	case s.Again && w.volume == "":
		return invalid("The last checkpoint has ended with its sandbox, so another one cannot go on from it. Make the " +
			"machine with volume=\"a name\": checkpoints on a volume outlive their sandbox.")
	case s.GPU != "" && !whole(`[A-Za-z0-9+!-]+`, s.GPU):
		return invalid("%q is not a GPU type of Modal, as \"A100-80GB\" is.", s.GPU)
	}
	if err := checkPackages(s.Packages); err != nil {
		return nil, err
	}
	w.chooseGPUs()
	if s.Detached {
		m, err := openMachine(s.Session)
		if err != nil {
			return nil, err
		}
		w.machine = &m
	}
	return w, w.takeFiles(p.Paths)
}

// checkPackages refuses what would be an option of pip, or more than an argument of it.
func checkPackages(packages []string) error {
	for _, pack := range packages {
		if !whole(`[A-Za-z0-9][^'\s\\]*( *[^'\s\\]+)*`, pack) {
			return provider.Errorf(provider.ErrInvalidSpec, "packages=[%q] is not a Python package in pip's words, as "+
				"\"numpy\" or \"pillow==11\".", pack)
		}
	}
	return nil
}

// chooseGPUs decides the GPU types to try, and the worker's device. A worker on the CPU has no GPU unless one is named.
func (w *plan) chooseGPUs() {
	first := w.GPU
	if first == "" && w.Device != "cpu" {
		first = defaultGPU
	}
	types := []string{first}
	if text := w.Options["gpu_fallback"]; text != "" && first != "" {
		types = append(types, strings.Split(text, ",")...)
	}
	for _, t := range types {
		if w.GPUs > 1 && t != "" {
			t += ":" + strconv.Itoa(w.GPUs)
		}
		if !slices.Contains(w.gpus, t) {
			w.gpus = append(w.gpus, t)
		}
	}
	// Not "", with which a worker computes on the CPU if CUDA cannot be used: the GPU is paid for.
	if w.device = w.Device; w.device == "" || w.device == "cuda" {
		w.device = "cuda:0"
	}
}

// takeFiles finds the files that a sandbox gets, and PyTorch's version for its image.
func (w *plan) takeFiles(p provider.Paths) error {
	paths := []string{p.Worker}
	if w.backend == "torch" {
		paths = append(paths, p.Exec)
		// The part that needs CUDA's libraries: a package that was built without them does not have it.
		if cuda := strings.TrimSuffix(p.Exec, ".so") + "_cuda.so"; exists(cuda) {
			paths = append(paths, cuda)
		}
		var err error
		if w.torch, err = torchVersion(p.TorchLib); err != nil {
			return err
		}
	}
	for i, path := range paths {
		f, err := openFile(path, fileNames[i])
		if err != nil {
			return err
		}
		w.files = append(w.files, f)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var versionLine = regexp.MustCompile(`(?m)^__version__ *(?::.*)?= *['"]([0-9][0-9A-Za-z.]*)`)

// torchVersion is the version of this host's PyTorch without its build ("+cu130"): the executor needs the same one.
func torchVersion(lib string) (string, error) {
	path := filepath.Join(filepath.Dir(lib), "version.py")
	text, err := os.ReadFile(path)
	m := versionLine.FindSubmatch(text)
	if err != nil || m == nil {
		return "", provider.Errorf(provider.ErrNotFound, "The version of PyTorch cannot be read from %q. Is torch installed "+
			"in this environment?", path)
	}
	return string(m[1]), nil
}
