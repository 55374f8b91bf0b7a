// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The only header that C++ and Go both see. Plain C. Three parts:
//   1. the trace format, written by csrc/device and read by capture (Go);
//   2. the client library: functions that client (Go, c-shared) exports and csrc/device loads with dlopen;
//   3. the executor: functions that csrc/exec exports and worker (Go) loads with dlopen.
//
// words.h and kernel_ops.h have the numbers; catalogue/gen writes them. Any change of the ABI raises
// MYCELYA_ABI_VERSION (catalogue.ABIVersion).
//
// A function uses the memory behind a pointer argument only during the call, unless its comment says otherwise.
#ifndef MYCELYA_ABI_MYCELYA_H_
#define MYCELYA_ABI_MYCELYA_H_

#include <stddef.h>
#include <stdint.h>

#include "kernel_ops.h"
#include "words.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------------------------------------------------------
// 1. The trace
// ---------------------------------------------------------------------------------------------------------------

// A trace is three streams of 64-bit words, all in record order:
//   skeleton    the operators and their data flow, hashed into the key. Passes rely on the skeleton only.
//   parameters  sizes, strides, offsets and numbers, one word each (a complex number: two). Never hashed.
//   bindings    the storage id of each local storage number, in order of first sight. Never hashed.
//
// Grammar of the skeleton. The low 8 bits of a word are its tag; other fields have their bit ranges behind their names.
//
//   trace  = { record }
//   record = head ophash { arg } { result }
//   head   = MYC_W_RECORD  flags:8..15 (MYC_R_*)  nargs:16..31  nresults:32..47
//   ophash = FNV-1a 64 of the op's full name "aten::add.Tensor" ("aten::mm" if the overload is empty)
//   arg    = one of
//     MYC_W_NONE                                          an absent optional
//     tensor                                              see below
//     MYC_W_NUMBER  kind:8..15 (MYC_N_*)                  a Python number (Scalar, float, or wrapped-number tensor):
//                                                         1 parameter (double bits / int64 / 0 or 1), complex: 2
//     MYC_W_SCALAR  dtype:8..15                           a 0-dim CPU tensor that is not a wrapped number: its element,
//                                                         1 parameter (little endian, zero-extended); c128: 2
//     MYC_W_SIZE                                          a size-like integer >= 2: 1 parameter
//     MYC_W_INT     then one word                         a literal integer (sizes < 2 too)
//     MYC_W_FLOAT   then one word                         a literal double
//     MYC_W_BOOL    value:8..15
//     MYC_W_DTYPE   dtype:8..15
//     MYC_W_LAYOUT | MYC_W_DEVICE | MYC_W_MEMFMT  value:8..15
//                                                         layout, memory format: PyTorch's number; device: 0, "this
//                                                         device"
//     MYC_W_STR     bytes:8..39 then ceil(bytes/8) words, zero padded
//     MYC_W_GEN                                           a generator: 1 parameter, its id (0 = the device's default)
//     MYC_W_LIST    kind:8..15 (MYC_L_*)  n:16..47        then n args
//   tensor = MYC_W_TENSOR  dtype:8..15  rank:16..23  flags:24..31 (MYC_T_*)  local:32..63
//            then, unless MYC_T_SAME, a geometry: the classes of the dims (MYC_D_*), 2 bits per dim from bit 0, 32 dims
//            to a word and at least one word; then, unless MYC_T_CONTIG, the classes of the strides in the same form.
//            rank <= MYC_MAX_RANK.
//            Parameters of a geometry, in order: rank sizes; rank strides unless CONTIG; the storage offset in elements
//            unless OFF0; the storage's size in bytes if FIRST and not WHOLE.
//   result = MYC_W_NONE                                   an undefined tensor
//          | tensor                                       a new storage (FIRST, WHOLE, a new local), with geometry
//          | MYC_W_LIST n:16..47 then n results           a Tensor[] return
//
// A record's results are those of its returns that are new tensors. Returns that alias a written argument are not
// listed, nor are returns that are not tensors. Local numbers count storages from 0 in order of first sight. A FIRST
// argument is an input of the trace; the trace makes a FIRST result. SAME: the tensor has the geometry and dtype with
// which the trace first saw the storage, or that mycelya::resize_storage last gave it.
//
// Records that are not PyTorch ops:
//   mycelya::empty() -> result                            an uninitialised storage, at its first sight
//   mycelya::resize_storage(tensor!, size)                tensor: the storage as u8[old bytes], MYC_T_WRITE;
//                           size: SIZE or INT, the new bytes. Keeps the common prefix. The storage's defining geometry
//                           becomes u8[new bytes].
//   mycelya::manual_seed(GEN, NUMBER seed)                MYC_R_EFFECT
//   mycelya::get_rng_state(GEN) -> u8[n]                  MYC_R_EFFECT
//   mycelya::set_rng_state(GEN, tensor u8[n])             MYC_R_EFFECT
//   mycelya::record_event(NUMBER id)                      MYC_R_EFFECT; takes the device's time when it runs
//   mycelya::elapsed(NUMBER id, NUMBER id) -> f64[]       MYC_R_EFFECT; milliseconds from one event to another
//   mycelya::forget_event(NUMBER id)                      MYC_R_EFFECT
//   mycelya::memory_info() -> i64[2]                      MYC_R_EFFECT; free and total bytes of the device
//   mycelya::memory_stats() -> i64[MYC_M_NUMBERS]         MYC_R_EFFECT; statistics of the worker's allocator for the
//                           device, in the order of torch.cuda.memory_stats: for each of allocation, segment, active,
//                           inactive_split, reserved_bytes, active_bytes, inactive_split_bytes, and for each of all,
//                           small_pool, large_pool: current, peak, allocated, freed; then num_alloc_retries, num_ooms,
//                           num_device_alloc, num_device_free
//   mycelya::reset_memory_stats(NUMBER MYC_M_*)           MYC_R_EFFECT; sets peaks to current values, or totals to 0
//   mycelya::empty_cache()                                MYC_R_EFFECT; returns memory kept for reuse to the system
//   mycelya::capability() -> i64[2]                       MYC_R_EFFECT; CUDA's compute capability, or 0 and 0
//   mycelya::has_operators(STR schemas) -> i64[n]         MYC_R_EFFECT; for each line of `schemas`, whether it is the
//                           schema of another library's operator that the worker can run and allows, 1 or 0
//   mycelya::set_flag(STR "name=value")                   MYC_R_EFFECT; a global flag of PyTorch, listed in
//                           exec/operators/Flags.cpp
//   mycelya::comm_*                                       MYC_R_EFFECT; collectives among workers, listed in
//                           exec/operators/Collective.cpp. Their numbers are NUMBERs.
//   mycelya::set_default_dtype(DTYPE)                     MYC_R_EFFECT; precedes the first op that the program called
//                           under a default dtype other than the worker's (f32 at the start)
//
// MYC_R_DYNAMIC: only the worker knows the shapes of the record's results. The first listed result is i64[n] and not a
// return of the op. It holds MYC_SHAPE_WORDS words for each fresh result, in order: dtype, rank, MYC_SHAPE_RANK sizes
// and MYC_SHAPE_RANK strides (elements); unused words are 0. The fresh results follow as u8[0]. The storage of each
// gets the bytes that the op made, from offset 0. The trace ends with this record.
enum { MYC_M_PEAKS = 1, MYC_M_TOTALS = 2, MYC_M_NUMBERS = 7 * 3 * 4 + 4 };
enum { MYC_JOIN_BYTES = 64 << 10 };  // of the result of mycelya::comm_join
enum { MYC_SHAPE_RANK = 32, MYC_SHAPE_WORDS = 2 + 2 * MYC_SHAPE_RANK };
enum { MYC_MAX_RANK = 255 };

