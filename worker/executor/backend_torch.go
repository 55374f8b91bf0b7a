// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build cgo && (linux || darwin)

package executor

/*
#cgo CFLAGS: -I${SRCDIR}/../../csrc/abi
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "mycelya.h"

// The executor's functions. A library that lacks one is refused.
#define FUNCTIONS(X) \
  X(abi_version) X(new) X(delete) X(info) X(prepare) X(drop) X(run) X(set_flags) X(upload_begin) X(upload_end) X(read) \
  X(read_done) X(free) X(poison) X(sync) X(usage) X(trim) X(load) X(entry) X(unload) X(leave) X(watch) \
  X(contents) X(state) X(set_state)
#define FIELD(f) myc_exec_fn_##f f;
typedef struct { FUNCTIONS(FIELD) } api;

// Fills a; returns the first missing name, or NULL.
static const char* api_load(void* lib, api* a) {
#define LOAD(f) \
  *(void**)&a->f = dlsym(lib, "myc_exec_" #f); \
  if (!a->f) return "myc_exec_" #f;
  FUNCTIONS(LOAD)
  return NULL;
}

// Memory that the calls of one executor share. Go must not put pointers to Go memory into a struct that it passes to C.
enum { MAX_ERRORS = 16, MAX_RANK = 255 };
typedef struct {
  api a;
  myc_exec* x;
  myc_error error;
  myc_step_error errors[MAX_ERRORS];
  myc_view view;
  int64_t sizes[MAX_RANK], strides[MAX_RANK];
  const void* out;
  uint64_t bytes;
  void* handle;
  uint64_t poison_call;
  uint32_t poison_step;
  myc_fused fused;
  char info[1024];
} exec_state;

static uint32_t x_abi(api* a) { return a->abi_version(); }
static int x_new(exec_state* s, const char* device, int32_t threads) {
  s->error.kind = 0;
  return (s->x = s->a.new(device, threads, &s->error)) != NULL;
}
static void x_delete(exec_state* s) { s->a.delete(s->x); }
static uint64_t x_info(exec_state* s) { return s->a.info(s->x, s->info, sizeof s->info); }
static myc_prog* x_prepare(exec_state* s, const uint64_t* words, uint64_t n) {
  s->error.kind = 0;
  return s->a.prepare(s->x, words, n, &s->error);
}
static void x_drop(exec_state* s, myc_prog* p) { s->a.drop(s->x, p); }
static int32_t x_run(exec_state* s, myc_prog* p, const uint64_t* params, uint64_t np, const uint64_t* in, uint64_t ni,
                     const uint64_t* out, uint64_t no, const uint64_t* frees, uint64_t nf, const uint64_t* launches,
                     uint64_t nl, uint64_t call, uint64_t* times) {
  return s->a.run(s->x, p, params, np, in, ni, out, no, frees, nf, launches, nl, call, s->errors, MAX_ERRORS,
                  &s->fused, times);
}
static void x_set_flags(exec_state* s, myc_prog* p, const uint64_t* params, uint64_t np) {
  s->a.set_flags(s->x, p, params, np);
}
static void x_watch(exec_state* s, void* place) { s->a.watch(s->x, place); }
static void x_leave(exec_state* s, int32_t cores) { s->a.leave(s->x, cores); }
// Any thread may call these three, so they write nothing into s.
static myc_module* x_load(exec_state* s, const void* image, uint64_t n, myc_error* e) {
  e->kind = 0;
  return s->a.load(s->x, image, n, e);
}
static uint64_t x_entry(exec_state* s, myc_module* m, const char* name, myc_error* e) {
  e->kind = 0;
  return s->a.entry(s->x, m, name, e);
}
static void x_unload(exec_state* s, myc_module* m) { s->a.unload(s->x, m); }
static void* x_upload_begin(exec_state* s, uint64_t id, uint64_t bytes) {
  s->error.kind = 0;
  return s->a.upload_begin(s->x, id, bytes, &s->error);
}
static int32_t x_upload_end(exec_state* s, uint64_t id) { return s->a.upload_end(s->x, id, &s->error); }
static int32_t x_read(exec_state* s) {
  s->view.sizes = s->sizes;
  s->view.strides = s->strides;
  s->poison_call = 0;
  s->poison_step = 0;
  return s->a.read(s->x, &s->view, &s->out, &s->bytes, &s->handle, &s->poison_call, &s->poison_step, &s->error);
}
static void x_read_done(exec_state* s) { s->a.read_done(s->x, s->handle); }
static void x_free(exec_state* s, const uint64_t* ids, uint64_t n) { s->a.free(s->x, ids, n); }
static void x_poison(exec_state* s, const uint64_t* ids, uint64_t n, uint64_t call, uint32_t step, int32_t kind,
                     const char* text) {
  s->error.kind = kind;
  strncpy(s->error.text, text, sizeof s->error.text - 1);
  s->error.text[sizeof s->error.text - 1] = 0;
  s->a.poison(s->x, ids, n, call, step, &s->error);
}
static int32_t x_sync(exec_state* s) { return s->a.sync(s->x, &s->error); }
static uint64_t x_contents(exec_state* s, uint64_t* out, uint64_t n) { return s->a.contents(s->x, out, n); }
static uint64_t x_state(exec_state* s, char* out, uint64_t n) {
  s->error.kind = 0;
  return s->a.state(s->x, out, n, &s->error);
}
static int32_t x_set_state(exec_state* s, const char* state, uint64_t n) {
  return s->a.set_state(s->x, state, n, &s->error);
}
static void x_trim(api* a) { a->trim(); }
static void x_usage(exec_state* s, uint64_t* storages, uint64_t* bytes) { s->a.usage(s->x, storages, bytes); }
*/
import "C"

