// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The place in the user's program that an op comes from: the innermost Python frame outside of torch and this package.
// It is read from this thread's own state without the GIL.
#ifndef MYCELYA_DEVICE_RECORD_ORIGIN_H_
#define MYCELYA_DEVICE_RECORD_ORIGIN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi/mycelya.h"
#include "device/tensor/Thread.h"

typedef struct _object PyObject;

namespace mycelya {

using Origin = myc_origin;

// Takes the GIL at the first sight of a code object: never call it with a lock held.
Origin CurrentOrigin();

// In backward: the forward line whose autograd node runs now; otherwise CurrentOrigin(), remembered for that purpose.
Origin RecordOrigin(Thread& thread = this_thread);

// For what waits, or ends a trace. If `origin` is the line of a library that runs now: a place that is this line, and
// names the innermost line outside of libraries, which has led to it. Otherwise `origin`.
Origin WithCaller(Origin origin);

// A line of the user's program that torch.compile has put into a graph.
struct Place {
  std::string file, function;
  int32_t line;
};

// Names the places to the client, for traces; a place that is missing has the code 0. Needs the GIL.
std::vector<Origin> DefinePlaces(const std::vector<std::optional<Place>>& places);

// A code object that was generated from such a graph: the records of its instructions are those of the places. There is
// one place per instruction of two bytes; without a place a record has the line that called the code. Needs the GIL.
void SetPlaces(PyObject* code, std::vector<Origin> places);

// The place of the records that this thread makes meanwhile. Scopes nest.
class PlaceScope {
 public:
  PlaceScope();
  ~PlaceScope();
  PlaceScope(const PlaceScope&) = delete;
  PlaceScope& operator=(const PlaceScope&) = delete;
  void Set(Origin place) { *place_ = place; }

 private:
  Origin* place_;
  Origin before_;
};

// From now on calls namer(file) for each file of the user's program: the name to show instead, or None. Needs the GIL.
void SetCellNamer(PyObject* namer);

// Skips the Python frames of files in these folders, which have a trailing slash, and of these files. Called before any
// op.
void SkipFiles(const std::vector<std::string>& paths);

// The folder of Python's standard library, with a trailing slash. Its files are a library, as installed packages are.
void SetStandardLibrary(std::string folder);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_ORIGIN_H_