// ---------------------------------------------------------------------------------------------------------------
// 2. The client library (client)
// ---------------------------------------------------------------------------------------------------------------

// A failing call fills it. kind (MYC_E_*) is the Python exception to raise. text holds whole sentences: UTF-8,
// 0-terminated.
typedef struct {
  int32_t kind;
  char text[8188];
} myc_error;

// Where things are (UTF-8 paths), and which worker to start. provider is a name of runtime/provider/providers, or ""
// for the default one; device is "cpu", "cuda:0" or "" (CUDA if the worker's host has it, else CPU); options is a JSON
// object of the provider's other options, which are strings, or "".
typedef struct {
  const char* worker;     // the mycelya-worker binary
  const char* exec;       // libmycelya_exec
  const char* torch_lib;  // folder with libtorch_cpu
  const char* provider;
  const char* device;
  const char* machine;  // the machine's name in messages, or "" for that of a bare "mycelya"
  const char* options;
} myc_config;

// One trace. myc_fn_flush uses the arrays until it sets *in_use to 0, which it does exactly once, also if it fails.
// Other functions use them during the call.
typedef struct {
  uint64_t key[2];  // rolling hash of the skeleton
  const uint64_t* skeleton;
  uint64_t n_skeleton;  // words
  const uint64_t* params;
  uint64_t n_params;  // words
  const uint64_t* bindings;
  uint64_t n_bindings;    // storage ids, one per local number
  const uint8_t* alive;   // n_bindings bytes: 1 if a tensor still holds the storage
  const uint64_t* frees;  // ids of storages outside the trace that have died since the last trace
  uint64_t n_frees;
  const uint32_t* origins;  // two words per record: code number (0 = unknown), instruction offset in bytes
  uint64_t n_records;
  uint32_t reason;            // MYC_CUT_*
  uint32_t reason_origin[2];  // the place that asked for the cut
  uint32_t* in_use;           // atomic: 1 while the arrays are in use; null for a trace that is still open
  // Of a profiled trace; otherwise null and 0. Times are nanoseconds since 1970.
  const uint64_t* callers;  // per record: the number that PyTorch's profiler gave the op that recorded it, 0 = none
  int64_t began, closed;    // the first record; the cut
} myc_trace;

