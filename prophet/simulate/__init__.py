"""The simulator: what a job would do on a network under a scheduler, on a virtual clock.

It drives the queue, the policies and the learner that run in a job; only computing, links and servers are
imitated (prophet/core/native/simulator.h). `prophet simulate CONFIG` is its command.
"""

from __future__ import annotations

from prophet.simulate.cluster import Cluster, Costs
from prophet.simulate.job import Job, job_of_graph, job_of_profile
from prophet.simulate.run import Options, SimulatedRun, simulate

__all__ = ["Cluster", "Costs", "Job", "Options", "SimulatedRun", "job_of_graph", "job_of_profile", "simulate"]
