// Stand-in for NCCL among the devices of one worker, of which a CPU worker has one: every collective is then the
// identity, a copy where input and output are different buffers. Signatures follow NVIDIA's NCCL reference.

#ifndef PROPHET_ENGINE_NCCL_H_
#define PROPHET_ENGINE_NCCL_H_

#include <cstddef>
#include <cstring>

#include "cuda_runtime.h"

enum ncclResult_t { ncclSuccess = 0, ncclInvalidArgument = 4 };

enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8
};

enum ncclRedOp_t { ncclSum = 0 };

using ncclComm_t = struct ncclComm*;
struct ncclUniqueId {
  char internal[128];
};

inline const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "the CPU stand-in for NCCL joins exactly one device a worker";
}

inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  return ncclSuccess;
}

// More than one device would need real collectives: refuse, so that nobody trains on sums that were never made.
inline ncclResult_t ncclCommInitRank(ncclComm_t* comm, int devices, ncclUniqueId, int) {
  *comm = nullptr;
  return devices == 1 ? ncclSuccess : ncclInvalidArgument;
}

inline ncclResult_t ncclGroupStart() { return ncclSuccess; }
inline ncclResult_t ncclGroupEnd() { return ncclSuccess; }

inline size_t prophet_nccl_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

inline ncclResult_t prophet_nccl_identity(const void* from, void* to, size_t count, ncclDataType_t type) {
  cudaMemcpy(to, from, count * prophet_nccl_bytes(type), cudaMemcpyHostToHost);
  return ncclSuccess;
}

inline ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                                      ncclComm_t, cudaStream_t) {
  return prophet_nccl_identity(from, to, count, type);
}
inline ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t, int,
                               ncclComm_t, cudaStream_t) {
  return prophet_nccl_identity(from, to, count, type);
}
inline ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t,
                                  cudaStream_t) {
  return prophet_nccl_identity(from, to, count, type);
}
inline ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int, ncclComm_t,
                                  cudaStream_t) {
  return prophet_nccl_identity(from, to, count, type);
}

#endif  // PROPHET_ENGINE_NCCL_H_