// A strided view of a storage, sizes and strides in elements.
typedef struct {
  uint64_t storage;
  uint32_t dtype;
  uint32_t rank;
  const int64_t* sizes;
  const int64_t* strides;
  int64_t offset;
  uint32_t ahead;  // of a read: 1 if no caller waits for it yet
} myc_view;

// A range of bytes in shared memory.
typedef struct {
  uint64_t block;     // number of the block, from 1, never reused
  uint64_t size;      // bytes of the block
  uint64_t offset;    // of the range in the block
  int32_t fd;         // the block's memory file, sealed against shrinking; open until the upload has ended
  uint32_t* readers;  // atomic: uploads that still read the range
} myc_shared;

// A place in the user's program, as in myc_trace.origins.
typedef struct {
  uint32_t code;    // 0 = unknown
  uint32_t offset;  // of the instruction, bytes
} myc_origin;

// Round trips that reads at a place have not made: the caller knew the values, had read them ahead with others, or did
// not wait for them.
typedef struct {
  myc_origin at;
  uint64_t known, ahead, later;
} myc_saved;

// Each function has the type myc_fn_<name> and is exported under the name myc_<name>.
typedef uint32_t (*myc_fn_abi_version)(void);
// Names an op: name "aten::add.Tensor", hash as in the trace. Idempotent.
typedef void (*myc_fn_define_op)(uint64_t hash, const char* name);
// Names a code object. lines[i] is the line of the instruction at byte offset 2*i.
typedef void (*myc_fn_define_code)(uint32_t code, const char* file, const char* function, const int32_t* lines,
                                   uint64_t n);
