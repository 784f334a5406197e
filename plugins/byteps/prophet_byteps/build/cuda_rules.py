"""Edits for a CUDA build of BytePS alone: what today's PyTorch with CUDA needs, and faults that only show beside CUDA.

A CUDA build has all rules of the CPU build except those for a machine without a GPU, and these.

Copying. BytePS pins the memory of a CPU tensor with CUDA at each push and never releases it. Memory that is pinned, in
whole or in part, cannot be pinned again, and the attempt leaves an error behind that torch raises at some later call
(others met it too: github.com/sgl-project/sglang, pull request 38832). Memory that was freed and allocated again counts
as pinned, with its old pages. With today's PyTorch `broadcast_optimizer_state` pushes CPU tensors, Adam's counts of
steps. All this follows from the source and has not been seen on a GPU. Now the processor copies a CPU tensor, without
CUDA. Several GPUs of a machine, which sum it through NCCL, get a pinned copy that lasts for one push.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import compatibility, corrections
from .rules import Rule

_TH_REASON = "torch has no THC headers any more; its CUDA headers in c10 have what BytePS took from them"
_DECLARED_REASON = "as the names of TH; BytePS only names these types in declarations nobody calls"
_LOOPS = "byteps/common/core_loops.cc"

BUILD_RULES = (
    Rule(
        "setup.py",
        "have_cuda = is_torch_cuda(build_ext, include_dirs=options['INCLUDES'],\n"
        "                              extra_compile_args=pytorch_compile_flags)",
        "have_cuda = True",
        "it asks for THC.h, which torch no longer has; the builder has asked torch itself",
    ),
    Rule(
        "byteps/torch/ops.h",
        "#if HAVE_CUDA\n#include <THC/THC.h>\n#endif\n",
        "#if HAVE_CUDA\n"
        "struct THCudaByteTensor;\n"
        "struct THCudaIntTensor;\n"
        "struct THCudaLongTensor;\n"
        "struct THCudaTensor;\n"
        "struct THCudaDoubleTensor;\n"
        "#endif\n",
        _DECLARED_REASON,
    ),
    Rule(
        "byteps/torch/cuda_util.cc",
        "#include <THC/THC.h>\n",
        "#include <c10/cuda/CUDAException.h>\n",
        _TH_REASON,
    ),
    Rule("byteps/torch/cuda_util.cc", "THCudaCheck(", "C10_CUDA_CHECK(", _TH_REASON, 3),
)
"""Rules that change nothing of what BytePS computes or sends."""

_COPY_REASON = "see the docstring: the memory of a CPU tensor is not CUDA's"

COPY_RULES = (
    Rule(
        "byteps/common/operations.cc",
        """\
  if (device == CPU_DEVICE_ID) {
    cudaError_t err = cudaHostRegister(const_cast<void *>(input->data()),
                                       input->size(), cudaHostRegisterMapped);
    if (err == cudaSuccess) {
      BPS_LOG(DEBUG) << name
                     << " cpu address has changed, so it is pinned again.";
    }
    CUDA_CALL(cudaHostGetDevicePointer(&(context.gpu_ptr),
                                       const_cast<void *>(input->data()), 0));
  }
""",
        "",
        _COPY_REASON,
    ),
    Rule(
        "byteps/torch/ops.cc",
        """\
  common::InitTensor(context, size, dtype,
                      (device == CPU_DEVICE_ID)
                      ? const_cast<void*>(byteps_input->data())
                      : nullptr);
""",
        "  common::InitTensor(context, size, dtype, nullptr);\n",
        _COPY_REASON,
    ),
    Rule(
        _LOOPS,
        "    if (copy_len) {\n      CUDA_CALL(",
        "    if (copy_len && task->device == CPU_DEVICE_ID) {\n"
        "      memcpy(cpubuff + copy_offset, p + copy_offset, copy_len);\n"
        "    } else if (copy_len) {\n"
        "      CUDA_CALL(",
        _COPY_REASON,
    ),
    Rule(
        _LOOPS,
        "  if (copy_len) {\n    CUDA_CALL(",
        "  if (copy_len && task->device == CPU_DEVICE_ID) {\n"
        "    memcpy(gpu_addr + copy_offset, cpubuff + copy_offset, copy_len);\n"
        "  } else if (copy_len) {\n"
        "    CUDA_CALL(",
        _COPY_REASON,
    ),
    Rule(_LOOPS, "#include <cuda_runtime.h>\n", "#include <cuda_runtime.h>\n#include <cstring>\n", "for memcpy"),
    Rule(
        "byteps/torch/ops.cc",
        """\
  auto byteps_input = std::make_shared<TorchTensor>(tensor);
  auto byteps_output = std::make_shared<TorchTensor>(output);
""",
        """\
  // What NCCL of several GPUs is to work on must be memory that they can reach.
  ::torch::Tensor pinned;
  if (device == CPU_DEVICE_ID && common::byteps_local_size() > 1) {
    ::torch::NoGradGuard no_grad;
    pinned = ::torch::empty_like(tensor, tensor.options().pinned_memory(true));
    pinned.copy_(tensor);
  }
  auto byteps_input = std::make_shared<TorchTensor>(pinned.defined() ? pinned : tensor);
  auto byteps_output = std::make_shared<TorchTensor>(pinned.defined() ? pinned : output);
""",
        _COPY_REASON,
    ),
    Rule(
        "byteps/torch/ops.cc",
        "      [handle, average, tensor, output](const Status& status) mutable {\n",
        "      [handle, average, tensor, output, pinned](const Status& status) mutable {\n"
        "        if (pinned.defined()) {\n"
        "          ::torch::NoGradGuard no_grad;\n"
        "          output.copy_(pinned);\n"
        "        }\n",
        _COPY_REASON,
    ),
)


def for_cuda(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules of a CUDA build for those of a CPU build, with its own corrections if `rules` has any."""
    kept = [rule for rule in rules if rule not in compatibility.FOR_CPU]
    corrected = set(corrections.COPY_RULES) <= set(rules)
    return (*kept, *BUILD_RULES, *(COPY_RULES if corrected else ()))
