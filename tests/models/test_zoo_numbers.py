"""Every built-in profile as it is by default: sizes, steps and times, held by golden files."""

from __future__ import annotations

import pytest

from prophet_scheduler.core.profile import find_steps
from prophet_scheduler.models import zoo
from support.golden import Golden, Json


@pytest.mark.parametrize("model", zoo.MODELS)
def test_no_size_and_no_time_has_moved(model: str, golden: Golden) -> None:
    profile = zoo.profile(model)
    steps: list[Json] = []
    for step in find_steps(profile):
        members = profile.gradients[step.first : step.last + 1]
        steps.append(
            {
                "gradients": f"{step.first}-{step.last}",
                "names": f"{members[0].name} to {members[-1].name}",
                "bytes": " ".join(str(gradient.size_bytes) for gradient in members),
                "generation_s": sorted({gradient.generation_s for gradient in members}),
                "gap_s": step.gap_s,
                "forward_s": sum(gradient.forward_s for gradient in members),
            }
        )
    golden.check(
        f"profiles/{model}",
        {
            "gradients": len(profile.gradients),
            "total_bytes": profile.total_bytes,
            "backward_s": profile.backward_s,
            "forward_s": profile.forward_s,
            "steps": steps,
        },
    )
