// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Reads the interpreter's Python frames of this thread. Their layout is internal to CPython and changes with its
// version; only this file depends on it. The functions take no references, so they do not need the GIL, and the Python
// frames of the running thread cannot change meanwhile.
#ifndef MYCELYA_DEVICE_RECORD_PYTHONFRAME_H_
#define MYCELYA_DEVICE_RECORD_PYTHONFRAME_H_

#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "Mycelya reads Python frames of CPython 3.11, 3.12 and 3.13; PythonFrame.h needs a case for this version."
#endif

#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

namespace mycelya {

using Frame = _PyInterpreterFrame;

inline Frame* InnermostFrame() {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  return state->current_frame;
#else
  return state->cframe == nullptr ? nullptr : state->cframe->current_frame;
#endif
}

inline Frame* CallerOf(Frame* frame) { return frame->previous; }

// The code object of a Python function's frame; nullptr for the interpreter's own entry frames.
inline PyCodeObject* CodeOf(Frame* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* code = frame->f_executable;
  return code != nullptr && PyCode_Check(code) ? reinterpret_cast<PyCodeObject*>(code) : nullptr;
#elif PY_VERSION_HEX >= 0x030C0000
  return frame->owner == FRAME_OWNED_BY_CSTACK ? nullptr : frame->f_code;
#else
  return frame->f_code;
#endif
}

// Byte offset of the running instruction.
inline uint32_t OffsetOf(Frame* frame, PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030D0000
  auto* at = reinterpret_cast<char*>(frame->instr_ptr);
#else
  auto* at = reinterpret_cast<char*>(frame->prev_instr);
#endif
  auto* start = reinterpret_cast<char*>(code->co_code_adaptive);
  return at < start ? 0 : static_cast<uint32_t>(at - start);
}

// Number of bytes of a code object's instructions.
inline uint32_t SizeOf(PyCodeObject* code) {
  return static_cast<uint32_t>(Py_SIZE(code) * static_cast<Py_ssize_t>(sizeof(_Py_CODEUNIT)));
}

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_PYTHONFRAME_H_
