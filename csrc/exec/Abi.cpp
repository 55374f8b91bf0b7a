// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Part 3 of csrc/abi/mycelya.h: the only exported symbols. No exception leaves a function here.
#include <ATen/core/Tensor.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "abi/mycelya.h"
#include "exec/memory/Allocator.h"
#include "exec/program/Program.h"
#include "exec/run/Run.h"
#include "exec/session/Executor.h"

using namespace mycelya::exec;

struct myc_exec {
  Executor executor;
};
struct myc_prog {
  std::unique_ptr<Program> program;
};

namespace {

// Returns body(). On an exception, fills the error and returns `otherwise`. exec: the session that memory is taken for.
template <typename R, typename F>
R Guarded(myc_error* error, R otherwise, F body, const myc_exec* exec = nullptr) noexcept {
  try {
    return body();
  } catch (...) {
    try {
      Fill(error, exec != nullptr ? exec->executor.TakeFailure() : CurrentFailure());
    } catch (...) {
      Fill(error, MYC_E_MEMORY, "The executor is out of CPU memory.");
    }
    return otherwise;
  }
}

int32_t KindOf(const myc_error* error) { return error != nullptr ? error->kind : MYC_E_RUNTIME; }

std::string Quoted(const std::string& text) {
  std::string s = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') s += '\\';
    s += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return s + "\"";
}

}  // namespace

#define MYC_EXPORT extern "C" __attribute__((visibility("default")))

MYC_EXPORT uint32_t myc_exec_abi_version() { return MYCELYA_ABI_VERSION; }

MYC_EXPORT myc_exec* myc_exec_new(const char* device, int32_t threads, myc_error* error) {
  return Guarded(error, static_cast<myc_exec*>(nullptr), [&] { return new myc_exec{Executor(device, threads)}; });
}

MYC_EXPORT void myc_exec_delete(myc_exec* exec) {
  if (exec == nullptr) return;
  Guarded(nullptr, 0, [&] {
    Scope scope(exec->executor.device().device());
    delete exec;
    return 0;
  });
}

MYC_EXPORT uint64_t myc_exec_info(myc_exec* exec, char* out, uint64_t capacity) {
  return Guarded(nullptr, uint64_t{0}, [&] {
    const Device& device = exec->executor.device();
    const std::string json =
        "{\"device\":" + Quoted(device.device().str()) + ",\"name\":" + Quoted(device.Name()) +
        ",\"torch\":" + Quoted(TORCH_VERSION) + ",\"memory_bytes\":" + std::to_string(device.MemoryBytes()) +
        ",\"arch\":" + Quoted(device.Arch()) + ",\"processors\":" + std::to_string(device.Processors()) + "}";
    if (json.size() < capacity) std::memcpy(out, json.c_str(), json.size() + 1);
    return static_cast<uint64_t>(json.size());
  });
}

MYC_EXPORT myc_prog* myc_exec_prepare(myc_exec* exec, const uint64_t* words, uint64_t n, myc_error* error) {
  return Guarded(error, static_cast<myc_prog*>(nullptr), [&] {
    const Device& device = exec->executor.device();
    Scope scope(device.device());
    return new myc_prog{Parse(words, n, device)};
  });
}

MYC_EXPORT void myc_exec_drop(myc_exec*, myc_prog* prog) { delete prog; }

MYC_EXPORT int32_t myc_exec_run(myc_exec* exec, myc_prog* prog, const uint64_t* params, uint64_t n_params,
                                const uint64_t* inputs, uint64_t n_inputs, const uint64_t* outputs, uint64_t n_outputs,
                                const uint64_t* frees, uint64_t n_frees, const uint64_t* launches, uint64_t n_launches,
                                uint64_t call_id, myc_step_error* errs, int32_t cap, myc_fused* fused,
                                uint64_t* times) {
  const Call call{params, n_params, inputs,   n_inputs,   outputs, n_outputs,
                  frees,  n_frees,  launches, n_launches, call_id};
  *fused = {};
  myc_error error;
  const int32_t failed = Guarded(&error, int32_t{-1}, [&] {
    Executor& executor = exec->executor;
    Scope scope(executor.device().device());
    std::optional<StepTimes> timed;
    if (times != nullptr) timed.emplace(executor.device(), times, prog->program->steps.size());
    executor.progress.times = timed ? &*timed : nullptr;
    return Run(executor, *prog->program, call, errs, cap, fused);
  });
  exec->executor.progress.times = nullptr;
  if (failed >= 0) return failed;
  if (cap > 0) errs[0] = {kNoStep, kNoStep, call_id, error};
  return 1;
}

MYC_EXPORT void myc_exec_set_flags(myc_exec* exec, myc_prog* prog, const uint64_t* params, uint64_t n_params) {
  Guarded(nullptr, 0, [&] {
    Scope scope(exec->executor.device().device());
    SetFlags(exec->executor, *prog->program, params, n_params);
    return 0;
  });
}

MYC_EXPORT void myc_exec_leave(myc_exec* exec, int32_t cores) { exec->executor.Leave(cores); }

// The executor keeps no state of modules, so any thread may load them.
MYC_EXPORT myc_module* myc_exec_load(myc_exec* exec, const void* image, uint64_t bytes, myc_error* error) {
  return Guarded(error, static_cast<myc_module*>(nullptr),
                 [&] { return static_cast<myc_module*>(exec->executor.device().LoadCode(image, bytes)); });
}

MYC_EXPORT uint64_t myc_exec_entry(myc_exec* exec, myc_module* module, const char* name, myc_error* error) {
  return Guarded(error, uint64_t{0},
                 [&] { return reinterpret_cast<uint64_t>(exec->executor.device().EntryOf(module, name)); });
}

