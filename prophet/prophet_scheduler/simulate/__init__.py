"""Simulator of a job on a network under a scheduler, on a virtual clock.

The queue, the policies and the session are those of a real job. Only computing, links and servers are simulated
(core/native/simulator.h). `prophet simulate CONFIG` is its command.
"""

from __future__ import annotations

from prophet_scheduler.simulate.cluster import Cluster, Costs
from prophet_scheduler.simulate.job import Job, job_of_profile
from prophet_scheduler.simulate.run import Options, SimulatedRun, simulate

__all__ = ["Cluster", "Costs", "Job", "Options", "SimulatedRun", "job_of_profile", "simulate"]
