// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// clang-format off
//go:build cgo && linux
//  clang-format on

#define _GNU_SOURCE
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

// Go's runtime turns a fault in any library into a page of registers and exit code 2. These handlers leave Go the faults
// of its own code, which it turns into panics. Any other fault ends the process by its signal, which the supervisor sees.
static struct sigaction go_actions[NSIG];
static uintptr_t text_begin = UINTPTR_MAX, text_end;

static int find_text(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size, (void)data;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* h = &info->dlpi_phdr[i];
    if (h->p_type != PT_LOAD || (h->p_flags & PF_X) == 0) continue;
    const uintptr_t begin = info->dlpi_addr + h->p_vaddr;
    if (begin < text_begin) text_begin = begin;
    if (begin + h->p_memsz > text_end) text_end = begin + h->p_memsz;
  }
  return 1;  // the first object is this program
}

static uintptr_t counter_of(void* context) {
  const ucontext_t* c = context;
#if defined(__x86_64__)
  return (uintptr_t)c->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  return (uintptr_t)c->uc_mcontext.pc;
#else
  (void)c;
  return text_begin;
#endif
}

static void on_fault(int number, siginfo_t* info, void* context) {
  const uintptr_t pc = counter_of(context);
  const int sent = info->si_code <= 0;  // by a process, so it does not come again by itself
  if (!sent && pc >= text_begin && pc < text_end) {
    go_actions[number].sa_sigaction(number, info, context);
    return;
  }
  signal(number, SIG_DFL);
  if (sent) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
}

void myc_die_by_signal(void) {
  dl_iterate_phdr(find_text, NULL);
  const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
    struct sigaction action;
    sigaction(faults[i], NULL, &go_actions[faults[i]]);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigfillset(&action.sa_mask);
    sigaction(faults[i], &action, NULL);
  }
  signal(SIGABRT, SIG_DFL);
  signal(SIGXCPU, SIG_DFL);
}
