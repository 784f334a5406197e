"""The CUDA build of BytePS: its wheels, rules and keys without building it, and the real one where torch has CUDA."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from prophet_byteps.build import __main__ as command
from prophet_byteps.build import build, cuda, recipe, rules, toolchain
from prophet_byteps.build.cuda import Cuda, find_cuda, with_cuda
from prophet_byteps.build.recipe import RULES, key_of
from prophet_byteps.build.rules import VERSION, apply_rules, rules_of
from prophet_byteps.build.store import Store
from prophet_scheduler.core.errors import UserError
from support.engine_builds import TOOLS, compile_nothing
from support.programs import clean_environ
from support.roles import WORKERS, network, nodes, run_job

HERE = Path(__file__).parent
JOB = Path(__file__).with_name("host_cuda_job.py")
PORT = 24780
FILES_OF_CUDA = ("torch/__init__.py", "torch/cuda_util.cc", "torch/ops.h", "common/operations.cc")
RULES_OF_CUDA = rules_of(cuda=True)
UNCORRECTED = rules_of(corrected=False)
CUDA = Cuda("13.0", ("nvidia-cuda-runtime 13.0.96", "nvidia-nccl-cu13 2.29.7"), (), ())
WHEELS_13 = {
    "nvidia-cuda-runtime": ("cu13/include/cuda_runtime.h", "cu13/lib/libcudart.so.13"),
    "nvidia-cuda-crt": ("cu13/include/crt/host_config.h",),
    "nvidia-cuda-cccl": ("cu13/include/cccl/nv/target",),
    "nvidia-nccl-cu13": ("nccl/include/nccl.h", "nccl/lib/libnccl.so.2"),
}
WHEELS_12 = {
    "nvidia-cuda-runtime-cu12": ("cuda_runtime/include/cuda_runtime.h", "cuda_runtime/lib/libcudart.so.12"),
    "nvidia-cuda-nvcc-cu12": ("cuda_nvcc/include/crt/host_config.h", "cuda_nvcc/bin/crt/link.stub"),
    "nvidia-cuda-cccl-cu12": ("cuda_cccl/include/nv/target",),
    "nvidia-nccl-cu12": ("nccl/include/nccl.h", "nccl/lib/libnccl.so.2"),
}


def install(site: Path, name: str, files: tuple[str, ...]) -> None:
    """A wheel with these files under nvidia/, as pip leaves one."""
    information = site / f"{name.replace('-', '_')}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "RECORD").write_text("".join(f"nvidia/{file},,\n" for file in files))
    for file in files:
        path = site / "nvidia" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)


@pytest.mark.parametrize(("version", "wheels"), [("13.0", WHEELS_13), ("12.8", WHEELS_12)])
def test_the_wheels_look_like_an_installation(
    version: str, wheels: dict[str, tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, files in wheels.items():
        install(tmp_path / "site", name, files)
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = find_cuda(version)
    assert found.wheels == tuple(f"{name} 1.0" for name in wheels)
    home = tmp_path / "home"
    assert found.lay_out(home) == {
        "BYTEPS_NCCL_HOME": str(home),
        "BYTEPS_NCCL_LINK": "SHARED",
        "CUDA_HOME": str(home),
    }
    for header in ("cuda_runtime.h", "crt/host_config.h", "nv/target", "nccl.h"):
        assert (home / "include" / header).read_text().endswith(header)
    assert (home / "lib/libcudart.so").read_text().endswith(f"libcudart.so.{version[:2]}")
    assert (home / "lib/libnccl.so").read_text().endswith("libnccl.so.2")


def test_a_wheel_that_lacks_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_library = ("cuda_runtime/include/cuda_runtime.h",)
    for name, files in {**WHEELS_12, "nvidia-cuda-runtime-cu12": without_library}.items():
        if name != "nvidia-nccl-cu12":
            install(tmp_path, name, files)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UserError) as error:
        find_cuda("12.8")
    assert str(error.value) == (
        "engine: to build BytePS for CUDA 12.8 this Python lacks nvidia-cuda-runtime-cu12==12.8.*, nvidia-nccl-cu12:"
        " pip install 'nvidia-cuda-runtime-cu12==12.8.*' nvidia-nccl-cu12"
    )


@pytest.mark.parametrize(("line", "version"), [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = None", None)])
def test_torch_is_asked_for_its_cuda_without_being_imported(
    line: str, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('imported')\n")
    (tmp_path / "torch/version.py").write_text(f"from typing import Optional\n{line}\n")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert cuda.torch_cuda() == version


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        ("2.13.0+cpu", r"torch 2.13.0\+cpu was built without CUDA, .* --force-reinstall torch"),
        (None, "has only its PyTorch part and needs torch: pip install torch"),
    ],
)
def test_a_torch_that_does_not_fit_is_one_line(torch: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "torch_cuda", lambda: None)
    with pytest.raises(UserError, match=said):
        with_cuda(dataclasses.replace(TOOLS, torch=torch))


@pytest.fixture
def cuda_13(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch for CUDA 13, whose wheels are there."""
    monkeypatch.setattr(cuda, "torch_cuda", lambda: "13.0")
    monkeypatch.setattr(cuda, "find_cuda", lambda version: CUDA)
    monkeypatch.setattr(toolchain, "has_header", lambda name: True)
    monkeypatch.setattr(toolchain, "find_library", Path)


def test_a_cuda_build_is_of_pytorchs_part_alone(cuda_13: None) -> None:
    tools = with_cuda(TOOLS)
    assert tools == dataclasses.replace(TOOLS, mxnet=None, cuda=CUDA)
    assert recipe.frameworks(tools) == ("torch",)


