// Workaround for a bug of CPython 3.11 in forked children.
//
// Rule of this file: that bug. A child acquires the lock of the interpreter's thread list before it reinitialises that
// lock (PyOS_AfterFork_Child); 3.12 does so in the right order. A C++ thread acquires the lock without the GIL whenever
// it enters Python, as those of BytePS and gloo do to drop a tensor. A fork at that moment never returns in the child:
// about one fork in two thousand in a job that forks in each step, with or without Prophet.
#pragma once

#if __has_include(<patchlevel.h>)
#include <patchlevel.h>  // Python's version; code compiled without Python needs no workaround
#endif

#if defined(PY_VERSION_HEX) && PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#include <pthread.h>

#include <cstdint>

// The beginning of 3.11's _PyRuntimeState (Include/internal/pycore_runtime.h).
struct ProphetPyRuntime {
  int states[5];
  uintptr_t finalizing;
  void* list_lock;
};

extern "C" {
extern ProphetPyRuntime prophet_py_runtime __asm__("_PyRuntime");
int _PyThread_at_fork_reinit(void** lock);
}

namespace prophet {

inline void free_list_of_threads() { _PyThread_at_fork_reinit(&prophet_py_runtime.list_lock); }

// The C library calls free_list_of_threads in a child before fork() returns there, so before any code of Python runs.
inline int mend_forks() {
  static const int kRegistered = pthread_atfork(nullptr, nullptr, free_list_of_threads);
  return kRegistered;
}

}  // namespace prophet

#else

namespace prophet {
inline int mend_forks() { return 0; }
}  // namespace prophet

#endif
