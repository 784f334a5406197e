// A fault of CPython 3.11 in forked children, mended from outside.
//
// Rule of this file: that fault. A child takes the lock of the interpreter's list of threads before it makes that anew
// (PyOS_AfterFork_Child); 3.12 does it the other way round. A thread of C++'s takes that lock without the interpreter's
// own whenever it comes to Python, as BytePS's and gloo's do to drop a tensor. A fork at that moment never returns in
// the child: about one in two thousand of a job that forks in each step, with or without Prophet.
#ifndef PROPHET_NATIVE_FORKS_H_
#define PROPHET_NATIVE_FORKS_H_

#if __has_include(<patchlevel.h>)
#include <patchlevel.h>  // Python's version; what is compiled without Python needs nothing of this
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

// The C library calls it in a child before fork() returns there, and so before Python does anything.
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
#endif  // PROPHET_NATIVE_FORKS_H_
