"""Learning while a process sends: from the hook's events to this worker's plans, and to wishes for all workers.

Rule of this file: the edges of a pure Session: notes on the board (cutting.py), NIC counters, traces, and kept values.

Order, groups and deadlines belong to each worker, blocks and tensors to the job (docs/decisions/sizes-of-the-job.md).
A plan's cut is a wish, left on the board with its credit. So a worker without the hook cuts like the others. If the
front end fails, the workers agree or exit before anything is sent.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prophet_byteps import agreement, partition
from prophet_byteps.cutting import CutBoard, Reason
from prophet_byteps.place import decides, shape_of, where_it_runs
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut, learning_cut
from prophet_scheduler.frontends.notices import logger

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prophet_byteps.tracing import Traced
    from prophet_scheduler.core.choice import Shape
    from prophet_scheduler.core.plan import Plan
    from prophet_scheduler.core.policy import Policy
    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.core.settings import Settings
    from prophet_scheduler.frontends.warm import WarmStart
    from prophet_scheduler.session.session import Session


class KeptPushes:
    """Learned values, kept in `folder`, for tensors that the program itself pushes. `where` says where the job runs,
    as for a WarmStart. `shape` is the cluster's, None if unknown.

    When BytePS starts, nobody knows what the program will push. So two runs are of the same job if they have the same
    program and arguments, and run in the same place.
    """

    def __init__(self, folder: Path | None, where: Mapping[str, str], policy: Policy, shape: Shape | None) -> None:
        from prophet_scheduler.frontends.warm import WarmStart

        self.cut: Cut | None = None
        """Cut of tensors pushed with a priority, on all workers. None leaves it to BytePS."""
        self._policy = policy
        self._shape = shape
        where = {**where, "program": repr(sys.argv)}
        self.warm = WarmStart(folder, where, lambda sizes: Cut.uniform(partition.LEARNING_BYTES))
        self.warm.first_cut(())

    def size(self) -> int:
        """Return the best size in bytes for the kept gradients and network; a medium one if these are unknown.

        These tensors keep the partition size of their first push, so no other size can be tried.
        """
        try:
            return self._best() or partition.LEARNING_BYTES
        except Exception as error:
            logger.warning("Prophet starts without kept results: %s: %s", type(error).__name__, error)
            return partition.LEARNING_BYTES

    def _best(self) -> int | None:
        from prophet_scheduler.core.choice import ChoosingPolicy, Question
        from prophet_scheduler.session.questions import EVENTS_A_TURN

        kept, policy = self.warm.kept, self._policy
        if kept is None or kept.network is None or self._shape is None or not isinstance(policy, ChoosingPolicy):
            return None
        middle = Cut.uniform(partition.LEARNING_BYTES)
        search = policy.search(Question(kept.profile, kept.network, self._shape, (middle,), anew=True, arena=False))
        search.work(EVENTS_A_TURN)  # Not longer, since all workers wait for it.
        return search.choices[0].cut.typical_bytes(kept.profile.total_bytes) if search.choices else None


class Learning:
    """Learning of one process. It starts with `policy`; `make_policy(bytes)` returns it for another block size.
    `profile` is the user's.

    `arena`: gradients lie in an arena, so that event ids are places in it. Otherwise they stay whole, and ids are taken
    to be the forward order.
    """

    def __init__(
        self,
        framework: str,
        settings: Settings,
        sizes: partition.Sizes,
        policy: Policy,
        profile: Profile | None = None,
        make_policy: Callable[[int], Policy] | None = None,
    ) -> None:
        self.arena = framework not in partition.WHOLE_GRADIENTS
        self._framework = framework
        self._settings = settings
        self._sizes = sizes
        self._adapts = sizes.fixed is None
        self._profile = profile
        self._make_policy = make_policy
        self._warm: WarmStart | None = None
        self._pushes: KeptPushes | None = None
        self.board = CutBoard(sizes.fixed, self._first_cut)
        self.policy = policy
        self.plan = policy.plan(None, None)
        """The plan in force on this worker."""
        self.plans = 0
        """Number of plans taken up after the first."""
        self.session: Session | None = None
        """Session of the process; None before the process sends."""
        self.began_warm = False
        self.last_recut_s: float | None = None
        self._recuts = 0
        self._traced: Traced | None = None
        self._interface: str | None = None

    def _first_cut(self, sizes: Sequence[int]) -> Cut:
        """Return this worker's first cut. Called in the program's own thread, once the gradients are known."""
        if self._warm is None:
            from prophet_scheduler.frontends.warm import WarmStart

            where = self._where() | {"blocks": str(self._sizes)}
            self._warm = WarmStart(
                self._settings.cache, where, self._learning_cut, self._profile, self.arena, MOST_BLOCK_BYTES
            )
        return self._warm.first_cut(sizes)

    def _where(self) -> dict[str, str]:
        return {**where_it_runs(os.environ), "framework": self._framework, "policy": self._settings.policy}

    def _learning_cut(self, sizes: Sequence[int]) -> Cut:
        # Gradients that stay whole cannot have blocks of several sizes at once.
        return learning_cut(sum(sizes)) if self.arena else Cut.uniform(partition.LEARNING_BYTES)

    def agree_on_pushes(self, module: Any) -> None:
        """If blocks adapt, agree on the partition size of tensors that the program itself pushes with a priority, and
        plan for it.
        """
        if not self.arena or not self._adapts or agreement.active() is None:
            return
        own_pushes = importlib.import_module(f"prophet_byteps.{self._framework}.own_pushes")
        if self._pushes is None:
            self._pushes = KeptPushes(self._settings.cache, self._where(), self.policy, shape_of(os.environ))
        size: int = own_pushes.agree(module, self._pushes.size)
        self._pushes.cut = Cut.uniform(size) if size else None
        if size and self._make_policy is not None:
            self.policy = self._make_policy(size)
            if self.session is not None:
                self.session.policy = self.policy

    def _in_use(self, session: Session) -> tuple[WarmStart | None, Cut | None]:
        """Return (store of the results, cut in force that they apply to)."""
        if self._warm is None and self._pushes is not None and self._pushes.cut and session.profiler.iterations:
            return self._pushes.warm, self._pushes.cut
        return self._warm, self.board.in_force.cut

    def begin(self) -> None:
        """Create the session."""
        from prophet_scheduler.learn.nic import interface_towards
        from prophet_scheduler.session.messages import SessionTerms
        from prophet_scheduler.session.session import Session

        scheduler_host = os.environ.get("DMLC_PS_ROOT_URI")
        self._interface = interface_towards(scheduler_host) if scheduler_host else None
        terms = SessionTerms(
            self._settings.monitor_s,
            # Whole gradients arrive in any order: MXNet's threads hand over those that become ready at about one time.
            forward_ids=not self.arena,
            arena=self.arena,
            shape=shape_of(os.environ),
            adapts=self._adapts and decides(os.environ),
            follows=self._adapts and not decides(os.environ),
            learns_order=self.arena,
        )
        self.session = Session(self.policy, terms)
        searches = ["prophet_scheduler.policies.algorithms.chooser"] if hasattr(self.policy, "search") else []
        for name in ("prophet_scheduler.core.files", "prophet_scheduler.policies.algorithms.stock", *searches):
            importlib.import_module(name)  # The agent's thread must not import anything.

    def keep(self) -> None:
        """Keep the learned values for the next run. Called at the end of the process."""
        if self.session is not None:
            warm, cut = self._in_use(self.session)
            if warm is not None:
                warm.keep(self.session.learned(cut))

    def turn(self, session: Session, now: float, events: NDArray[Any]) -> Plan | None:
        """Process events since the last turn, and leave wishes on the board. Return the new plan, if any."""
        from prophet_scheduler.learn.nic import sample_nic
        from prophet_scheduler.session.messages import ForwardTraced, Remembered, TakeUp, Turn, Want

        board = self.board
        in_force = board.in_force
        warm, cut = self._in_use(session)
        if warm is not None and (kept := warm.take()) is not None:
            session.on(Remembered(kept))
            self.began_warm = True
        if board.trace is not None and (traced := board.trace.found) is not self._traced:
            self._traced = traced
            session.on(ForwardTraced(traced.forward_s, traced.policy or self.policy))
        if in_force.recuts > self._recuts:
            self._recuts, self.last_recut_s = in_force.recuts, now
        turn = Turn(
            now,
            events,
            sample_nic(self._interface, now) if self._interface else None,
            cut=in_force.cut,
            networks=board.networks,
            refusals=board.refusals,
            credit=in_force.credit,
            barrier=board.barrier,
            ended=board.take_ended(),
        )
        instructions = session.on(turn)
        if (network := session.network) is not None:
            board.measured(network)
        if warm is not None:
            warm.turn(now, cut, session.learned)
        taken = None
        for instruction in instructions:
            match instruction:
                case TakeUp(plan):
                    self.plan = taken = plan
                    self.plans += 1
                case Want() as want:
                    board.want(want.cut, Reason(want.why, want.predicted_s), want.credit)
        return taken
