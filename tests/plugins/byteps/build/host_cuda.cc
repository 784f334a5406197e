// CUDA's runtime and NCCL carried out by the host, as a library to preload: a CUDA build of BytePS then runs with CPU
// tensors on a machine without a GPU. It has the functions of the CPU build's stand-in headers, and their limits.
#include <cstddef>
#include <cstring>

#define inline extern "C"
#include "nccl.h"