// Names the place {code, 0}: a line of a library, and the line of the user's program that has led to it.
typedef void (*myc_fn_define_call)(uint32_t code, myc_origin place, myc_origin caller);
// Writes a place as "file:line", 0-terminated; "" if it is not known. Returns the length needed.
typedef uint64_t (*myc_fn_place)(myc_origin, char* out, uint64_t capacity);
// Opens a device. The worker starts with the first call that needs it. Fails if the device is open.
typedef int32_t (*myc_fn_open)(int32_t index, const myc_config*, myc_error*);
// Ends the session of a device and its worker; MYC_OK if there was none.
typedef int32_t (*myc_fn_close)(int32_t index, myc_error*);
// Writes why the session of a device has ended by itself, as a sentence about its worker. Returns the length that the
// text has, 0 if the session has not ended or does not exist.
typedef uint64_t (*myc_fn_ended)(int32_t index, char* out, uint64_t capacity);
// Takes a closed trace and returns at once. MYC_PENDING: the trace was taken, but the worker is further behind than the
// credits allow. Then the caller takes a ticket from myc_room, and waits for it before it records more.
typedef int32_t (*myc_fn_flush)(int32_t index, const myc_trace*, myc_error*);
// Takes the error of a failure that no caller has raised; MYC_OK if there is none. The caller raises it: traces that
// were flushed before have no effect on storages from before the failure, and later ones run again. *lost: the smallest
// id of the storages that were not made because of the failure; 0: not known. A null `lost` takes nothing: the answer
// only says whether there is such an error.
typedef int32_t (*myc_fn_failure)(int32_t index, uint64_t* lost, myc_error*);
// Begins a wait until credits are left. Returns a ticket as myc_read does.
typedef uint64_t (*myc_fn_room)(int32_t index, myc_origin, myc_error*);
// Makes storage `id`, which must not exist, on the worker. MYC_OK: the bytes were copied, or are in shared memory.
// MYC_PENDING: *ticket is to be waited for with myc_wait; the library uses the bytes until the wait has ended, and also
// after a myc_cancel. With `shared`, which is null for other memory, the bytes are read in shared memory later: the
// caller has added this upload to *readers and must not change the bytes until the library has subtracted 1 from it,
// which it does exactly once, also if the call fails.
typedef int32_t (*myc_fn_upload)(int32_t index, uint64_t id, const void* data, uint64_t bytes, const myc_shared* shared,
                                 myc_origin, uint64_t* ticket, myc_error*);
// Ends the use of a block. No upload may still read it. The library frees the block's memory once the workers know.
typedef void (*myc_fn_forget)(uint64_t block);
// Begins a read of the view's elements, in row-major order, into dst (numel * itemsize bytes, valid until the wait
// ends). Returns a ticket > 0, or 0 with the error set.
typedef uint64_t (*myc_fn_read)(int32_t index, const myc_view*, void* dst, myc_origin, myc_error*);
// Begins a wait for all calls submitted so far. Returns a ticket as myc_read does.
typedef uint64_t (*myc_fn_sync)(int32_t index, myc_origin, myc_error*);
// Begins a question about kept state, in JSON: see runtime/kept.go. Returns a ticket as myc_read does. An error may
// also be the ticket's answer.
typedef uint64_t (*myc_fn_ask)(int32_t index, const char* question, uint64_t n, myc_origin, myc_error*);
// Writes the answer to a question whose wait has ended with MYC_OK, as JSON, and forgets it if it fits. Returns the
// length, or 0.
typedef uint64_t (*myc_fn_answer)(uint64_t ticket, char* out, uint64_t capacity, myc_error*);
// Waits at most timeout_ms. MYC_PENDING: not ready; call again, or cancel. Any other answer ends the ticket.
typedef int32_t (*myc_fn_wait)(uint64_t ticket, int32_t timeout_ms, myc_error*);
// Ends a ticket without waiting. After the return, nothing writes dst.
typedef void (*myc_fn_cancel)(uint64_t ticket);
// Writes the metrics of all devices as a JSON object, 0-terminated. Returns the length needed.
typedef uint64_t (*myc_fn_metrics)(char* out, uint64_t capacity);
typedef void (*myc_fn_reset_metrics)(void);
// Writes the costs of each place of the user's program since the last reset_metrics, as a JSON array: see
// runtime/report/bill.go. saved: what the client library does not know, n places of it.
typedef uint64_t (*myc_fn_bill)(const myc_saved* saved, uint64_t n, char* out, uint64_t capacity);
// Writes in sentences what the workers still compute. Returns the length needed.
typedef uint64_t (*myc_fn_busy)(char* out, uint64_t capacity);
// How many bytes of uploads are under way, and how many of them the worker has taken. Returns for how many
// seconds they have been.
typedef double (*myc_fn_uploading)(uint64_t* sent, uint64_t* bytes);
// The same for reads, from when the first byte has come.
typedef double (*myc_fn_downloading)(uint64_t* got, uint64_t* bytes);
// Writes which programs a device has compiled, and why, in one paragraph for each. Returns the length, or 0.
typedef uint64_t (*myc_fn_explain)(int32_t index, char* out, uint64_t capacity, myc_error*);
// Writes the graph whose result the open trace will leave in `storage`. The trace stays as it is. Returns the length,
// or 0.
typedef uint64_t (*myc_fn_pending)(int32_t index, const myc_trace*, uint64_t storage, char* out, uint64_t capacity,
                                   myc_error*);
