"""The releases of BytePS that can be built, and how their sources differ from the one the rules were written for.

Rule of this file: facts about archives on PyPI. The rules are written for the newest of them. An older one's entry says
what it has in place of a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prophet_scheduler.core.errors import UserError

from .corrections import CORRECTIONS
from .rules import Rule


@dataclass(frozen=True)
class Release:
    """A source archive: its version, its digest, and how rules fit it.

    `instead` gives the replacement of a rule, by its file and text: how often the text occurs here, 0 if there is
    nothing to edit, or another rule. `without` are corrections of faults that it does not have. `hooks` is the file
    that its setup.py asks for hooks.
    """

    version: str
    sha256: str
    instead: Mapping[tuple[str, str], Rule | int] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    hooks: str = "pre_setup.py"

    def fitted(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """Return `rules` as this release needs them."""
        left_out = {rule for fault in CORRECTIONS if fault.name in self.without for rule in fault.all_rules}
        fitted = (self._in_place_of(rule) for rule in rules if rule not in left_out)
        return tuple(rule for rule in fitted if rule.count > 0)

    def _in_place_of(self, rule: Rule) -> Rule:
        here = self.instead.get((rule.file, rule.old), rule)
        return replace(rule, count=here) if isinstance(here, int) else here


_FLAGS = ("setup.py", "'-march=native', '-mno-avx512f'")

NEWEST = Release(
    "0.2.5.post15",
    "9d6a3c5be4c4b5a172739744bb32725c433f9a9f63794e1885e7376ff4eea99f",
    hooks="pre_setup_local.py",
)
RELEASES = {
    release.version: release
    for release in (
        NEWEST,
        Release(
            "0.2.5.post1",
            "78a8f581c8db6c4c6d9044f88f7d6f6c15757f5d56a7912449dec5aa94c4c7a7",
            instead={
                _FLAGS: Rule(
                    "setup.py",
                    "'-march=native'",
                    "*os.environ['PROPHET_ENGINE_MACHINE_FLAGS'].split()",
                    "a wheel for exactly this processor cannot be shared",
                ),
            },
        ),
        Release(
            "0.2.4",
            "d625a081f8d419be019cdc9d1e8392291dc184ed1ff909d9b2daebd4afcba43a",
            # It asks for no instruction set beyond AVX. It has no compression, sums rounds in the messages that brought
            # them, and gives processes no cores of their own.
            instead={
                _FLAGS: 0,
                ("byteps/common/ready_table.cc", "  _ready_table[key] = cnt;\n}"): 0,
                ("byteps/torch/ops.cc", "#if TORCH_VERSION"): 0,
            },
            without=("summing", "launching"),
        ),
    )
}


def release_of(version: str) -> Release:
    """Return the release called `version`. Raises UserError if there are no rules for it."""
    if version not in RELEASES:
        raise UserError(f"engine: there are no rules for BytePS {version}; known: {', '.join(sorted(RELEASES))}")
    return RELEASES[version]
