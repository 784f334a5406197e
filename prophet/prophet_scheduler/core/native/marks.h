// Marks of this thread, which `with` statements set: that it does Prophet's own work, that its uses of tensors do not
// count, and that a mode of Prophet's handles a call.
//
// Rule of this file: setting and taking back. references.py says what the marks mean. Python runs signal handlers
// between steps of Python code, and they may raise. None runs between the begin of a `with` block and these functions,
// so a mark is never left behind.
#pragma once

#include <pybind11/pybind11.h>

#include <tuple>
#include <utility>
#include <vector>

namespace prophet {

struct Marks {
  int at_work = 0;
  int blind = 0;
  int handling = 0;
  std::vector<std::pair<int, int>> waiting;  // at_work and blind, before each wait
};

inline Marks& marks() {
  thread_local Marks own;
  return own;
}

inline PyObject* begin_work(PyObject*, PyObject* const*, Py_ssize_t) {
  ++marks().at_work, ++marks().blind;
  Py_RETURN_NONE;
}

inline PyObject* end_work(PyObject*, PyObject* const*, Py_ssize_t) {
  --marks().at_work, --marks().blind;
  Py_RETURN_NONE;
}

inline PyObject* begin_blind(PyObject*, PyObject* const*, Py_ssize_t) {
  ++marks().blind;
  Py_RETURN_NONE;
}

inline PyObject* end_blind(PyObject*, PyObject* const*, Py_ssize_t) {
  --marks().blind;
  Py_RETURN_NONE;
}

// Takes the marks of the present work away during a wait, unless it is part of other work.
inline PyObject* begin_wait(PyObject*, PyObject* const*, Py_ssize_t) {
  Marks& own = marks();
  own.waiting.emplace_back(own.at_work, own.blind);
  if (own.at_work == 1) own.at_work = own.blind = 0;
  Py_RETURN_NONE;
}

inline PyObject* end_wait(PyObject*, PyObject* const*, Py_ssize_t) {
  Marks& own = marks();
  std::tie(own.at_work, own.blind) = own.waiting.back();
  own.waiting.pop_back();
  Py_RETURN_NONE;
}

inline PyObject* is_at_work(PyObject*, PyObject*) { return PyBool_FromLong(marks().at_work); }
inline PyObject* is_blind(PyObject*, PyObject*) { return PyBool_FromLong(marks().blind); }
inline PyObject* is_handling(PyObject*, PyObject*) { return PyBool_FromLong(marks().handling); }

inline void bind_marks(pybind11::module_& module) {
  const auto fast = [](auto* function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
  };
  static PyMethodDef functions[] = {{"begin_work", fast(begin_work), METH_FASTCALL, nullptr},
                                    {"end_work", fast(end_work), METH_FASTCALL, nullptr},
                                    {"begin_blind", fast(begin_blind), METH_FASTCALL, nullptr},
                                    {"end_blind", fast(end_blind), METH_FASTCALL, nullptr},
                                    {"begin_wait", fast(begin_wait), METH_FASTCALL, nullptr},
                                    {"end_wait", fast(end_wait), METH_FASTCALL, nullptr},
                                    {"is_at_work", is_at_work, METH_NOARGS, nullptr},
                                    {"is_blind", is_blind, METH_NOARGS, nullptr},
                                    {"is_handling", is_handling, METH_NOARGS, nullptr},
                                    {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(module.ptr(), functions) != 0) throw pybind11::error_already_set();
}

}  // namespace prophet