// Starts the worker if it does not run. MYC_PENDING: *ticket is to be waited for.
typedef int32_t (*myc_fn_start)(int32_t index, uint64_t* ticket, myc_error*);
// Writes facts of a worker that myc_start has started, as JSON ({"device":"cpu","name":…,"pid":…,"torch":…}). Returns
// the length, or 0.
typedef uint64_t (*myc_fn_device_info)(int32_t index, char* out, uint64_t capacity, myc_error*);
// Forgets the events of an earlier profile and notes those of traces that have times; 0: notes no more.
typedef void (*myc_fn_profile)(int32_t on);
// Writes the events of the last profile, one per line: see runtime/profile.go. Returns the length needed.
typedef uint64_t (*myc_fn_profiled)(char* out, uint64_t capacity);
// Writes the file descriptors that a forked child must close. Returns their number.
typedef int32_t (*myc_fn_fork_fds)(int32_t* out, int32_t capacity);

// ---------------------------------------------------------------------------------------------------------------
// 3. The executor (csrc/exec)
// ---------------------------------------------------------------------------------------------------------------

// One executor is one session on one device. It is not thread-safe: the worker calls it from one thread at a time.
typedef struct myc_exec myc_exec;
typedef struct myc_prog myc_prog;

// A program: 64-bit words, on the wire (packed: see package program), in caches, and here. The Go worker checks the
// rules first (program/validate.go). The executor checks again what memory safety depends on. A count stands before its
// items. Grammar:
//   program = nparams nbuffers ninputs { buffer } noutputs { buffer } noperators { text } ntensors { tensor }
//             nkernels { kernel } nsteps { step } nversions { version }
//   text    = bytes  ceil(bytes/8) words
//   tensor  = buffer dtype rank  rank*dim(sizes)  contig(0|1)  [rank*dim(strides)]  dim(offset)
//   dim     = an int64: a constant, or ~p for parameter p
//   step    = MYC_S_CALL   record operator nargs { arg } nresults { result } flags(MYC_R_*)
//           | MYC_S_COPY   record tensor(dst) tensor(src)     makes dst's buffer, if it does not exist yet, as large
//                                                             as dst's geometry needs
//           | MYC_S_ALLOC  record buffer dim(bytes)           uninitialised
//           | MYC_S_CLONE  record buffer(new) buffer(old)     a copy of all bytes
//           | MYC_S_FREE   record buffer
//           | MYC_S_RESIZE record buffer dim(bytes)           in place; keeps the common prefix
//           | MYC_S_FUSED  record nfused nplain               the next nfused steps, or instead the nplain steps after
//                                                             those. Both leave the same buffers and contents; the
//                                                             executor chooses. The nfused steps are calls that read or
//                                                             make tensors, not both, then KERNEL, ALLOC and FREE
//           | MYC_S_KERNEL record kernel ninstances { instance }   only among the nfused steps of a MYC_S_FUSED
//   instance = { dim }(sizes of all index spaces, one after the other) { tensor made(0|1) }(per operand)
//              { arg }(per number)                            made: the step makes the tensor's buffer, as large as the
//                                                             tensor
//   result  = 0 (not wanted, or undefined) | tensor+1         the op's next fresh tensor; must match the geometry
//   arg     = MYC_W_NONE | MYC_W_TENSOR index | MYC_W_NUMBER kind param | MYC_W_SCALAR dtype param | MYC_W_SIZE param |
//             MYC_W_INT v | MYC_W_FLOAT bits | MYC_W_BOOL v | MYC_W_DTYPE v | MYC_W_LAYOUT v | MYC_W_DEVICE 0 |
//             MYC_W_MEMFMT v | MYC_W_STR text | MYC_W_GEN param | MYC_W_LIST kind n { arg }           (one word each)
//   version = output record buffer writer                   by output and record. From this record on, the storage of
//                           the output has the content that the step of record `writer` leaves in buffer - 1. buffer 0:
//                           the content is lost. writer 0: an input's content. A version may lie in two buffers.
// Inputs are buffers that exist at the start, outputs buffers that become storages at the end. Steps have the numbers
// 0, 1, … in order. A step's record is that of the op it belongs to, 0 if it has none. Records are the numbers of the
// ops that the user called, from 1 on, in their order. Steps may be in another one.
//
// A kernel is one loop: code that runs at each point of an index space, whose sizes come with each instance.
//   kernel   = nspaces { rank } nreduced noperands { operand } nnumbers ninstrs { instr }
//   operand  = dtype access(MYC_K_READ | MYC_K_WRITE) space rank { along }
//                                                             per dim of the tensor: 1 + the dim of the index space
//                                                             along which it runs, no two the same; 0: its size is 1;
//                                                             MYC_K_MAX_RANK + 1: each TAKE has a position along it. An
//                                                             operand has one such dim at most, is then in space 0,
//                                                             only read, and only by TAKE
//   instr    = head a b c                                     head: op:0..7 (MYC_K_*) class:8..15; unused words are 0
// The loop runs over index space 0, whose last nreduced dims are reduced; without them no instruction reduces. The
// other index spaces have the same number of points in the same (row-major) order. Only kernels without reduced dims
// have them.
//
// Each instruction but a STORE defines the register of its number and uses registers of smaller numbers. A register has
// one of four classes. It has one value per point. If none of its operands runs along a reduced dim, it has one value
// for each point of the other dims; a reduction makes such a register of any register. Floats of 16 bits are F32
// registers that a ROUND has rounded. Integers are I64 registers that a ROUND has wrapped. A byte loaded as B8 is 0
// or 1.
//   LOAD a:operand                             reads an element
//   TAKE a:operand b:register                  reads the element at a position (I64) along the operand's dim without a
//                                              place; one below 0 is 0, and one past the end is the last. An instance
//                                              fits if that dim has elements. The operand must share no memory with one
//                                              that is written
//   STORE a:operand b:register                 the operand runs along all dims, unless the register has one value for
//                                              each point of the dims that are not reduced: then along those, or all
//   NUMBER a:index b:dtype                     an instance fits if the dtype represents its number; 0: any fits
//   CONST a:bits                               a double, an int64, or 0 or 1
//   COUNT                                      the number of points that are reduced together, as a float or I64
//   INDEX a:dim of index space 0               the point's index, I64
//   CAST a                                     as static_cast; to B8: a != 0
//   ROUND a b:dtype                            rounds or wraps to the dtype
//   SUM MAX MIN a                              reduce; a NaN stays NaN
//   all others                                 have the meaning of the own op of that name (catalogue/own.go).
//                                              Operands have the class of the result. Exceptions: comparisons and
//                                              ISNAN give B8, and a of WHERE is B8

