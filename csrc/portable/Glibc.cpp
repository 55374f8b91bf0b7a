// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Makes libraries that are linked with a newer glibc run with glibc 2.28, which torch's own wheels need
// (manylinux_2_28). glibc keeps former versions of a function beside the newest, and the linker takes the newest. Each
// function below is hidden, so the linker resolves the library's calls to it, and it calls the version that all systems
// have. auditwheel (scripts/wheels.py) names a symbol that is too new; it gets a row here. No header of glibc is
// included, because its declarations would conflict with these.
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#if defined(__x86_64__)
#define MYC_FIRST "GLIBC_2.2.5"  // the first version of glibc for this processor
#else
#define MYC_FIRST "GLIBC_2.17"
#endif

#define MYC_HIDDEN __attribute__((visibility("hidden")))

#define MYC_FORMER(result, name, parameters, arguments)     \
  __asm__(".symver former_" #name "," #name "@" MYC_FIRST); \
  result former_##name parameters noexcept;                 \
  MYC_HIDDEN result name parameters noexcept { return former_##name arguments; }

extern "C" {
// Since 2.29 without the error handling of System V. The values are the same.
MYC_FORMER(double, exp, (double x), (x))
MYC_FORMER(double, exp2, (double x), (x))
MYC_FORMER(double, log, (double x), (x))
MYC_FORMER(double, log2, (double x), (x))
MYC_FORMER(double, pow, (double x, double y), (x, y))

// Since 2.34 in libc.so.6 and not in libdl and libpthread, which torch's libraries load.
MYC_FORMER(int, dladdr, (const void* address, void* info), (address, info))
MYC_FORMER(char*, dlerror, (), ())
MYC_FORMER(void*, dlopen, (const char* path, int flags), (path, flags))
MYC_FORMER(void*, dlsym, (void* handle, const char* name), (handle, name))

__asm__(".symver former_pthread_once,pthread_once@" MYC_FIRST);
int former_pthread_once(int* control, void (*function)());  // the function may throw
MYC_HIDDEN int pthread_once(int* control, void (*function)()) { return former_pthread_once(control, function); }

// Since 2.32. libstdc++ counts references without atomic operations while it is not 0. Python has several threads.
MYC_HIDDEN extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}

#endif
