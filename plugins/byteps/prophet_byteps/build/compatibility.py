"""Edits without which BytePS 0.2.5.post15 does not compile, import or work on today's tools without a GPU.

Nothing here changes what BytePS computes or sends; edits that mend its behaviour are in `corrections.py`.
"""

from __future__ import annotations

from .rules import Rule

_TORCH_VERSION_REASON = "torch's headers define TORCH_VERSION as a string; BytePS compares it as a number"


def _rename_torch_version(file: str, count: int) -> Rule:
    return Rule(file, "#if TORCH_VERSION", "#if BYTEPS_TORCH_VERSION", _TORCH_VERSION_REASON, count)


_NO_GPU_REASON = "broadcast_optimizer_state sent numbers by way of a GPU; what is sent stays the same without one"

FOR_CPU = (
    Rule(
        "setup.py",
        "have_cuda = is_torch_cuda(build_ext, include_dirs=options['INCLUDES'],\n"
        "                              extra_compile_args=pytorch_compile_flags)",
        "have_cuda = False",
        "this build is for the CPU, and torch's include_paths() no longer takes cuda=",
    ),
    Rule(
        "byteps/torch/__init__.py",
        "torch.Tensor([option_value]).cuda()",
        "torch.Tensor([option_value])",
        _NO_GPU_REASON,
    ),
    Rule("byteps/torch/__init__.py", "p = torch.Tensor([p]).cuda()", "p = torch.Tensor([p])", _NO_GPU_REASON),
)
"""Rules that a CUDA build leaves out (`cuda_rules.py`)."""

BUILD_RULES = (
    Rule(
        "setup.py",
        "'-std=c++11', '-fPIC'",
        "'-std=c++17', '-fPIC'",
        "torch's headers need C++17",
    ),
    Rule(
        "setup.py",
        "'-march=native', '-mno-avx512f'",
        "*os.environ['PROPHET_ENGINE_MACHINE_FLAGS'].split()",
        "a wheel for exactly this processor cannot be shared; the builder names a portable instruction set instead",
    ),
    Rule(
        "setup.py",
        "return ret_code==0",
        "return False",
        "whether RDMA headers happen to be installed must not change the wheel",
    ),
    FOR_CPU[0],
    Rule("setup.py", "'TORCH_VERSION', str(", "'BYTEPS_TORCH_VERSION', str(", _TORCH_VERSION_REASON),
)

CORE_RULES = (
    Rule(
        "byteps/common/ready_table.cc",
        "  _ready_table[key] = cnt;\n}",
        "  _ready_table[key] = cnt;\n  return cnt;\n}",
        "it returns nothing where an int is declared; today's compilers let it run on into whatever comes next, and a"
        " job with compression died at its first gradient",
    ),
)

TORCH_RULES = (
    Rule(
        "byteps/common/communicator.h",
        "#include <nccl.h>\n",
        "#include <memory>\n#include <nccl.h>\n",
        "it uses std::shared_ptr, which no other header declares for it any more",
    ),
    _rename_torch_version("byteps/torch/adapter.cc", 1),
    _rename_torch_version("byteps/torch/ops.cc", 1),
    _rename_torch_version("byteps/torch/ready_event.cc", 5),
    Rule(
        "byteps/torch/ops.h",
        "#include <TH/TH.h>",
        "#include <mutex>\n"
        "struct THByteTensor;\n"
        "struct THIntTensor;\n"
        "struct THLongTensor;\n"
        "struct THFloatTensor;\n"
        "struct THDoubleTensor;",
        "torch has no TH headers any more; BytePS only names their types in declarations nobody calls",
    ),
    Rule(
        "byteps/torch/ops.cc",
        'm.def("byteps_torch_wait_and_clear", &WaitAndClear);',
        'm.def("byteps_torch_wait_and_clear", &WaitAndClear,\n'
        "        pybind11::call_guard<pybind11::gil_scoped_release>());",
        "it waited with the GIL held while the thread it waited for needed the GIL to drop a tensor: a deadlock",
    ),
    Rule(
        "byteps/torch/__init__.py",
        "collections.Iterable",
        "collections.abc.Iterable",
        "Python 3.10 removed the name (broadcast_optimizer_state uses it)",
    ),
    Rule(
        "byteps/torch/__init__.py",
        "import collections\n",
        "import collections.abc\n",
        "as above; the import binds `collections` too",
    ),
    *FOR_CPU[1:],
    Rule(
        "byteps/torch/__init__.py",
        "            if option_key == 'params':\n",
        "            if option_key == 'params' or option_value is None:\n",
        "today's optimizers have options that may be unset (foreach, fused), and no tensor holds a None",
    ),
)

_DECLARE_REASON = "Python takes what it returns for an error code, and it returned whatever was in a register"
_STUB_REASON = "it would write into the machine's CUDA folder and remove a file there; nothing here links libcuda"

MXNET_RULES = (
    Rule(
        "setup.py",
        "def build_torch_extension(build_ext, options, torch_version):\n",
        "def build_torch_extension(build_ext, options, torch_version):\n"
        "    options = {name: list(values) for name, values in options.items()}\n",
        "torch adds its own headers and libraries to the lists it is given, and MXNet's part got them too",
    ),
    Rule(
        "setup.py",
        "    check_mx_version()\n    mx_compile_flags",
        "    check_mx_version()\n"
        "    import mxnet\n"
        "    options = pre_setup.options_for_mxnet(options, mxnet.libinfo.find_lib_path())\n"
        "    mx_compile_flags",
        "libmxnet has its own C++ ABI, which may not be the one of the other parts",
    ),
    Rule(
        "setup.py",
        "'-Wl,-rpath,%s' % lib_dir",
        "'-Wl,-rpath,$ORIGIN/../../mxnet'",
        "the wheel is shared by environments: libmxnet is the one beside it, not that of the builder",
    ),
    Rule("setup.py", "mx_have_cuda = is_mx_cuda()", "mx_have_cuda = False", "this build is for the CPU"),
    Rule("setup.py", "            os.system(ln_command)\n", "", _STUB_REASON),
    Rule(
        "setup.py",
        '                os.system("rm -rf " + cuda_stub_path + "/libcuda.so.1")\n',
        "                pass\n",
        _STUB_REASON,
    ),
    Rule(
        "byteps/mxnet/ops.h",
        'extern "C" void byteps_mxnet_declare_tensor(',
        'extern "C" int byteps_mxnet_declare_tensor(',
        _DECLARE_REASON,
    ),
    Rule(
        "byteps/mxnet/ops.cc",
        'extern "C" void byteps_mxnet_declare_tensor(',
        'extern "C" int byteps_mxnet_declare_tensor(',
        _DECLARE_REASON,
    ),
    Rule("byteps/mxnet/ops.cc", "  return;\n}\n", "  return 0;\n}\n", _DECLARE_REASON),
)

RULES = BUILD_RULES + CORE_RULES + TORCH_RULES + MXNET_RULES
