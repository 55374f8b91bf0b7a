// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The Go client library. It is loaded on first use, so that an import starts no Go runtime, thread or socket.
#ifndef MYCELYA_DEVICE_CLIENT_CLIENT_H_
#define MYCELYA_DEVICE_CLIENT_CLIENT_H_

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>

#include "abi/mycelya.h"
#include "device/client/State.h"

namespace mycelya {

// The functions of part 2 of csrc/abi/mycelya.h.
struct Client {
  myc_fn_abi_version abi_version;
  myc_fn_define_op define_op;
  myc_fn_define_code define_code;
  myc_fn_define_call define_call;
  myc_fn_place place;
  myc_fn_open open;
  myc_fn_close close;
  myc_fn_ended ended;
  myc_fn_flush flush;
  myc_fn_failure failure;
  myc_fn_room room;
  myc_fn_upload upload;
  myc_fn_forget forget;
  myc_fn_read read;
  myc_fn_sync sync;
  myc_fn_ask ask;
  myc_fn_answer answer;
  myc_fn_wait wait;
  myc_fn_cancel cancel;
  myc_fn_metrics metrics;
  myc_fn_reset_metrics reset_metrics;
  myc_fn_bill bill;
  myc_fn_busy busy;
  myc_fn_uploading uploading;
  myc_fn_downloading downloading;
  myc_fn_explain explain;
  myc_fn_pending pending;
  myc_fn_start start;
  myc_fn_device_info device_info;
  myc_fn_profile profile;
  myc_fn_profiled profiled;
  myc_fn_fork_fds fork_fds;
};

// Which worker to start: the fields of myc_config with these names.
struct Machine {
  std::string provider, device, name, options;
  c10::DeviceIndex first = -1;  // the machine's first device, if this is another one of its worker
};

// Where the four artefacts are, and the machine of a device that is opened without one; kept until the library is
// loaded.
struct Paths {
  std::string library, worker, exec, torch_lib;
  Machine machine;
};

// What this layer asks of those above it.
struct Above {
  void (*life_begins)(c10::DeviceIndex), (*life_ends)(c10::DeviceIndex);
  myc_origin (*place)();  // where this thread is in the user's program
};

// Comes before all others.
void SetPaths(Paths paths, Above above);

bool ClientLoaded();

// Loads the library if necessary. Throws if it is missing or has another version.
const Client& GetClient();

// The same, with device index open. Opens device 0 if it was never open; any other device throws if it is not open.
const Client& ClientFor(c10::DeviceIndex index);
// Whether there is a session that this process may use.
bool IsOpen(c10::DeviceIndex index);
// Whether there was one, and its owner has closed it.
bool IsClosed(c10::DeviceIndex index);
// Opens a device, which begins a life of its index; does nothing if it is open.
void OpenDevice(c10::DeviceIndex index, const Machine& machine);
// Ends the session of a device and the life of its index; fine if there is none. Then only OpenDevice opens it again.
void CloseDevice(c10::DeviceIndex index);
// Notes that the session of a device is paused, or that it goes on. Meanwhile ClientFor throws, and the tensors stay.
void SetPaused(c10::DeviceIndex index, bool paused);
bool IsPaused(c10::DeviceIndex index);
// The life of a device: "new", "running", "paused", "stopped" or "lost".
std::string DeviceState(c10::DeviceIndex index);
// Closes all devices for good: nothing can be opened any more.
void ShutDown();

// Starts the worker of a device if it does not run.
void StartWorker(c10::DeviceIndex index);
// Facts of a device's worker, as JSON. Starts it if it does not run.
std::string WorkerInfo(c10::DeviceIndex index);
// What a device's worker computes on. If only the worker can tell, it is started.
Worker WorkerOf(c10::DeviceIndex index);
// Whether two devices are of one machine, so that its worker can copy between them.
bool OnOneMachine(c10::DeviceIndex a, c10::DeviceIndex b);
// Whether the worker of a device that has been started runs beside this process.
bool IsOfThisHost(c10::DeviceIndex index);

// Tells Go the name of an op or a code object, now or when the library is loaded.
void DefineOp(uint64_t hash, const std::string& name);
void DefineCode(uint32_t code, const char* file, const char* function, const int32_t* lines, uint64_t n);
void DefineCall(uint32_t code, myc_origin place, myc_origin caller);

// Tells the client library that a block of shared memory is closed.
void ForgetBlock(uint64_t block);

// Descriptors of open sessions; 0 if the library isn't loaded.
int32_t ForkDescriptors(int32_t* out, int32_t capacity);

// Throws the Python exception of the error's kind, unless it is MYC_OK.
void Raise(const myc_error& error);
[[noreturn]] void Raise(int32_t kind, const std::string& text);
// The number of DeviceLostErrors that were thrown, of all devices.
uint64_t LossesRaised();

// The text that a function of the client library writes: write(out, capacity, error) returns the length needed, 0 with
// the error set.
template <class F>
std::string TextOf(F&& write) {
  std::string out(1 << 12, '\0');
  auto error = std::make_unique<myc_error>();
  uint64_t need;
  while ((need = write(out.data(), out.size(), error.get())) >= out.size()) out.resize(need + 1);
  if (need == 0) Raise(*error);
  out.resize(need);
  return out;
}

// Releases the GIL for its lifetime, if this thread holds it.
class NoGil {
 public:
  NoGil();
  ~NoGil();
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  void* saved_;
};

// Waits for a ticket, without the GIL. Returns false if a Python signal handler has raised: Ctrl-C. Then the ticket has
// not ended, and the caller calls RaiseInterrupt(). Otherwise the error is the ticket's outcome.
bool WaitInterruptibly(const Client& c, uint64_t ticket, myc_error& error);
[[noreturn]] void RaiseInterrupt();

// Waits for a ticket, and sets the error to its outcome. Ctrl-C ends the ticket and raises KeyboardInterrupt.
void Wait(const Client& c, uint64_t ticket, myc_error& error);
// The same, and throws the error.
void WaitFor(const Client& c, uint64_t ticket);

// Whether a ticket has ended, without waiting. If so, sets the ticket to 0 and the error to its outcome.
bool HasEnded(const Client& c, uint64_t& ticket, myc_error& error);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_CLIENT_CLIENT_H_
