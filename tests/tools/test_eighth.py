"""The page of PACE and Caramel at an eighth: what is held against the papers."""

from __future__ import annotations

from pathlib import Path

from prophet_scheduler.lab.config import load_experiment
from support.results import cell, failed, policy
from tools import eighth
from tools.kept import Point

CONFIG = Path(__file__).parents[2] / eighth.CONFIG
TIMES = {"ddp-fifo": 1.3, "ddp-horovod": 1.2, "ddp-pace": 1.0, "ddp-caramel": 0.9, "ddp-prophet": 0.8}


def point(profile: str, **times: float) -> Point:
    made = cell(**{name: policy(seconds) for name, seconds in {**TIMES, **times}.items()})
    return Point(made.model_copy(update={"setting": {"profile": profile}}), 2)


def test_a_claim_is_held_against_the_models_that_it_speaks_of() -> None:
    rows = eighth.claims([point("resnet50"), point("inception-v3")]).splitlines()[2:]
    found = [[part.strip() for part in row.strip("|").split("|")] for row in rows]
    assert [row[:4] for row in found] == [
        ["resnet50", "ddp-pace", "ddp-fifo", "1.30"],
        ["resnet50", "ddp-pace", "ddp-horovod", "1.20"],
        ["resnet50", "ddp-pace", "ddp-tictac", "-"],
        ["inception-v3", "ddp-caramel", "ddp-horovod", "1.33"],
    ]
    assert found[0][5] == "1.62", "Prophet over WFBP"


def test_it_says_where_prophet_is_behind_and_by_whom() -> None:
    good, bad = point("resnet50"), point("vgg16", **{"ddp-caramel": 0.5})
    words = eighth.said([good.cell, bad.cell])
    assert words.splitlines() == [
        "**Of 2 cells Prophet is more than 1% behind another in 1.**",
        "",
        "- vgg16: 60.0% behind ddp-caramel",
    ]
    assert eighth.said([cell(**{"ddp-prophet": failed("hung")})]).startswith("Nothing was measured")


def test_the_config_has_every_claimed_model_and_policy() -> None:
    experiment = load_experiment(CONFIG)
    names = {policy.name for policy in experiment.cells[0].policies}
    assert names >= {each for claim in eighth.CLAIMS for each in (claim.policy, claim.other)}
    profiles = {str(place.setting["profile"]) for place in experiment.cells}
    assert profiles == set().union(*(claim.profiles for claim in eighth.CLAIMS))
