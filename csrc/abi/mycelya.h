// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The only header that C++ and Go both see. Plain C. Three parts:
//   1. the trace format, written by csrc/device and read by capture (Go);
//   2. the client library: functions that client (Go, c-shared) exports and csrc/device loads with dlopen;
//   3. the executor: functions that csrc/exec exports and worker (Go) loads with dlopen.
//
// words.h has the numbers: tags, kinds, flags, dtypes, errors, reasons. Any change to these two files raises
// MYCELYA_ABI_VERSION (catalogue.ABIVersion).
//
// A pointer argument is only read or written during the call unless its comment says otherwise.
#ifndef MYCELYA_ABI_H_
#define MYCELYA_ABI_H_

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
//   skeleton    what was done; hashed into the key. Everything a pass may rely on is here.
//   parameters  sizes, strides, offsets and numbers, one word each (a complex number: two). Never hashed.
//   bindings    the storage id of each local storage number, in order of first sight. Never hashed.
//
// Grammar of the skeleton. The low 8 bits of a word are its tag; fields are named with their bit ranges.
//
//   trace  = { record }
//   record = head ophash { arg } { result }
//   head   = MYC_W_RECORD  flags:8..15 (MYC_R_*)  nargs:16..31  nresults:32..47
//   ophash = FNV-1a 64 of the op's full name "aten::add.Tensor" ("aten::mm" when the overload is empty); see myc_define_op
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
//     MYC_W_LAYOUT | MYC_W_DEVICE | MYC_W_MEMFMT  value:8..15   layout: PyTorch's number; device: always 0, "this device";
//                                                         memory format: PyTorch's number
//     MYC_W_STR     bytes:8..39 then ceil(bytes/8) words, zero padded
//     MYC_W_GEN                                           a generator: 1 parameter, its id (0 = the device's default)
//     MYC_W_LIST    kind:8..15 (MYC_L_*)  n:16..47        then n args
//   tensor = MYC_W_TENSOR  dtype:8..15  rank:16..23  flags:24..31 (MYC_T_*)  local:32..63
//            then, unless MYC_T_SAME, a geometry: dim classes, 2 bits per dim from bit 0 (MYC_D_*), 32 dims to a word and
//            at least one word, and when MYC_T_CONTIG is not set stride classes likewise.  (rank <= MYC_MAX_RANK)
//            Parameters of a geometry, in order: rank sizes; rank strides unless CONTIG; the storage offset in elements
//            unless OFF0; when FIRST and not WHOLE the storage's size in bytes.
//   result = MYC_W_NONE                                   an undefined tensor
//          | tensor                                       a new storage (FIRST and WHOLE set, local is new) with geometry
//          | MYC_W_LIST n:16..47 then n results           a Tensor[] return
//
// A record's results are its returns that are new tensors; returns that alias a written argument are not listed, nor are
// returns that are not tensors. Local numbers count storages from 0 in order of first sight: a FIRST arg is an input of
// the trace, a FIRST result is made by it. SAME: the geometry and dtype are those with which the storage was first seen
// in this trace (or last redefined by mycelya::resize_storage).
//
// Records that are not PyTorch ops:
//   mycelya::empty() -> result                            an uninitialised storage seen for the first time
//   mycelya::resize_storage(tensor!)  -> nothing          arg 0: the storage, MYC_T_WRITE, as u8[old bytes] (dtype U8);
//                           arg 1: SIZE or INT, the new size in bytes. Content: the common prefix. The storage's
//                           defining geometry becomes u8[new bytes].
//   mycelya::manual_seed(GEN, NUMBER seed)                MYC_R_EFFECT
//   mycelya::get_rng_state(GEN) -> u8[n]                  MYC_R_EFFECT
//   mycelya::set_rng_state(GEN, tensor u8[n])             MYC_R_EFFECT
//   mycelya::record_event(NUMBER id)                      MYC_R_EFFECT; the device's time when it gets here
//   mycelya::elapsed(NUMBER id, NUMBER id) -> f64[]       MYC_R_EFFECT; milliseconds from one event to another
//   mycelya::forget_event(NUMBER id)                      MYC_R_EFFECT
//   mycelya::memory_info() -> i64[2]                      MYC_R_EFFECT; free and total bytes of the device
//   mycelya::memory_stats() -> i64[MYC_M_NUMBERS]         MYC_R_EFFECT; of the worker's allocator for the device, by the
//                           names of torch.cuda.memory_stats: for each of allocation, segment, active, inactive_split,
//                           reserved_bytes, active_bytes, inactive_split_bytes, for each of all, small_pool, large_pool:
//                           current, peak, allocated, freed; then num_alloc_retries, num_ooms, num_device_alloc,
//                           num_device_free
//   mycelya::reset_memory_stats(NUMBER MYC_M_*)           MYC_R_EFFECT; peaks begin again from what there is, totals from 0
//   mycelya::empty_cache()                                MYC_R_EFFECT; memory that is kept for reuse goes back to the system
//   mycelya::capability() -> i64[2]                       MYC_R_EFFECT; CUDA's compute capability, or 0 and 0
//   mycelya::set_flag(STR "name=value")                   MYC_R_EFFECT; a global flag of PyTorch's, see exec/operators/Flags.cpp
//   mycelya::set_default_dtype(DTYPE)                     MYC_R_EFFECT; before the first op that was called under another
//                           default dtype than the one the worker has (f32 at the start)
//
// MYC_R_DYNAMIC: the shapes of a record's results are only known to the worker. Its first listed result is i64[n] and is
// not the op's: per fresh result, in order, MYC_SHAPE_WORDS words: dtype, rank, then MYC_SHAPE_RANK sizes and as many
// strides (elements), unused ones 0. Each fresh result follows as u8[0]; its storage gets the bytes that the op made, at
// offset 0. The trace ends with this record.
enum { MYC_M_PEAKS = 1, MYC_M_TOTALS = 2, MYC_M_NUMBERS = 7 * 3 * 4 + 4 };
enum { MYC_SHAPE_RANK = 32, MYC_SHAPE_WORDS = 2 + 2 * MYC_SHAPE_RANK };
enum { MYC_MAX_RANK = 255 };

