// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build cgo && linux

package kernels

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// NVRTC's names and types, because only CUDA has its header.
typedef void* program;
typedef struct {
  const char* (*error)(int);
  int (*version)(int*, int*);
  int (*create)(program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(program*);
  int (*compile)(program, int, const char* const*);
  int (*cubin_size)(program, size_t*);
  int (*cubin)(program, char*);
  int (*log_size)(program, size_t*);
  int (*log)(program, char*);
} api;

// Fills a; returns the first missing name, or NULL.
static const char* api_load(void* lib, api* a) {
#define LOAD(field, name) \
  *(void**)&a->field = dlsym(lib, name); \
  if (!a->field) return name;
  LOAD(error, "nvrtcGetErrorString")
  LOAD(version, "nvrtcVersion")
  LOAD(create, "nvrtcCreateProgram")
  LOAD(destroy, "nvrtcDestroyProgram")
  LOAD(compile, "nvrtcCompileProgram")
  LOAD(cubin_size, "nvrtcGetCUBINSize")
  LOAD(cubin, "nvrtcGetCUBIN")
  LOAD(log_size, "nvrtcGetProgramLogSize")
  LOAD(log, "nvrtcGetProgramLog")
  return NULL;
}

typedef struct {
  int status;
  char *cubin, *log;
  size_t cubin_size, log_size;
} result;

// One compilation. The caller frees cubin and log.
static result compile(api* a, const char* source, const char* const* options, int n) {
  result r = {0};
  program p;
  if ((r.status = a->create(&p, source, "kernel.cu", 0, NULL, NULL)) != 0) return r;
  r.status = a->compile(p, n, options);
  if (a->log_size(p, &r.log_size) == 0 && r.log_size > 0) {
    r.log = malloc(r.log_size);
    if (r.log == NULL || a->log(p, r.log) != 0) r.log_size = 0;
  }
  if (r.status == 0 && (r.status = a->cubin_size(p, &r.cubin_size)) == 0) {
    r.cubin = malloc(r.cubin_size);
    r.status = r.cubin == NULL ? 1 : a->cubin(p, r.cubin); // 1: NVRTC_ERROR_OUT_OF_MEMORY
  }
  a->destroy(&p);
  return r;
}
static const char* error_text(api* a, int status) { return a->error(status); }
static int version(api* a, int* major, int* minor) { return a->version(major, minor); }
*/
import "C"

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// NVRTC is CUDA's compiler. It needs no GPU, and its methods may be called at the same time.
type NVRTC struct {
	api          *C.api
	major, minor C.int
}

// Find returns the path of libnvrtc in torch's packages, site-packages/nvidia/*/lib or site-packages/torch/lib; "" if
// there is none.
func Find(torchLib string) string {
	packages := filepath.Dir(filepath.Dir(torchLib))
	var found []string
	for _, pattern := range []string{"nvidia/*/lib/libnvrtc.so.*", "torch/lib/libnvrtc*.so*"} {
		matches, _ := filepath.Glob(filepath.Join(packages, pattern)) // only a wrong pattern fails
		// The newest first.
		slices.SortFunc(matches, func(a, b string) int { return slices.Compare(numbersIn(b), numbersIn(a)) })
		for _, m := range matches {
			if !strings.Contains(filepath.Base(m), "builtins") && !strings.Contains(filepath.Base(m), ".alt.") {
				found = append(found, m)
			}
		}
	}
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// numbersIn returns the version in the name of a library: 12 and 10 of libnvrtc.so.12.10.
func numbersIn(path string) (out []int) {
	for _, part := range strings.Split(filepath.Base(path), ".") {
		if n, err := strconv.Atoi(part); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// Open loads the library at a path. It is never unloaded.
func Open(path string) (*NVRTC, error) {
	text := C.CString(path)
	defer C.free(unsafe.Pointer(text))
	lib := C.dlopen(text, C.RTLD_NOW|C.RTLD_LOCAL)
	if lib == nil {
		return nil, fmt.Errorf("NVRTC could not be loaded: %s", C.GoString(C.dlerror()))
	}
	n := &NVRTC{api: (*C.api)(C.calloc(1, C.sizeof_api))}
	if missing := C.api_load(lib, n.api); missing != nil {
		return nil, fmt.Errorf("%s is not NVRTC: it has no %s", path, C.GoString(missing))
	}
	if status := C.version(n.api, &n.major, &n.minor); status != 0 {
		return nil, fmt.Errorf("NVRTC does not return its version: %s", C.GoString(C.error_text(n.api, status)))
	}
	return n, nil
}

// Version names the version that a cubin depends on.
func (n *NVRTC) Version() string { return fmt.Sprintf("nvrtc %d.%d", n.major, n.minor) }

// Compile compiles a source to a cubin for an architecture, "sm_90". An error contains the log; without an error the
// log has warnings.
func (n *NVRTC) Compile(source, arch string, options []string) (cubin []byte, log string, err error) {
	all := append([]string{"--gpu-architecture=" + arch}, options...)
	list := (*[1 << 10]*C.char)(C.calloc(C.size_t(len(all)), C.size_t(unsafe.Sizeof((*C.char)(nil)))))
	defer C.free(unsafe.Pointer(list))
	for i, o := range all {
		list[i] = C.CString(o)
		defer C.free(unsafe.Pointer(list[i]))
	}
	text := C.CString(source)
	defer C.free(unsafe.Pointer(text))
	r := C.compile(n.api, text, (**C.char)(unsafe.Pointer(list)), C.int(len(all)))
	defer C.free(unsafe.Pointer(r.cubin))
	defer C.free(unsafe.Pointer(r.log))
	if r.log_size > 0 {
		log = C.GoStringN(r.log, C.int(r.log_size-1)) // without the final 0
	}
	if r.status != 0 {
		return nil, log, fmt.Errorf("NVRTC: %s\n%s", C.GoString(C.error_text(n.api, r.status)), log)
	}
	return C.GoBytes(unsafe.Pointer(r.cubin), C.int(r.cubin_size)), log, nil
}
