// Python bindings of the simulator, a part of prophet_scheduler.core._native.
#ifndef PROPHET_NATIVE_SIMULATOR_MODULE_H_
#define PROPHET_NATIVE_SIMULATOR_MODULE_H_

#include <pybind11/pybind11.h>

namespace prophet {

void bind_simulator(pybind11::module_& m);

}  // namespace prophet

#endif  // PROPHET_NATIVE_SIMULATOR_MODULE_H_