// ---------------------------------------------------------------------------------------------------------------
// 2. The client library (client)
// ---------------------------------------------------------------------------------------------------------------

// Filled by a failing call. kind (MYC_E_*) says which Python exception to raise; text is whole sentences, UTF-8, 0-terminated.
typedef struct {
  int32_t kind;
  char text[8188];
} myc_error;

// Where things are; all UTF-8 paths. device is "cpu", "cuda:0" or "" (CUDA if the host has it, else CPU).
typedef struct {
  const char* worker;     // the mycelya-worker binary
  const char* exec;       // libmycelya_exec
  const char* torch_lib;  // folder with libtorch_cpu
  const char* device;
} myc_config;

// One trace. A call that takes it for good, myc_fn_flush, uses its arrays until it has set *in_use to 0, which it does once, also
// if it fails; the others use them during the call.
typedef struct {
  uint64_t key[2];            // rolling hash of the skeleton
  const uint64_t* skeleton; uint64_t n_skeleton;   // words
  const uint64_t* params;   uint64_t n_params;     // words
  const uint64_t* bindings; uint64_t n_bindings;   // storage ids, one per local number
  const uint8_t* alive;       // n_bindings bytes: 1 if some tensor still holds the storage
  const uint64_t* frees;    uint64_t n_frees;      // ids of storages not in this trace that have died since the last one
  const uint32_t* origins;  uint64_t n_records;    // two words per record: code number (0 = unknown), instruction offset in bytes
  uint32_t reason;            // MYC_CUT_*
  uint32_t reason_origin[2];  // where the cut was asked for
  uint32_t* in_use;           // 1; atomic. 0 of a trace that is still open
} myc_trace;

// A strided view of a storage, sizes and strides in elements.
typedef struct {
  uint64_t storage;
  uint32_t dtype;
  uint32_t rank;
  const int64_t* sizes;
  const int64_t* strides;
  int64_t offset;
} myc_view;

// Where bytes lie in shared memory.
typedef struct {
  uint64_t block;     // number of the block, from 1, never that of another
  uint64_t size;      // of the block, bytes
  uint64_t offset;    // of the bytes in it
  int32_t fd;         // of the block's memory file, which is sealed against shrinking; open until the upload is over
  uint32_t* readers;  // uploads of these bytes that are under way; atomic
} myc_shared;

// Where in the user's program something was asked for, as in myc_trace.origins.
typedef struct {
  uint32_t code;    // 0 = unknown
  uint32_t offset;  // of the instruction, bytes
} myc_origin;