// One failed step of a run.
typedef struct {
  uint32_t step;        // UINT32_MAX: the call itself failed: it does not fit the program, or no step made an output
  uint32_t cause_step;  // the first cause: another call's step if the step needs what that one has poisoned
  uint64_t cause_call;
  myc_error error;
} myc_step_error;

// Counts of a run: its fused groups that ran as kernels, and calls that had to wait for the device.
typedef struct {
  uint32_t groups;   // MYC_S_FUSED
  uint32_t kernels;  // their MYC_S_KERNEL
  uint32_t calls;    // the MYC_S_CALL that the kernels replaced
  uint32_t waits;    // calls whose indices were read from the device, to check them
  uint32_t tried;    // groups that ran both ways, to compare them: each does before it runs as machine code only
  uint32_t wrong;    // of those, groups whose kernels do not give what the operators give; they run as operators now
  uint32_t step;     // the first of those, and what is wrong
  char text[256];
} myc_fused;

// A device that takes machine code runs a call's kernels only for the groups whose launches the call brings. Other
// devices need no launches. Launches are words that the worker plans for the parameters of the call (codegen/cuda). The
// executor puts addresses into them, and checks what it needs for that: steps, instances, operands, numbers of words.
//   launches = { group }
//   group    = step nlaunches { launch }            step: a MYC_S_FUSED, greater than the last, without a call that
//                                                   has results among its nfused steps
//   launch   = step entry grid block_x block_y table(0|1) scratch scratch_word npointers { operand } nwords nstructs
//              { instance word*nwords } nchunks { chunk }
//                                                   step: a MYC_S_KERNEL of the group, not less than the last
// A struct begins with npointers words. The executor adds the address of each operand's buffer to its word. If a sum is
// not a multiple of 16, the group runs as its operators. scratch: bytes that the launches of a step share, or 0; their
// address is added to word scratch_word of each struct. Without table there is one struct, the entry's only argument,
// by value. With table the structs lie one after the other in the device's memory, and the entry gets their address and
// that of the chunks.

