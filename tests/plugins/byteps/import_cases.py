"""Programs that print which modules of the project they have imported, one a line. The argument says which program."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from pathlib import Path
from typing import Any


def nothing() -> None:
    """An interpreter that has started."""


def agent() -> None:
    """Imports of the autoload when BytePS is imported."""
    importlib.import_module("prophet_byteps.agent")


def byteps() -> None:
    """A script that has imported BytePS and not yet started it; the agent's thread runs."""
    importlib.import_module("byteps.torch")


def training() -> None:
    """All that a job of PyTorch needs to its end: other workers, an optimizer, a search, and the plan of a choice."""
    byteps()
    from prophet_scheduler.core.choice import ChoosingPolicy, Question, Shape
    from prophet_scheduler.core.cut import Cut
    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.profile import GradientProfile, Profile
    from prophet_scheduler.policies import get_policy
    from prophet_scheduler.session.messages import SessionTerms
    from prophet_scheduler.session.session import Session

    for module in ("exchange", "torch.optimizer"):
        importlib.import_module(f"prophet_byteps.{module}")
    gradients = tuple(GradientProfile(f"g{place}", 1_000_000, 0.1 * (10 - place), 0.01) for place in range(10))
    policy = get_policy("prophet")
    Session(policy, SessionTerms(5.0, shape=Shape(2, 1), adapts=True))
    policy.plan(Profile("job", gradients), Network(1e7))
    assert isinstance(policy, ChoosingPolicy)
    question = Question(Profile("job", gradients), Network(1e7), Shape(2, 1), (Cut.uniform(1 << 19),), anew=True)
    search = policy.search(question)
    while not search.work(1 << 20):
        pass
    policy.chosen_plan(search.choices[0], question)


def begun() -> None:
    """The agent of a job that has begun to send. Its thread then plans and keeps, and fails where it imports anything:
    a child that is forked meanwhile could never import that.
    """
    from prophet_byteps.agent import Agent
    from prophet_scheduler.core.choice import Question, Shape
    from prophet_scheduler.core.cut import Cut
    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.profile import GradientProfile, Profile
    from prophet_scheduler.core.settings import Settings
    from prophet_scheduler.policies.prophet import Prophet
    from prophet_scheduler.session.kept import Kept

    os.environ |= {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1"}
    job = Agent("torch", Settings("prophet", cache=Path(sys.argv[2])), Prophet(1 << 17), None, object(), "")  # type: ignore[arg-type]
    job._begin()
    gradients = tuple(GradientProfile(f"g{place}", 1_000_000, 0.1 * (10 - place), 0.01) for place in range(10))
    profile, cut = Profile("job", gradients), Cut.uniform(1 << 19)
    job._board.first_cut([1_000_000] * 10)
    late: list[str] = []

    def turn() -> None:
        question = Question(profile, Network(1e7), Shape(2, 1), (cut,), anew=True)
        search = Prophet(1 << 17).search(question)
        search.work(1 << 20)
        job._reports.predict(job._learning.session)  # type: ignore[arg-type]
        job._learning._warm.keep(Kept(profile, Network(1e7), cut))  # type: ignore[union-attr]

    thread = threading.Thread(target=turn)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and threading.current_thread() is thread:
            late.append(arguments[0])

    sys.addaudithook(watch)
    thread.start()
    thread.join()
    assert list(Path(sys.argv[2]).iterdir()), "it has kept what it learned"
    assert not late, late


if __name__ == "__main__":
    {case.__name__: case for case in (nothing, agent, byteps, training, begun)}[sys.argv[1]]()
    for name in sorted(sys.modules):
        if name.startswith("prophet_"):
            print(name)