// Each function has the type myc_fn_<name> and is exported under the name myc_<name>.
typedef uint32_t (*myc_fn_abi_version)(void);
// Names an op: name "aten::add.Tensor", hash as in the trace. Idempotent.
typedef void (*myc_fn_define_op)(uint64_t hash, const char* name);
// Names a code object: lines[i] is the line of the instruction at byte offset 2*i.
typedef void (*myc_fn_define_code)(uint32_t code, const char* file, const char* function, const int32_t* lines, uint64_t n);
// Makes device index usable; the worker starts at the first call that needs it. Fails if index is open.
typedef int32_t (*myc_fn_open)(int32_t index, const myc_config*, myc_error*);
// Ends the session of a device and its worker; MYC_OK if there was none.
typedef int32_t (*myc_fn_close)(int32_t index, myc_error*);
// Hands over a closed trace; returns at once. MYC_PENDING: it was taken, but the worker is further behind than the credits
// allow: take a ticket from myc_room and wait for it before recording more.
typedef int32_t (*myc_fn_flush)(int32_t index, const myc_trace*, myc_error*);
// Begins a wait until the worker has caught up with the credits. Ticket as for myc_read.
typedef uint64_t (*myc_fn_room)(int32_t index, myc_origin, myc_error*);
// Makes storage `id` on the worker with these bytes (it must not exist there). The bytes are copied or sent before the call returns.
typedef int32_t (*myc_fn_upload)(int32_t index, uint64_t id, const void* data, uint64_t bytes, myc_origin, myc_error*);
// The same with bytes that lie in shared memory: they are read later, and stay as they are until *readers, in which the caller has
// counted this upload, has been counted down by 1. That happens once, also if the call fails.
typedef int32_t (*myc_fn_upload_shared)(int32_t index, uint64_t id, const void* data, uint64_t bytes, const myc_shared*, myc_origin,
                                        myc_error*);
// A block that uploads came from is gone: its memory is given back when the workers know it. No upload from it is under way.
typedef void (*myc_fn_forget)(uint64_t block);
// Begins a read of the view's elements, in row-major order, into dst (numel * itemsize bytes, valid until the wait ends).
// Returns a ticket > 0, or 0 with the error set.
typedef uint64_t (*myc_fn_read)(int32_t index, const myc_view*, void* dst, myc_origin, myc_error*);
// Begins a wait for everything submitted so far. Ticket as above.
typedef uint64_t (*myc_fn_sync)(int32_t index, myc_origin, myc_error*);
// Waits at most timeout_ms. MYC_PENDING: not ready, call again or cancel. Anything else ends the ticket.
typedef int32_t (*myc_fn_wait)(uint64_t ticket, int32_t timeout_ms, myc_error*);
// Ends a ticket without waiting; after the return dst is not written any more.
typedef void (*myc_fn_cancel)(uint64_t ticket);
// Writes the metrics of all devices as a JSON object, 0-terminated; returns the length needed.
typedef uint64_t (*myc_fn_metrics)(char* out, uint64_t capacity);
typedef void (*myc_fn_reset_metrics)(void);
// Writes what each place of the user's program has cost since the last reset_metrics, as a JSON array; see runtime/bill.go.
typedef uint64_t (*myc_fn_bill)(char* out, uint64_t capacity);
// Writes which programs a device has compiled and why, one paragraph each. Length or 0.
typedef uint64_t (*myc_fn_explain)(int32_t index, char* out, uint64_t capacity, myc_error*);
// Writes the graph of what `storage` will hold once the open trace, which is left as it is, has run. Length or 0.
typedef uint64_t (*myc_fn_pending)(int32_t index, const myc_trace*, uint64_t storage, char* out, uint64_t capacity, myc_error*);
// Writes facts of the worker as JSON ({"device":"cpu","name":…,"pid":…,"torch":…}); starts it if it isn't running. Length or 0.
typedef uint64_t (*myc_fn_device_info)(int32_t index, char* out, uint64_t capacity, myc_error*);
// The descriptors a forked child must close; returns how many there are.
typedef int32_t (*myc_fn_fork_fds)(int32_t* out, int32_t capacity);

// ---------------------------------------------------------------------------------------------------------------
// 3. The executor (csrc/exec)
// ---------------------------------------------------------------------------------------------------------------

// One executor = one session on one device. Not thread-safe: the worker calls it from one thread at a time.
typedef struct myc_exec myc_exec;
typedef struct myc_prog myc_prog;

