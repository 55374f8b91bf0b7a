// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build cgo

package supervisor

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>

// NVML's functions and structures, as far as they are used here (NVIDIA's nvml.h). A result of 0 is success.
typedef void* nvml_device;
typedef struct { unsigned int gpu, memory; } nvml_rates;
typedef struct {
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance, compute_instance;
} nvml_process;

typedef struct {
  int (*init)(void);
  int (*count)(unsigned int*);
  int (*by_index)(unsigned int, nvml_device*);
  int (*uuid)(nvml_device, char*, unsigned int);
  int (*rates)(nvml_device, nvml_rates*);
  int (*temperature)(nvml_device, int, unsigned int*);
  int (*power)(nvml_device, unsigned int*);
  int (*clock)(nvml_device, int, unsigned int*);
  int (*processes)(nvml_device, unsigned int*, nvml_process*);
} nvml;

// Loads the library and starts it; 0 if it cannot be used. A function that an old driver lacks stays NULL.
static int nvml_load(nvml* n) {
  void* lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (lib == NULL) return 0;
  *(void**)&n->init = dlsym(lib, "nvmlInit_v2");
  *(void**)&n->count = dlsym(lib, "nvmlDeviceGetCount_v2");
  *(void**)&n->by_index = dlsym(lib, "nvmlDeviceGetHandleByIndex_v2");
  *(void**)&n->uuid = dlsym(lib, "nvmlDeviceGetUUID");
  *(void**)&n->rates = dlsym(lib, "nvmlDeviceGetUtilizationRates");
  *(void**)&n->temperature = dlsym(lib, "nvmlDeviceGetTemperature");
  *(void**)&n->power = dlsym(lib, "nvmlDeviceGetPowerUsage");
  *(void**)&n->clock = dlsym(lib, "nvmlDeviceGetClockInfo");
  *(void**)&n->processes = dlsym(lib, "nvmlDeviceGetComputeRunningProcesses_v3");
  return n->init && n->count && n->by_index && n->uuid && n->init() == 0;
}
static int nvml_count(nvml* n, unsigned int* out) { return n->count(out); }
static int nvml_by_index(nvml* n, unsigned int i, nvml_device* out) { return n->by_index(i, out); }
static int nvml_uuid(nvml* n, nvml_device d, char* out, unsigned int size) { return n->uuid(d, out, size); }
static int nvml_rates_of(nvml* n, nvml_device d, nvml_rates* out) { return n->rates ? n->rates(d, out) : 1; }
// 0 is the sensor of the die.
static int nvml_temperature(nvml* n, nvml_device d, unsigned int* out) {
  return n->temperature ? n->temperature(d, 0, out) : 1;
}
static int nvml_power(nvml* n, nvml_device d, unsigned int* out) { return n->power ? n->power(d, out) : 1; }
// 1 is the clock of the multiprocessors.
static int nvml_clock(nvml* n, nvml_device d, unsigned int* out) { return n->clock ? n->clock(d, 1, out) : 1; }
static int nvml_processes(nvml* n, nvml_device d, unsigned int* count, nvml_process* out) {
  return n->processes ? n->processes(d, count, out) : 1;
}
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

const (
	uuidBytes   = 96
	maxGPUUsers = 256 // processes of one GPU that are listed
	noBytes     = ^C.ulonglong(0)
)

// DriverGPUs returns a function that asks NVIDIA's driver about the GPUs that CUDA shows to this process. It returns
// nothing if NVML cannot be loaded, which is tried once, at the first call. The function may be called concurrently.
func DriverGPUs() func() []GPU {
	library := new(C.nvml)
	load := sync.OnceValue(func() bool { return C.nvml_load(library) != 0 })
	var mu sync.Mutex
	return func() []GPU {
		mu.Lock()
		defer mu.Unlock()
		if !load() {
			return nil
		}
		return gpus(library)
	}
}

func gpus(n *C.nvml) (out []GPU) {
	var count C.uint
	if C.nvml_count(n, &count) != 0 {
		return nil
	}
	devices := make([]C.nvml_device, count) // by the driver's number; nil: it may not be used
	uuids := make([]string, count)
	for i := range devices {
		if C.nvml_by_index(n, C.uint(i), &devices[i]) == 0 {
			uuids[i] = uuidOf(n, devices[i])
		}
	}
	value, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	for i, v := range visibleGPUs(set, value, int(count)) {
		for number, device := range devices {
			is := v.uuid == "" && v.number == number || v.uuid != "" && strings.HasPrefix(uuids[number], v.uuid)
			if is && device != nil {
				out = append(out, gpuOf(n, device, fmt.Sprintf("cuda:%d", i)))
				break
			}
		}
	}
	return out
}

func uuidOf(n *C.nvml, d C.nvml_device) string {
	var text [uuidBytes]C.char
	if C.nvml_uuid(n, d, &text[0], uuidBytes) != 0 {
		return ""
	}
	text[uuidBytes-1] = 0
	return C.GoString(&text[0])
}

func gpuOf(n *C.nvml, d C.nvml_device, name string) GPU {
	g := GPU{Device: name, Utilization: -1, MemoryUtilization: -1, Temperature: -1, Power: -1, Clock: -1,
		Memory: map[uint32]float64{}}
	var rates C.nvml_rates
	if C.nvml_rates_of(n, d, &rates) == 0 {
		g.Utilization, g.MemoryUtilization = float64(rates.gpu), float64(rates.memory)
	}
	var number C.uint
	if C.nvml_temperature(n, d, &number) == 0 {
		g.Temperature = float64(number)
	}
	if C.nvml_power(n, d, &number) == 0 {
		g.Power = float64(number)
	}
	if C.nvml_clock(n, d, &number) == 0 {
		g.Clock = float64(number)
	}
	var processes [maxGPUUsers]C.nvml_process
	number = maxGPUUsers
	if C.nvml_processes(n, d, &number, &processes[0]) == 0 {
		for _, p := range processes[:min(number, maxGPUUsers)] {
			if p.bytes != noBytes { // in a container the driver may not tell
				g.Memory[uint32(p.pid)] = float64(p.bytes)
			}
		}
	}
	return g
}