// Each function has the type myc_exec_fn_<name> and is exported under the name myc_exec_<name>.
typedef uint32_t (*myc_exec_fn_abi_version)(void);
// device "cpu" or "cuda:i". threads 0: PyTorch's default.
typedef myc_exec* (*myc_exec_fn_new)(const char* device, int32_t threads, myc_error*);
typedef void (*myc_exec_fn_delete)(myc_exec*);
// Facts as JSON: {"device":"cpu","name":"…","torch":"2.15.0","memory_bytes":…,"arch":"sm_90","processors":132}. arch:
// the target of machine code, "" if the device takes none; processors: the device's multiprocessors.
typedef uint64_t (*myc_exec_fn_info)(myc_exec*, char* out, uint64_t capacity);
typedef myc_prog* (*myc_exec_fn_prepare)(myc_exec*, const uint64_t* words, uint64_t n, myc_error*);
typedef void (*myc_exec_fn_drop)(myc_exec*, myc_prog*);
// Runs a program. inputs and outputs are pairs (buffer, storage id); after the run, each output's storage holds the
// buffer. The storages of `frees` end once the inputs are bound. After a failure the storages are as if the ops had run
// one by one up to the failed one: only steps of earlier records run, and each output's storage has the last version
// from before the failed record. It is poisoned if that version is not there any more, and if it is new and has none. A
// step fails if it needs a missing or poisoned storage. Returns the number of failed steps, and the first `cap` of them
// in errs. times, if it is not null, gets two words for each step of the program: when it began and ended, nanoseconds
// since 1970; 0 and 0 if it did not run. Then each step waits for the device.
typedef int32_t (*myc_exec_fn_run)(myc_exec*, myc_prog*, const uint64_t* params, uint64_t n_params,
                                   const uint64_t* inputs, uint64_t n_inputs, const uint64_t* outputs,
                                   uint64_t n_outputs, const uint64_t* frees, uint64_t n_frees,
                                   const uint64_t* launches, uint64_t n_launches, uint64_t call_id,
                                   myc_step_error* errs, int32_t cap, myc_fused*, uint64_t* times);