// A program for the executor: 64-bit words, all validated by the Go worker against proto/program.go's rules first. The
// executor checks them again where memory safety depends on it. Grammar ("n:" = a count word before the items):
//   program = nparams nbuffers ntensors { tensor } nkernels { kernel } nsteps { step }
//   tensor  = buffer dtype rank  rank*dim(sizes)  contig(0|1)  [rank*dim(strides)]  dim(offset)
//   dim     = two words: kind (0 constant, 1 parameter index), value
//   step    = MYC_S_CALL   op_len op_bytes(ceil/8 words) nargs { arg } nresults { result } flags(MYC_R_*)
//           | MYC_S_COPY   tensor(dst) tensor(src)            dst's buffer is made now, as large as dst's geometry needs, when
//                                                             it does not exist yet
//           | MYC_S_ALLOC  buffer dim(bytes)                  uninitialised
//           | MYC_S_CLONE  buffer(new) buffer(old)            a copy of all the bytes
//           | MYC_S_FREE   buffer
//           | MYC_S_RESIZE buffer dim(bytes)                  in place; keeps the common prefix
//           | MYC_S_FUSED  nfused nplain                      the nfused steps after it, or the nplain steps after those: they
//                                                             leave the same behind. The executor may choose either. The nfused
//                                                             are calls without tensors, then KERNEL, ALLOC and FREE
//           | MYC_S_KERNEL kernel ninstances { instance }     only among the nfused steps of a MYC_S_FUSED
//   instance = { dim }(sizes of all frames, one after the other) { tensor made(0|1) }(per operand) { arg }(per number)
//                                                             made: the tensor's buffer is made now, as large as the tensor
//   result  = 0 (not wanted, or undefined) | tensor+1         the op's next fresh tensor return; must match the tensor's geometry
//   arg     = MYC_W_NONE | MYC_W_TENSOR index | MYC_W_NUMBER kind param | MYC_W_SCALAR dtype param | MYC_W_SIZE param |
//             MYC_W_INT v | MYC_W_FLOAT bits | MYC_W_BOOL v | MYC_W_DTYPE v | MYC_W_LAYOUT v | MYC_W_DEVICE 0 |
//             MYC_W_MEMFMT v | MYC_W_STR len bytes | MYC_W_GEN param | MYC_W_LIST kind n { arg }      (one word each)
// Steps have the numbers 0, 1, … in order.
//
// A kernel is one loop nest: code that runs at each point of an index space, whose sizes come with each instance.
//   kernel   = nframes { rank } nfolded noperands { operand } nnumbers ninstrs { instr }
//   operand  = dtype access(MYC_K_READ | MYC_K_WRITE) frame rank { along }   per dim of its tensor: 1 + the dim of the frame
//                                                             along which it runs, no two the same; 0: it has size 1
//   instr    = head a b c                                     head: op:0..7 (MYC_K_*) class:8..15; unused words are 0
// Frame 0 is the index space. Its last nfolded dims are folded by reductions; without any, nothing may be. Other frames have the
// same number of points in all in the same order (row-major), and only kernels that fold nothing have any.
//
// Each instruction makes the register of its number, but a STORE; it uses registers of smaller numbers. A register holds one of four
// classes. It has one value per point or, if no operand that it was made from runs along a folded dim, one for each
// point of the other dims: a REDUCE makes such a one of any. Floats of 16 bits are F32 that a ROUND has rounded, integers are I64
// that a ROUND has wrapped, and a byte that is loaded as B8 is 0 or 1.
//   LOAD a:operand   STORE a:operand b:register     an operand that is written runs along all dims, but one that is given a
//                                                             value for each point of the others runs along all of those, or all
//   NUMBER a:index b:dtype that must have it, 0 for any     an instance that has another number there doesn't fit
//   CONST a:bits (double, int64, 0 or 1)                      COUNT: the points that are folded together, as a float or I64
//   INDEX a:dim of frame 0                                    the point's index, I64
//   CAST a           as static_cast; to B8: is not 0          ROUND a b:dtype
//   SUM MAX MIN a    folds; a NaN stays one
//   all others       what the own op of that name means (catalogue/own.go) on operands of one class, which is that of the result but for
//                    comparisons and ISNAN, whose result is B8, and WHERE, whose a is B8
enum { MYC_K_MAX_RANK = 16, MYC_K_MAX_FRAMES = 8, MYC_K_MAX_INSTRS = 4096 };

// One failed step of a run.
typedef struct {
  uint32_t step;  // UINT32_MAX: not of a step, but of the call (it doesn't fit the program; an output was never made)
  myc_error error;
} myc_step_error;

// What the kernels of a run have computed.
typedef struct {
  uint32_t groups;   // MYC_S_FUSED
  uint32_t kernels;  // MYC_S_KERNEL of those
  uint32_t calls;    // MYC_S_CALL in whose place
} myc_fused;

