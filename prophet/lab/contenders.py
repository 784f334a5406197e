"""The policies of a config: what is compared, which engine runs each, and in which framework.

Rule of this file: from the entries of a config to values; nothing is started. Three engines move a job's gradients:
BytePS (stock, its own credit, and Prophet's hook with any policy of prophet/policies), MXNet's KVStore and PyTorch's
DistributedDataParallel over gloo. The last two are *peers*: what a user could take instead, run as their own
documentation says. How an engine's roles are started is in launchers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from prophet.core import settings
from prophet.core.errors import UserError
from prophet.core.units import parse_size
from prophet.lab.policy_options import combinations, option_settings, refuse_tuning, size_setting
from prophet.lab.schema import Strict
from prophet.policies import policy_names

Framework = Literal["torch", "mxnet"]
EngineName = Literal["byteps", "kvstore", "ddp"]

STOCK = "stock"
STOCK_CREDIT = "stock-credit"
STOCK_CREDIT_VALUE = "4"
"""BytePS's own credit, in partitions, that `stock-credit` runs with."""
DDP_GLOO = "ddp-gloo"
MXNET_KVSTORE = "mxnet-kvstore"
MXNET_P3 = "mxnet-p3"


@dataclass(frozen=True)
class Peer:
    """A policy that is not BytePS: its engine and the only framework it is for."""

    engine: EngineName
    framework: Framework


PEERS: Mapping[str, Peer] = MappingProxyType(
    {DDP_GLOO: Peer("ddp", "torch"), MXNET_KVSTORE: Peer("kvstore", "mxnet"), MXNET_P3: Peer("kvstore", "mxnet")}
)

SETTINGS_OF: Mapping[EngineName, tuple[str, ...]] = MappingProxyType(
    {"byteps": ("BYTEPS_", "PROPHET_"), "kvstore": ("MXNET_", "DMLC_PS_", "PS_"), "ddp": ("GLOO_", "TORCH_")}
)
"""How the variables begin that a policy of each engine may set."""

Sizes = Annotated[list[int], BeforeValidator(lambda value: [parse_size(v) for v in _as_list(value)])]


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


class PolicyEntry(Strict):
    """A policy with settings. Its own options are keys too; lists of those or of `partition_bytes` make one policy of
    each combination.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    base: str | None = None
    """The policy that runs; the name where left out."""
    framework: Framework | None = None
    """In which it runs; the job's where left out, and a peer's own."""
    partition_bytes: Sizes | None = None
    tune: int | None = Field(default=None, ge=1, le=100)
    """Short runs in which a policy looks for its best sizes, before it is measured."""
    env: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class Policy:
    """A policy as it runs: `env` is what it adds to the environment of every process."""

    name: str
    base: str
    env: Mapping[str, str] = field(default_factory=dict)
    framework: Framework = "torch"
    tune: int = 0
    """Trials that choose credit and partition size before the first repeat."""

    @property
    def engine(self) -> EngineName:
        """What moves the gradients."""
        return PEERS[self.base].engine if self.base in PEERS else "byteps"

    @property
    def hooked(self) -> bool:
        """Whether Prophet's hook is in the job, and with it the record of transfers."""
        return self.engine == "byteps" and self.base not in (STOCK, STOCK_CREDIT)

    @property
    def traced(self) -> bool:
        """Whether BytePS's own trace can show the transfers instead (of PyTorch's, whose names it is read by)."""
        return self.engine == "byteps" and self.framework == "torch" and not self.hooked


def known_policies() -> list[str]:
    """Names that a config may give without `base`."""
    return [STOCK, STOCK_CREDIT, *policy_names(), *PEERS]


def byteps_policies() -> tuple[Policy, ...]:
    """Every known policy of BytePS at its own settings: those that can be simulated."""
    return tuple(
        _expanded(PolicyEntry.model_construct(name=name), "policies", "torch")[0]
        for name in known_policies()
        if name not in PEERS
    )


def expand_policies(
    entries: Sequence[str | PolicyEntry], framework: Framework, path: Path, where: str
) -> tuple[Policy, ...]:
    """All policies of a config's entries; `framework` is the job's. Raises UserError."""
    policies: list[Policy] = []
    for index, entry in enumerate(entries):
        at = f"{path}: {where}policies[{index}]"
        policies += _expanded(_entry(entry) if isinstance(entry, str) else entry, at, framework)
    names = [policy.name for policy in policies]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path}: {where}policies: {twice!r} is there twice; give one another name and a base")
    return tuple(policies)


def choose_policies(policies: Sequence[Policy], only: Sequence[str], framework: Framework) -> tuple[Policy, ...]:
    """The file's policies of these names, and known ones that the file does not have. Raises UserError."""
    by_name = {policy.name: policy for policy in policies}
    chosen = []
    for name in dict.fromkeys(only):
        if name not in by_name and name not in known_policies():
            known = ", ".join(dict.fromkeys([*by_name, *known_policies()]))
            raise UserError(f"--policy: unknown policy {name!r}; the known ones are {known}")
        chosen.append(by_name[name] if name in by_name else _expanded(_entry(name), "--policy", framework)[0])
    return tuple(chosen)


def _entry(name: str) -> PolicyEntry:
    # Not checked as in a mapping: a name that is wrong is an unknown policy, which says more.
    return PolicyEntry.model_construct(name=name)


def _expanded(entry: PolicyEntry, at: str, framework: Framework) -> list[Policy]:
    base = entry.base or entry.name
    if base not in known_policies():
        raise UserError(f"{at}: unknown policy {base!r}; the known ones are {', '.join(known_policies())}")
    framework = _framework(entry, base, at, framework)
    own = entry.model_extra or {}
    varied = option_settings(base, own, PolicyEntry.model_fields, at)
    if entry.tune is not None:
        refuse_tuning(base, [*own, *([] if entry.partition_bytes is None else ["partition_bytes"])], at)
    if entry.partition_bytes is not None and base in PEERS:
        raise UserError(f"{at}: partition_bytes is a setting of BytePS, not of {base}; leave it out")
    prefixes = SETTINGS_OF[PEERS[base].engine if base in PEERS else "byteps"]
    for name in entry.env:
        if not name.startswith(prefixes) or name == settings.SCHEDULER:
            allowed = " and ".join(f"{prefix}..." for prefix in prefixes)
            raise UserError(f"{at}.env: {name} is no setting of a policy; {allowed} variables are")
    env = dict(entry.env)
    if base == STOCK_CREDIT:
        env.setdefault("BYTEPS_SCHEDULING_CREDIT", STOCK_CREDIT_VALUE)
    elif base != STOCK and base not in PEERS:
        env[settings.SCHEDULER] = base
    if entry.partition_bytes is not None:
        varied.append(size_setting(settings.BYTEPS_PARTITION_BYTES, entry.partition_bytes))
    return [
        Policy(entry.name + label, base, {**env, **chosen}, framework, entry.tune or 0)
        for chosen, label in combinations(varied)
    ]


def _framework(entry: PolicyEntry, base: str, at: str, of_job: Framework) -> Framework:
    if base not in PEERS:
        return entry.framework or of_job
    own = PEERS[base].framework
    if entry.framework not in (None, own):
        others = [name for name, peer in PEERS.items() if peer.framework == entry.framework]
        raise UserError(f"{at}.framework: {base} is for {own} only; for {entry.framework} take {' or '.join(others)}")
    return own
