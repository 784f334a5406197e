"""MG-WFBP (Shi, Chu and Li, INFOCOM 2019): merge gradients if waiting costs less than another start-up.

Rule of this file: which neighbouring gradients travel as one, given generation times and an affine cost, and the plan
for that. docs/policies/baselines.md has the mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies import Definition
from prophet_scheduler.policies.algorithms.plans import ONE_TASK, grouped_plan


class MgWfbp:
    """The paper's merging or, with `exact`, the best possible merging of neighbours.

    Until profile and network are known, gradients go one by one in order of arrival: wait-free back-propagation.
    """

    def __init__(self, exact: bool = False) -> None:
        self.name = "mg-wfbp-exact" if exact else "mg-wfbp"
        self._merge = best_merge if exact else merge

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        if network is None:
            return Plan(push=QueuePlan(credit=ONE_TASK), policy=self.name)
        return grouped_plan(self.name, profile, lambda times_s, sizes: self._merge(times_s, sizes, network))


def merge(generation_s: Sequence[float], sizes: Sequence[int], network: Network) -> list[list[int]]:
    """Return the groups of Algorithm 1 in sending order, each as positions in generation order (falling).

    `generation_s` (seconds, never rising) and `sizes` (bytes) are in forward order, and a message of s bytes takes
    `network.transfer_s(s)` = a + b s. Starting from the last layer, gradient l is merged into l - 1 if l - 1 is
    generated less than a after l could start: c(l-1) - tau_c(l) < a. This implies that tau_c(l) + a + b s is later than
    c(l-1), which the authors' program also checks. A merged group starts when the wire is free and its last member is
    ready.

    Each decision is the best for these two gradients alone. The paper calls the result optimal, but it is not always:
    see `best_merge`.
    """
    groups: list[list[int]] = []
    free_s = 0.0  # when all closed groups are off the wire
    for position in reversed(range(len(sizes))):
        if groups:
            group = groups[-1]
            start_s = max(free_s, generation_s[group[-1]])
            if generation_s[position] - start_s < network.overhead_s:
                group.append(position)
                continue
            free_s = start_s + network.transfer_s(sum(sizes[member] for member in group))
        groups.append([position])
    return groups


def best_merge(generation_s: Sequence[float], sizes: Sequence[int], network: Network) -> list[list[int]]:
    """Return the merging of neighbours whose last group finishes first; arguments and result as in `merge`.

    Groups travel one after another, so a group depends on earlier groups only through the time when the last of them
    finishes, and earlier is never worse. So the best finish after each gradient follows from the best finishes before
    it, by trying every possible last group: O(n^2). Ties go to the merging with the fewest groups.
    """
    count = len(sizes)
    order = list(reversed(range(count)))
    # best[k]: (end, groups) of the first k gradients in generation order; start[k]: where the last group begins.
    best: list[tuple[float, int]] = [(0.0, 0)]
    start = [0]
    for end in range(1, count + 1):
        generated_s, total, options = generation_s[order[end - 1]], 0, []
        for first in reversed(range(end)):
            total += sizes[order[first]]
            before_s, number = best[first]
            options.append((max(before_s, generated_s) + network.transfer_s(total), number + 1, first))
        end_s, number, first = min(options)
        best.append((end_s, number))
        start.append(first)
    groups: list[list[int]] = []
    end = count
    while end:
        groups.append(order[start[end] : end])
        end = start[end]
    return groups[::-1]


_definition = partial(Definition, page="policies/baselines.md", groups=True, waits=True)

POLICIES = {
    "mg-wfbp": _definition("gradients merged as in MG-WFBP", lambda options, partition_bytes: MgWfbp()),
    "mg-wfbp-exact": _definition(
        "the best merging of neighbours that MG-WFBP could find",
        lambda options, partition_bytes: MgWfbp(exact=True),
    ),
}
