// Calls of a program's functions with a call of Prophet's before them, without a Python frame in between: warnings and
// tracebacks of the program's function then show the program's line.
//
// Rule of this file: only how to call. The calls of Prophet's are in Python.
#pragma once

#include <pybind11/pybind11.h>

#include "marks.h"

namespace prophet {

inline pybind11::object owned(PyObject* result) { return pybind11::reinterpret_steal<pybind11::object>(result); }

// Calls first(*args, **kwargs), then returns original(*args, **kwargs).
inline PyObject* call_both(PyObject*, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  if (count < 2) {
    PyErr_SetString(PyExc_TypeError, "two functions come before the arguments");
    return nullptr;
  }
  if (!owned(PyObject_Vectorcall(given[0], given + 2, count - 2, names))) return nullptr;
  return PyObject_Vectorcall(given[1], given + 2, count - 2, names);
}

inline PyObject* call_holding(PyObject* lock, PyObject* func, PyObject* args, PyObject* kwargs) {
  static PyObject* const kAcquire = PyUnicode_InternFromString("acquire");
  static PyObject* const kRelease = PyUnicode_InternFromString("release");
  if (!owned(PyObject_CallMethodNoArgs(lock, kAcquire))) return nullptr;
  PyObject* result = PyObject_Call(func, args, kwargs);
  pybind11::error_scope error;  // keeps an error of the call during the release
  if (!owned(PyObject_CallMethodNoArgs(lock, kRelease))) PyErr_WriteUnraisable(lock);
  return result;
}

// A mode's __torch_function__(self, func, types, args=(), kwargs=None). Calls self.look_at(func, types, args, kwargs),
// and then what it returns with (*args, **kwargs). If func is a key of the dict self.unseen, it skips look_at and calls
// func, holding the value during the call: a lock, or None.
inline PyObject* call_seen(PyObject*, PyObject* const* given, Py_ssize_t count) {
  static PyObject* const kUnseen = PyUnicode_InternFromString("unseen");
  static PyObject* const kLookAt = PyUnicode_InternFromString("look_at");
  if (count < 3 || count > 5) {
    PyErr_SetString(PyExc_TypeError, "a mode takes a function, types, and the function's arguments");
    return nullptr;
  }
  PyObject *self = given[0], *func = given[1], *kwargs = count > 4 ? given[4] : Py_None;
  struct Handling {
    Handling() { ++marks().handling; }
    ~Handling() { --marks().handling; }
  } const handling;
  auto args = owned(count > 3 ? PySequence_Tuple(given[3]) : PyTuple_New(0));
  if (!args) return nullptr;
  auto unseen = owned(PyObject_GetAttr(self, kUnseen));
  if (!unseen) return nullptr;
  PyObject* lock = PyDict_GetItemWithError(unseen.ptr(), func);
  if (PyErr_Occurred()) return nullptr;
  pybind11::object looked_at;
  if (lock == nullptr) {
    PyObject* const seen[] = {self, func, given[2], args.ptr(), kwargs};
    looked_at = owned(PyObject_VectorcallMethod(kLookAt, seen, 5, nullptr));
    if (!looked_at) return nullptr;
    func = looked_at.ptr();
  }
  if (kwargs == Py_None) kwargs = nullptr;
  if (lock != nullptr && lock != Py_None) return call_holding(lock, func, args.ptr(), kwargs);
  return PyObject_Call(func, args.ptr(), kwargs);
}

// Returns a function that binds to an instance as a method does.
inline PyObject* method(PyObject*, PyObject* function) { return PyInstanceMethod_New(function); }

inline void bind_calls(pybind11::module_& module) {
  static PyMethodDef functions[] = {
      {"call_both", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_both)),
       METH_FASTCALL | METH_KEYWORDS, nullptr},
      {"call_seen", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_seen)), METH_FASTCALL, nullptr},
      {"method", method, METH_O, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(module.ptr(), functions) != 0) throw pybind11::error_already_set();
}

}  // namespace prophet