// Runs only the steps of a program that set flags or the default dtype.
typedef void (*myc_exec_fn_set_flags)(myc_exec*, myc_prog*, const uint64_t* params, uint64_t n_params);
// Says how many cores of the processor others use during the following runs.
typedef void (*myc_exec_fn_leave)(myc_exec*, int32_t cores);
// Machine code of kernels on the executor's device. Any thread may call these three functions at any time, also during
// other calls of the executor. An entry is a word of launches; 0, with the error set, if the module has no such name.
// Unload waits for the device. After it, no call may launch the module's entries.
typedef struct myc_module myc_module;
typedef myc_module* (*myc_exec_fn_load)(myc_exec*, const void* image, uint64_t bytes, myc_error*);
typedef uint64_t (*myc_exec_fn_entry)(myc_exec*, myc_module*, const char* name, myc_error*);
typedef void (*myc_exec_fn_unload)(myc_exec*, myc_module*);
// Returns memory of `bytes` that the caller fills; upload_end then makes storage `id` of it. On CUDA it is pinned
// staging memory.
typedef void* (*myc_exec_fn_upload_begin)(myc_exec*, uint64_t id, uint64_t bytes, myc_error*);
typedef int32_t (*myc_exec_fn_upload_end)(myc_exec*, uint64_t id, myc_error*);
// Gathers the view's elements in row-major order into CPU memory. *out stays valid until read_done(*handle). Checks the
// view against the storage. For a poisoned storage the error has the poison's kind and text, and *poison_call and
// *poison_step name the failed step.
typedef int32_t (*myc_exec_fn_read)(myc_exec*, const myc_view*, const void** out, uint64_t* bytes, void** handle,
                                    uint64_t* poison_call, uint32_t* poison_step, myc_error*);
typedef void (*myc_exec_fn_read_done)(myc_exec*, void* handle);
typedef void (*myc_exec_fn_free)(myc_exec*, const uint64_t* ids, uint64_t n);
// Poisons those of the storages that do not exist. call and step name the step that has failed; call 0: none has.
typedef void (*myc_exec_fn_poison)(myc_exec*, const uint64_t* ids, uint64_t n, uint64_t call, uint32_t step,
                                   const myc_error*);
// Waits for the device.
typedef int32_t (*myc_exec_fn_sync)(myc_exec*, myc_error*);
// Returns the number of storages, and their bytes.
typedef void (*myc_exec_fn_usage)(myc_exec*, uint64_t* storages, uint64_t* bytes);
// Writes the storages in the order of their ids, as pairs (id, bytes); bytes UINT64_MAX: it is poisoned. Returns their
// number. out has room for `capacity` pairs.
typedef uint64_t (*myc_exec_fn_contents)(myc_exec*, uint64_t* out, uint64_t capacity);
// Writes the state of generators, flags and the default dtype, which set_state of another executor of the same build
// and device takes. Returns its length; 0 with the error set.
typedef uint64_t (*myc_exec_fn_state)(myc_exec*, char* out, uint64_t capacity, myc_error*);
typedef int32_t (*myc_exec_fn_set_state)(myc_exec*, const char* state, uint64_t n, myc_error*);
// Returns CPU memory that the process keeps for reuse to the system. Any thread may call it at any time.
typedef void (*myc_exec_fn_trim)(void);
// From now on the executor notes what it runs in place[0] and place[1], which another process may read after a crash:
// the id of the last call, and 1 + the number of the step that runs, 0 between calls. The caller keeps the memory.
typedef void (*myc_exec_fn_watch)(myc_exec*, uint64_t* place);

#ifdef __cplusplus
}
#endif
#endif  // MYCELYA_ABI_MYCELYA_H_
