"""What `make release` finds wrong with the files of a distribution. Building one is CI's and the release's."""

from __future__ import annotations

import pytest

from prophet import __version__
from prophet.core.errors import UserError
from tools.release import AUTOLOAD, check_changelog, sdist_problems, wheel_problems

TRACKED = [
    "setup.py",
    "prophet/__init__.py",
    "prophet/py.typed",
    "prophet/core/_native.pyi",
    "prophet/core/native/queue.h",
    "plugins/byteps/prophet_byteps/hook.py",
    "plugins/byteps/prophet_byteps/native/hook.cc",
    "plugins/byteps/prophet_byteps/build/include/nccl.h",
    "tests/conftest.py",
]
WHEEL = [
    AUTOLOAD,
    "prophet/__init__.py",
    "prophet/py.typed",
    "prophet/core/_native.pyi",
    "prophet/core/_native.cpython-311-x86_64-linux-gnu.so",
    "prophet/lab/testbed/_relay.cpython-311-x86_64-linux-gnu.so",
    "prophet_byteps/hook.py",
    "prophet_byteps/_hook.cpython-311-x86_64-linux-gnu.so",
    "prophet_byteps/build/include/nccl.h",
    f"byteps_prophet-{__version__}.dist-info/METADATA",
]


def test_a_source_distribution_is_what_git_tracks() -> None:
    assert sdist_problems([*TRACKED, "PKG-INFO", "setup.cfg", "byteps_prophet.egg-info/SOURCES.txt"], TRACKED) == []
    without_header = [name for name in TRACKED if not name.endswith("queue.h")]
    assert sdist_problems([*without_header, "notes.txt"], TRACKED) == [
        "the source distribution lacks prophet/core/native/queue.h; name it in MANIFEST.in",
        "the source distribution has notes.txt, which git does not track",
    ]


def test_a_wheel_has_its_packages_and_nothing_else() -> None:
    assert wheel_problems(WHEEL, TRACKED) == []


@pytest.mark.parametrize("name", [name for name in WHEEL if "dist-info" not in name])
def test_what_a_wheel_lacks_is_named(name: str) -> None:
    (problem,) = wheel_problems([other for other in WHEEL if other != name], TRACKED)
    assert problem.startswith("the wheel lacks ") and name.startswith(problem.split()[-1].removesuffix("*.so"))


@pytest.mark.parametrize("name", ["tests/conftest.py", "tools/release.py", "other.pth"])
def test_what_belongs_to_no_package_is_named(name: str) -> None:
    assert wheel_problems([*WHEEL, name], TRACKED) == [f"the wheel has {name}, which belongs to no package"]


def test_the_newest_entry_of_the_changelog_is_the_versions() -> None:
    check_changelog("# Changelog\n\n## 1.2.0 - unreleased\n\n## 1.1.0\n", "1.2.0")
    with pytest.raises(UserError, match=r"newest entry is '1\.1\.0 - 2026-01-02' and the version is 1\.2\.0"):
        check_changelog("# Changelog\n\n## 1.1.0 - 2026-01-02\n", "1.2.0")