def test_a_missing_libnuma_is_named(cuda_13: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "has_header", lambda name: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"lacks libnuma-dev; .*: apt-get install libnuma-dev"):
        with_cuda(TOOLS)


def test_its_rules_are_those_of_the_cpu_build_but_for_what_is_for_a_cpu() -> None:
    corrected, uncorrected = set(RULES_OF_CUDA), set(rules_of(corrected=False, cuda=True))
    assert {rule.only for rule in set(RULES) - corrected} == {"cpu"}
    assert {rule.only for rule in corrected - set(RULES)} == {"cuda"}
    assert set(RULES) - set(UNCORRECTED) <= corrected - uncorrected
    assert uncorrected - set(UNCORRECTED) and corrected - uncorrected - set(RULES)
    assert all(rule.old != rule.new for rule in corrected)


@pytest.mark.parametrize("corrected", [True, False], ids=["corrected", "uncorrected"])
def test_its_rules_fit_the_release(corrected: bool, tmp_path: Path) -> None:
    archive = Store.of_user().source / f"byteps-{VERSION}.tar.gz"
    if not archive.is_file():
        pytest.skip("the source of BytePS has not been fetched: python -m prophet_byteps.build install")
    shutil.unpack_archive(archive, tmp_path)
    tree = tmp_path / f"byteps-{VERSION}"
    apply_rules(rules_of(corrected, cuda=True), tree)
    texts = {file: (tree / "byteps" / file).read_text(encoding="utf-8") for file in FILES_OF_CUDA}
    assert not [file for file, text in texts.items() if "THC.h" in text]
    assert texts["torch/__init__.py"].count(".cuda()") == 2
    pins = "CUDA_CALL(cudaHostGetDevicePointer" in texts["common/operations.cc"].split("void InitTensor")[0]
    assert pins != corrected


def test_its_key_depends_on_the_cuda_and_on_no_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = dataclasses.replace(TOOLS, mxnet=None)
    changed = [
        dataclasses.replace(CUDA, version="13.1"),
        dataclasses.replace(CUDA, wheels=("nvidia-cuda-runtime 13.0.97", CUDA.wheels[1])),
        dataclasses.replace(CUDA, wheels=(CUDA.wheels[0], "nvidia-nccl-cu13 2.30.0")),
    ]
    keys = [key_of(dataclasses.replace(tools, cuda=other)) for other in (None, CUDA, *changed)]
    assert len(set(keys)) == 5
    elsewhere = dataclasses.replace(CUDA, includes=(tmp_path,))
    assert key_of(dataclasses.replace(tools, cuda=elsewhere)) == keys[1]
    (tmp_path / "build_hooks.py").write_text((rules.HERE / "build_hooks.py").read_text())
    monkeypatch.setattr("prophet_byteps.build.recipe.HERE", tmp_path)
    unchanged = [key_of(dataclasses.replace(tools, cuda=which)) in keys for which in (None, CUDA)]
    assert unchanged == [False, True]


def test_it_has_commands_of_its_own(
    cuda_13: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = compile_nothing(monkeypatch, tmp_path)
    assert command.main(["path", "--cuda", "--uncorrected"]) == 2
    assert capsys.readouterr().err.endswith("run: python -m prophet_byteps.build build --cuda --uncorrected\n")
    for options in ([], ["--cuda"], ["--cuda", "--uncorrected"], ["--cuda"]):
        assert command.main(["build", *options]) == 0
    of_cpu, of_cuda, uncorrected, again = capsys.readouterr().out.splitlines()
    assert len({of_cpu, of_cuda, uncorrected}) == 3
    assert again == of_cuda
    tools = dataclasses.replace(TOOLS, mxnet=None, cuda=CUDA)
    assert built == [(RULES, TOOLS), (RULES_OF_CUDA, tools), (rules_of(corrected=False, cuda=True), tools)]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the CUDA build, made of the torch that is installed; skips without one that has CUDA."""
    if cuda.torch_cuda() is None:
        pytest.skip("the torch here was built without CUDA")
    tools = with_cuda(toolchain.find_toolchain())
    wheel = build.provide(Store.of_user(), tools, Console(stderr=True), RULES_OF_CUDA)
    folder = tmp_path_factory.mktemp("cuda")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.engine
def test_it_compiles_and_is_imported_without_a_gpu(unpacked: Path) -> None:
    program = (
        "import byteps.torch.ops as ops; from prophet_byteps.hook import check_compatibility as check;"
        "print(hasattr(ops.c_lib, 'byteps_torch_push_pull_async_torch_cuda_FloatTensor'), *check())"
    )
    environ = clean_environ() | {"PYTHONPATH": search_path(unpacked)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, cwd="/", capture_output=True, text=True)
    said = f"True True BytePS {VERSION} (torch, new C++ ABI)\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr


@pytest.mark.engine
@pytest.mark.netns
def test_it_trains_on_cpu_tensors_where_the_host_does_cudas_part(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_cuda = tmp_path / "host_cuda.so"
    command = ["g++", "-shared", "-fPIC", f"-I{rules.HERE / 'include'}", str(HERE / "host_cuda.cc")]
    subprocess.run([*command, "-o", str(host_cuda)], check=True)
    monkeypatch.setenv("PYTHONPATH", search_path(unpacked))
    settings = {worker: {"LD_PRELOAD": str(host_cuda)} for worker in WORKERS}
    with network(nodes(None)) as testbed:
        ends = run_job(testbed, tmp_path, PORT, (str(JOB),), settings)
    assert [end.status for end in ends] == [0, 0], ends
    weights = [end.lines("weights ") for end in ends]
    assert len(weights[0]) == 1
    assert weights[0] == weights[1]


def search_path(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