MYC_EXPORT void myc_exec_unload(myc_exec* exec, myc_module* module) {
  Guarded(nullptr, 0, [&] {
    exec->executor.device().UnloadCode(module);
    return 0;
  });
}

MYC_EXPORT void* myc_exec_upload_begin(myc_exec* exec, uint64_t id, uint64_t bytes, myc_error* error) {
  return Guarded(
      error, static_cast<void*>(nullptr),
      [&] {
        Scope scope(exec->executor.device().device());
        return exec->executor.BeginUpload(id, bytes);
      },
      exec);
}

MYC_EXPORT int32_t myc_exec_upload_end(myc_exec* exec, uint64_t id, myc_error* error) {
  const bool ok = Guarded(
      error, false,
      [&] {
        Scope scope(exec->executor.device().device());
        exec->executor.EndUpload(id);
        return true;
      },
      exec);
  return ok ? MYC_OK : KindOf(error);
}

MYC_EXPORT int32_t myc_exec_read(myc_exec* exec, const myc_view* view, const void** out, uint64_t* bytes, void** handle,
                                 uint64_t* poison_call, uint32_t* poison_step, myc_error* error) {
  *out = nullptr;
  *handle = nullptr;
  *bytes = *poison_call = *poison_step = 0;
  const bool ok = Guarded(
      error, false,
      [&] {
        Scope scope(exec->executor.device().device());
        PoisonPtr poison;
        *handle = exec->executor.Read(*view, out, bytes, &poison).release();
        if (!poison) return true;
        *poison_call = poison->call;
        *poison_step = poison->step;
        Fill(error, poison->failure);
        return false;
      },
      exec);
  return ok ? MYC_OK : KindOf(error);
}

MYC_EXPORT void myc_exec_read_done(myc_exec* exec, void* handle) {
  Guarded(nullptr, 0, [&] {
    exec->executor.EndRead(static_cast<Reading*>(handle));
    return 0;
  });
}

MYC_EXPORT void myc_exec_free(myc_exec* exec, const uint64_t* ids, uint64_t n) {
  Guarded(nullptr, 0, [&] {
    exec->executor.Free(ids, n);
    return 0;
  });
}

MYC_EXPORT void myc_exec_poison(myc_exec* exec, const uint64_t* ids, uint64_t n, uint64_t call, uint32_t step,
                                const myc_error* error) {
  Guarded(nullptr, 0, [&] {
    const auto poison = std::make_shared<const Poison>(Poison{call, step, {error->kind, error->text}});
    for (uint64_t i = 0; i < n; ++i) exec->executor.PoisonNew(ids[i], poison);
    return 0;
  });
}

MYC_EXPORT int32_t myc_exec_sync(myc_exec* exec, myc_error* error) {
  const bool ok = Guarded(error, false, [&] {
    exec->executor.device().Synchronize();
    return true;
  });
  return ok ? MYC_OK : KindOf(error);
}

MYC_EXPORT void myc_exec_usage(myc_exec* exec, uint64_t* storages, uint64_t* bytes) {
  exec->executor.Usage(storages, bytes);
}

MYC_EXPORT uint64_t myc_exec_contents(myc_exec* exec, uint64_t* out, uint64_t capacity) {
  return Guarded(nullptr, uint64_t{0}, [&] {
    const std::vector<Content> all = exec->executor.Contents();
    for (uint64_t i = 0; i < all.size() && i < capacity; ++i) {
      out[2 * i] = all[i].id;
      out[2 * i + 1] = all[i].bytes;
    }
    return uint64_t{all.size()};
  });
}

MYC_EXPORT uint64_t myc_exec_state(myc_exec* exec, char* out, uint64_t capacity, myc_error* error) {
  return Guarded(error, uint64_t{0}, [&] {
    const std::string state = exec->executor.State();
    std::memcpy(out, state.data(), std::min<uint64_t>(capacity, state.size()));
    return uint64_t{state.size()};
  });
}

MYC_EXPORT int32_t myc_exec_set_state(myc_exec* exec, const char* state, uint64_t n, myc_error* error) {
  const bool ok = Guarded(error, false, [&] {
    exec->executor.SetState(std::string(state, n));
    return true;
  });
  return ok ? MYC_OK : KindOf(error);
}

MYC_EXPORT void myc_exec_trim() {
  Guarded(nullptr, 0, [] {
    EmptyCpuMemory();
    return 0;
  });
}

MYC_EXPORT void myc_exec_watch(myc_exec* exec, uint64_t* place) { exec->executor.progress.place = place; }

// The header has only the types of these functions; a different signature must not compile.
#define MYC_SAME(name) static_assert(std::is_same_v<decltype(&myc_exec_##name), myc_exec_fn_##name>)
MYC_SAME(abi_version);
MYC_SAME(new);
MYC_SAME(delete);
MYC_SAME(info);
MYC_SAME(prepare);
MYC_SAME(drop);
MYC_SAME(run);
MYC_SAME(load);
MYC_SAME(entry);
MYC_SAME(unload);
MYC_SAME(set_flags);
MYC_SAME(upload_begin);
MYC_SAME(upload_end);
MYC_SAME(read);
MYC_SAME(read_done);
MYC_SAME(free);
MYC_SAME(poison);
MYC_SAME(sync);
MYC_SAME(usage);
MYC_SAME(contents);
MYC_SAME(state);
MYC_SAME(set_state);
MYC_SAME(trim);
MYC_SAME(watch);