import (
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/crash"
)

// The header's numbers must equal proto's, or this does not compile.
const (
	_ = uint(C.MYCELYA_ABI_VERSION-proto.ABIVersion) + uint(proto.ABIVersion-C.MYCELYA_ABI_VERSION)
	_ = uint(C.MAX_ERRORS-MaxErrors) + uint(MaxErrors-C.MAX_ERRORS)
	_ = uint(C.MAX_RANK-program.MaxRank) + uint(program.MaxRank-C.MAX_RANK)
	_ = uint(C.MYC_E_LOST-proto.ErrLost) + uint(proto.ErrLost-C.MYC_E_LOST)
	_ = uint(C.MYC_E_LINALG-proto.ErrLinalg) + uint(proto.ErrLinalg-C.MYC_E_LINALG)
)

// Torch has the paths of PyTorch and the executor, and the device.
type Torch struct {
	Exec    string // libmycelya_exec
	Lib     string // folder with libtorch_cpu
	Device  string // "cpu", "cuda:0"; "" is a GPU if one can be used, else cpu
	Threads int    // 0: PyTorch's default
	Log     *slog.Logger
	Kernels Kernels
	// Progress is where executors note what they run; nil: nowhere. A process with several sessions has none.
	Progress *crash.Progress
}

type torchBackend struct {
	Torch
	api C.api

	cuda func() error // loads PyTorch's CUDA part, once

	mu        sync.Mutex           // guards what follows
	launchers map[string]*launcher // by device; nil if it takes no machine code, or none can be made
}

// Load loads libtorch, then the executor library, which uses it. Nothing is ever unloaded, because ATen does not
// support it.
func (t Torch) Load() (Backend, error) {
	ext := ".so"
	if goruntime.GOOS == "darwin" {
		ext = ".dylib"
	}
	for _, name := range []string{"libc10", "libtorch_cpu"} {
		if _, err := open(filepath.Join(t.Lib, name+ext)); err != nil {
			return nil, Errorf(proto.ErrRuntime,
				"PyTorch could not be loaded: %v. Is the torch of this environment complete? Its libraries are expected in %q.",
				err, t.Lib)
		}
	}
	openCUDA := sync.OnceValue(func() error { return t.openCUDA(ext) })
	cuda := t.wantsCUDA()
	if cuda {
		if err := openCUDA(); err != nil {
			if t.Device != "" {
				return nil, err
			}
			cuda = false
			t.warn(err)
		}
	}
	lib, err := open(t.Exec)
	if err != nil {
		return nil, Errorf(proto.ErrRuntime, "The executor library could not be loaded: %v. "+
			"It may have been built for another version of torch; "+
			"reinstall the package: pip install --force-reinstall --no-deps mycelya-torch.", err)
	}
	b := &torchBackend{Torch: t, cuda: openCUDA, launchers: map[string]*launcher{}}
	if name := C.api_load(lib, &b.api); name != nil {
		return nil, Errorf(
			proto.ErrRuntime,
			"The executor library %q has no function %s. %s",
			t.Exec,
			C.GoString(name),
			otherBuild,
		)
	}
	if v := uint32(C.x_abi(&b.api)); v != proto.ABIVersion {
		return nil, Errorf(proto.ErrRuntime, "The executor library %q has version %d of the ABI, the worker version %d. %s",
			t.Exec, v, proto.ABIVersion, otherBuild)
	}
	if b.Device == "" {
		b.Device = "cpu"
		if cuda {
			b.Device = b.bestDevice()
		}
	}
	return b, nil
}