// A device that takes machine code runs the kernels of a call whose launches it is given, and of no other groups; a device that takes
// none needs none. Launches are words of the worker's own, planned for the parameters of the call (codegen/cuda). The executor puts in
// addresses, and checks what it needs for that: steps, instances, operands, numbers of words.
//   launches = { group }
//   group    = step nlaunches { launch }            step: of a MYC_S_FUSED, each greater than the last, none of whose nfused is a call
//   launch   = step entry grid block_x block_y table(0|1) scratch scratch_word npointers { operand } nwords nstructs
//              { instance word*nwords } nchunks { chunk }
//                                                   step: of a MYC_S_KERNEL of it, none less than the last
// Structs begin with npointers words that the address of the operand's buffer is added to, which has to be a multiple of 16, or the
// group runs as its operators. scratch: bytes of memory that the launches of a step share, whose address is added to word
// scratch_word of each struct; 0: none. Without table there is one struct, the entry's only argument, by value; with it the structs lie in
// the device's memory one after the other, and the entry is given their address and that of the chunks.

// Each function has the type myc_exec_fn_<name> and is exported under the name myc_exec_<name>.
typedef uint32_t (*myc_exec_fn_abi_version)(void);
// device "cpu" or "cuda:i". threads 0: PyTorch's default.
typedef myc_exec* (*myc_exec_fn_new)(const char* device, int32_t threads, myc_error*);
typedef void (*myc_exec_fn_delete)(myc_exec*);
// JSON facts: {"device":"cpu","name":"…","torch":"2.15.0","memory_bytes":…,"arch":"sm_90","processors":132}. arch: what machine code of
// kernels has to be for, "" if the device takes none; processors: multiprocessors of such a device.
typedef uint64_t (*myc_exec_fn_info)(myc_exec*, char* out, uint64_t capacity);
typedef myc_prog* (*myc_exec_fn_prepare)(myc_exec*, const uint64_t* words, uint64_t n, myc_error*);
typedef void (*myc_exec_fn_drop)(myc_exec*, myc_prog*);
// Runs a program. inputs: pairs (buffer, storage id); outputs: pairs (buffer, storage id): afterwards the storage id
// holds the buffer. A storage that is missing or poisoned poisons what depends on it. A failed step poisons its results
// and what it writes; the rest runs. Returns the number of failed steps, the first `cap` of them in errs.
typedef int32_t (*myc_exec_fn_run)(myc_exec*, myc_prog*, const uint64_t* params, uint64_t n_params, const uint64_t* inputs,
                                   uint64_t n_inputs, const uint64_t* outputs, uint64_t n_outputs, const uint64_t* launches,
                                   uint64_t n_launches, uint64_t call_id, myc_step_error* errs, int32_t cap, myc_fused*);
// So many of the processor's cores are in use by others during the runs that follow.
typedef void (*myc_exec_fn_leave)(myc_exec*, int32_t cores);
// Machine code of kernels on the executor's device. Any thread may call these three at any time, also beside other calls of the
// executor. An entry is a word of launches, 0 with the error set if the module has none of that name. Unload waits for the device;
// nothing may launch the module's entries any more.
typedef struct myc_module myc_module;
typedef myc_module* (*myc_exec_fn_load)(myc_exec*, const void* image, uint64_t bytes, myc_error*);
typedef uint64_t (*myc_exec_fn_entry)(myc_exec*, myc_module*, const char* name, myc_error*);
typedef void (*myc_exec_fn_unload)(myc_exec*, myc_module*);
// Memory of `bytes` to fill, then upload_end makes it storage id. On CUDA it is pinned staging memory.
typedef void* (*myc_exec_fn_upload_begin)(myc_exec*, uint64_t id, uint64_t bytes, myc_error*);
typedef int32_t (*myc_exec_fn_upload_end)(myc_exec*, uint64_t id, myc_error*);
// Gathers the view row-major into CPU memory: *out stays valid until read_done(*handle). Checks the view against the
// storage. A poisoned storage: the poison's kind and text, *poison_call and *poison_step say which step.
typedef int32_t (*myc_exec_fn_read)(myc_exec*, const myc_view*, const void** out, uint64_t* bytes, void** handle,
                                    uint64_t* poison_call, uint32_t* poison_step, myc_error*);
typedef void (*myc_exec_fn_read_done)(myc_exec*, void* handle);
typedef void (*myc_exec_fn_free)(myc_exec*, const uint64_t* ids, uint64_t n);
// Waits for the device.
typedef int32_t (*myc_exec_fn_sync)(myc_exec*, myc_error*);
// Storages held, and their bytes.
typedef void (*myc_exec_fn_usage)(myc_exec*, uint64_t* storages, uint64_t* bytes);
// Gives CPU memory of the whole process that is kept for reuse back to the system. Any thread may call it at any time.
typedef void (*myc_exec_fn_trim)(void);

#ifdef __cplusplus
}
#endif
#endif  // MYCELYA_ABI_H_