// localRank is torchrun's variable with the number of a process among those of its host.
const localRank = "LOCAL_RANK"

// bestDevice is the GPU of this process's number, if the host has so many, else the first one, else the CPU.
func (b *torchBackend) bestDevice() string {
	for _, index := range slices.Compact([]string{cmp.Or(os.Getenv(localRank), "0"), "0"}) {
		x, err := b.make("cuda:" + index)
		if err == nil {
			x.Close()
			return "cuda:" + index
		}
		b.warn(err)
	}
	return "cpu"
}

const otherBuild = "It comes from another build: " +
	"reinstall the package: pip install --force-reinstall --no-deps mycelya-torch."

func (t Torch) openCUDA(ext string) error {
	for _, name := range []string{"libc10_cuda", "libtorch_cuda"} {
		path := filepath.Join(t.Lib, name+ext)
		if _, err := os.Stat(path); err != nil {
			return Errorf(proto.ErrRuntime, "The device %q needs a PyTorch with CUDA, but the torch in %q has none (no %s).",
				cmp.Or(t.Device, "cuda:0"), t.Lib, name+ext)
		}
		if _, err := open(path); err != nil {
			return Errorf(proto.ErrRuntime, "PyTorch's CUDA part could not be loaded: %v.", err)
		}
	}
	return nil
}

// warn logs why a GPU cannot be used. The worker tries another one, or computes on the CPU.
func (t Torch) warn(err error) {
	if t.Log != nil {
		t.Log.Warn("this GPU cannot be used; the worker runs on another one, or on the CPU", "error", err)
	}
}

// wantsCUDA is false for "" on a host without a driver: libtorch_cuda takes up to half a second to load.
func (t Torch) wantsCUDA() bool {
	if t.Device == "" {
		_, err := open("libcuda.so.1")
		return err == nil
	}
	return strings.HasPrefix(t.Device, "cuda")
}

func open(path string) (unsafe.Pointer, error) {
	// dlerror is per thread.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	h := C.dlopen(c, C.RTLD_NOW|C.RTLD_LOCAL)
	if h == nil {
		return nil, errors.New(C.GoString(C.dlerror()))
	}
	return h, nil
}

// New implements Backend. Its process may have been started for another device: what this one needs is loaded now.
func (b *torchBackend) New(device string) (Executor, error) {
	device = cmp.Or(device, b.Device)
	if strings.HasPrefix(device, "cuda") {
		if err := b.cuda(); err != nil {
			return nil, err
		}
	}
	x, err := b.make(device)
	if err != nil {
		return nil, err
	}
	if b.Progress != nil {
		C.x_watch(x.s, unsafe.Pointer(b.Progress.Words))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l, known := b.launchers[device]
	if !known {
		l = b.launcherOf(device, x.Info())
		b.launchers[device] = l
	}
	x.launcher = l
	return x, nil
}

// launcherOf starts the launcher of a device, if it takes machine code. An executor without a session, which never
// ends, loads the code.
func (b *torchBackend) launcherOf(device string, info Info) *launcher {
	if info.Arch == "" {
		return nil
	}
	x, err := b.make(device)
	if err == nil {
		var l *launcher
		if l, err = newLauncher(b.Kernels, b.Lib, info, b.Log, x.load); err == nil {
			return l
		}
	}
	if b.Log != nil {
		b.Log.Warn("programs run without fused kernels", "error", err)
	}
	return nil
}

func (b *torchBackend) Trim() { C.x_trim(&b.api) }

func (b *torchBackend) make(device string) (*torchExecutor, error) {
	s := (*C.exec_state)(C.calloc(1, C.sizeof_exec_state))
	s.a = b.api
	d := C.CString(device)
	defer C.free(unsafe.Pointer(d))
	x := &torchExecutor{s: s}
	if C.x_new(s, d, C.int32_t(b.Threads)) == 0 {
		err := x.failure()
		C.free(unsafe.Pointer(s))
		return nil, err
	}
	return x, nil
}

// torchExecutor calls the executor library.
type torchExecutor struct {
	s        *C.exec_state
	launcher *launcher
	report   report
	times    []uint64 // of the next run; nil: it is not timed
}

// torchProgram is a program of the executor, with the launches of its kernels if the device takes machine code.
type torchProgram struct {
	prog   *C.myc_prog
	plans  *plans
	params int
	fused  int // groups
}

// failure returns the error of the last call.
func (x *torchExecutor) failure() *Error { return failure(&x.s.error) }

func failure(e *C.myc_error) *Error {
	out := &Error{Kind: int32(e.kind), Text: C.GoString(&e.text[0])}
	if out.Kind == proto.OK {
		out.Kind, out.Text = proto.ErrRuntime, "The executor failed without a reason."
	}
	return out
}

func words(w []uint64) (*C.uint64_t, C.uint64_t) {
	return (*C.uint64_t)(unsafe.SliceData(w)), C.uint64_t(len(w))
}

func (x *torchExecutor) Info() Info {
	n := C.x_info(x.s)
	var i Info
	if n < C.uint64_t(len(x.s.info)) {
		_ = json.Unmarshal(C.GoBytes(unsafe.Pointer(&x.s.info[0]), C.int(n)), &i)
	}
	return i
}

func (x *torchExecutor) Prepare(p *program.Program, encoded []uint64) (Prepared, error) {
	out := &torchProgram{params: int(p.Params)}
	for _, s := range p.Steps {
		if _, ok := s.(*program.Fused); ok {
			out.fused++
		}
	}
	if x.launcher != nil && out.fused > 0 {
		out.plans = newPlans(x.launcher, p)
	}
	w, n := words(encoded)
	if out.prog = C.x_prepare(x.s, w, n); out.prog == nil {
		return nil, x.failure()
	}
	return out, nil
}

func (x *torchExecutor) Drop(p Prepared) { C.x_drop(x.s, p.(*torchProgram).prog) }

func (x *torchExecutor) Run(p Prepared, params, inputs, outputs, frees []uint64, call uint64) (int, []StepError) {
	prepared := p.(*torchProgram)
	var launches []uint64
	waiting := 0
	if prepared.plans != nil && len(params) == prepared.params {
		launches, waiting = prepared.plans.launches(params)
		x.report.made(prepared.plans.ready())
	}
	pw, np := words(params)
	iw, ni := words(inputs)
	ow, no := words(outputs)
	fw, nf := words(frees)
	lw, nl := words(launches)
	failed := int(C.x_run(x.s, prepared.prog, pw, np, iw, ni/2, ow, no/2, fw, nf, lw, nl, C.uint64_t(call),
		(*C.uint64_t)(unsafe.SliceData(x.times))))
	x.times = nil
	f := &x.s.fused
	k := &proto.Kernels{Groups: uint32(f.groups), Launched: uint32(f.kernels), Ops: uint32(f.calls),
		Tried: uint32(f.tried), Wrong: uint32(f.wrong), Waits: uint32(f.waits)}
	if k.Wrong > 0 {
		k.WrongStep, k.WrongText = uint32(f.step), C.GoString(&f.text[0])
	}
	x.report.ran(prepared.fused, waiting, k)
	if failed == 0 {
		return 0, nil
	}
	errs := make([]StepError, min(failed, MaxErrors))
	for i := range errs {
		e := &x.s.errors[i]
		errs[i] = StepError{Step: uint32(e.step), Cause: Error{Kind: int32(e.error.kind), Text: C.GoString(&e.error.text[0]),
			Call: uint64(e.cause_call), Step: uint32(e.cause_step)}}
	}
	return failed, errs
}

func (x *torchExecutor) SetFlags(p Prepared, params []uint64) {
	pw, np := words(params)
	C.x_set_flags(x.s, p.(*torchProgram).prog, pw, np)
}

func (x *torchExecutor) Leave(cores int) { C.x_leave(x.s, C.int32_t(cores)) }

func (x *torchExecutor) Time(times []uint64) { x.times = times }

func (x *torchExecutor) Fused() *proto.Kernels { return x.report.take(x.launcher) }

// load loads a cubin. Any thread may call it.
func (x *torchExecutor) load(cubin []byte, entries []string) (any, error) {
	e := (*C.myc_error)(C.calloc(1, C.sizeof_myc_error))
	defer C.free(unsafe.Pointer(e))
	m := C.x_load(x.s, unsafe.Pointer(unsafe.SliceData(cubin)), C.uint64_t(len(cubin)), e)
	if m == nil {
		return nil, failure(e)
	}
	c := &code{entries: map[string]uint64{}}
	goruntime.AddCleanup(c, func(m *C.myc_module) { C.x_unload(x.s, m) }, m)
	for _, name := range entries {
		text := C.CString(name)
		c.entries[name] = uint64(C.x_entry(x.s, m, text, e))
		C.free(unsafe.Pointer(text))
		if c.entries[name] == 0 {
			return nil, failure(e)
		}
	}
	return c, nil
}

func (x *torchExecutor) UploadBegin(id, bytes uint64) ([]byte, error) {
	m := C.x_upload_begin(x.s, C.uint64_t(id), C.uint64_t(bytes))
	if m == nil && (bytes > 0 || x.s.error.kind != 0) {
		return nil, x.failure()
	}
	return unsafe.Slice((*byte)(m), bytes), nil
}

func (x *torchExecutor) UploadEnd(id uint64) error {
	if C.x_upload_end(x.s, C.uint64_t(id)) != 0 {
		return x.failure()
	}
	return nil
}

func (x *torchExecutor) Read(v *proto.Read, use func([]byte) error) error {
	if len(v.Sizes) > program.MaxRank || len(v.Strides) != len(v.Sizes) {
		return Errorf(proto.ErrValue, "A view of %d sizes and %d strides cannot be read.", len(v.Sizes), len(v.Strides))
	}
	s := x.s
	s.view = C.myc_view{
		storage: C.uint64_t(
			v.Storage,
		), dtype: C.uint32_t(v.Dtype), rank: C.uint32_t(len(v.Sizes)), offset: C.int64_t(v.Offset),
	}
	for i := range v.Sizes {
		s.sizes[i], s.strides[i] = C.int64_t(v.Sizes[i]), C.int64_t(v.Strides[i])
	}
	if C.x_read(s) != 0 {
		e := x.failure()
		e.Call, e.Step = uint64(s.poison_call), uint32(s.poison_step)
		return e
	}
	defer C.x_read_done(s)
	return use(unsafe.Slice((*byte)(s.out), uint64(s.bytes)))
}

func (x *torchExecutor) Free(ids []uint64) {
	w, n := words(ids)
	C.x_free(x.s, w, n)
}

func (x *torchExecutor) Poison(ids []uint64, e *Error) {
	text := C.CString(e.Text)
	defer C.free(unsafe.Pointer(text))
	w, n := words(ids)
	C.x_poison(x.s, w, n, C.uint64_t(e.Call), C.uint32_t(e.Step), C.int32_t(e.Kind), text)
}

func (x *torchExecutor) Sync() error {
	if C.x_sync(x.s) != 0 {
		return x.failure()
	}
	return nil
}

func (x *torchExecutor) Usage() (storages, bytes uint64) {
	var n, b C.uint64_t
	C.x_usage(x.s, &n, &b)
	return uint64(n), uint64(b)
}

func (x *torchExecutor) Contents() []Content {
	var few [256]uint64
	pairs := few[:]
	for {
		n := int(C.x_contents(x.s, (*C.uint64_t)(unsafe.SliceData(pairs)), C.uint64_t(len(pairs)/2)))
		if 2*n <= len(pairs) {
			pairs = pairs[:2*n]
			break
		}
		pairs = make([]uint64, 2*n)
	}
	out := make([]Content, len(pairs)/2)
	for i := range out {
		out[i] = Content{ID: pairs[2*i], Bytes: pairs[2*i+1]}
		if out[i].Poisoned = out[i].Bytes == math.MaxUint64; out[i].Poisoned {
			out[i].Bytes = 0
		}
	}
	return out
}

func (x *torchExecutor) State() ([]byte, error) {
	out := make([]byte, 64<<10) // a generator on the CPU takes 10 KiB
	for {
		n := int(C.x_state(x.s, (*C.char)(unsafe.Pointer(unsafe.SliceData(out))), C.uint64_t(len(out))))
		switch {
		case n == 0:
			return nil, x.failure()
		case n <= len(out):
			return out[:n], nil
		}
		out = make([]byte, n)
	}
}

func (x *torchExecutor) SetState(state []byte) error {
	if len(state) == 0 {
		return Errorf(proto.ErrValue, "The state is empty.")
	}
	if C.x_set_state(x.s, (*C.char)(unsafe.Pointer(unsafe.SliceData(state))), C.uint64_t(len(state))) != 0 {
		return x.failure()
	}
	return nil
}

func (x *torchExecutor) Close() {
	C.x_delete(x.s)
	C.free(unsafe.Pointer(x.s))
	x.s = nil
}
