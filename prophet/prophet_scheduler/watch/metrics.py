"""Page of metrics for Prometheus, from a status.

Rule of this file: conversion of a LiveStatus to the text format, version 0.0.4 (prometheus.io/docs/instrumenting,
"Exposition formats"). server.py has the page's address. Times are seconds, sizes bytes. Metrics are only added, never
removed. The page omits unknown values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prophet_scheduler.watch.status import LiveStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


Values = list[tuple[dict[str, str], float | int | None]]
"""Values by labels; None for an unknown value."""


class Figure(NamedTuple):
    """One metric with its help text, and its values by labels other than the worker's."""

    name: str
    kind: str
    help: str
    values: Values


def metrics_page(status: LiveStatus) -> str:
    """Return the page. Each value has the labels job, rank and policy."""
    own = {"job": status.worker.job, "rank": str(status.worker.rank), "policy": status.agent.policy}
    lines = []
    for figure in figures(status):
        known = [(labels, value) for labels, value in figure.values if value is not None]
        if not known:
            continue
        lines += [f"# HELP {figure.name} {figure.help}", f"# TYPE {figure.name} {figure.kind}"]
        for labels, value in known:
            inner = ",".join(f'{name}="{_escaped(text)}"' for name, text in {**own, **labels}.items())
            lines.append(f"{figure.name}{{{inner}}} {value!r}")
    return "\n".join(lines) + "\n"


def figures(status: LiveStatus) -> Iterable[Figure]:
    """Return all metrics, including those with unknown values."""
    agent, spread, network = status.agent, status.iteration, status.agent.network

    def alone(name: str, kind: str, help: str, value: float | int | None) -> Figure:
        return Figure(f"prophet_{name}", kind, help, [({}, value)])

    yield alone("iterations_total", "counter", "Iterations since Prophet began to watch.", status.iterations)
    quantiles = [("0.1", "p10_s"), ("0.5", "median_s"), ("0.9", "p90_s")]
    times: Values = [({"quantile": name}, getattr(spread, key) if spread else None) for name, key in quantiles]
    yield Figure("prophet_iteration_seconds", "gauge", "Time of the newest iterations, by quantile.", times)
    ways = (("sent", status.sent), ("received", status.received))
    by_way = [({"direction": name}, flow) for name, flow in ways]
    totals: Values = [(labels, flow.total_bytes) for labels, flow in by_way]
    yield Figure("prophet_bytes_total", "counter", "Bytes of gradients since Prophet began to watch.", totals)
    rates: Values = [(labels, flow.bytes_per_s) for labels, flow in by_way]
    yield Figure("prophet_bytes_per_second", "gauge", "Bytes of gradients over the last seconds.", rates)
    busy: Values = [(labels, flow.busy) for labels, flow in by_way]
    yield Figure("prophet_busy_ratio", "gauge", "Share of time with a transfer in flight.", busy)
    for key, what in (("waiting", "are ready but not sent"), ("in_flight", "are in flight")):
        counts: Values = [({"urgency": str(place)}, getattr(band, key)) for place, band in enumerate(status.urgency)]
        help = f"Transfers that {what}, by urgency: 0 is the first layers."
        yield Figure(f"prophet_transfers_{key}", "gauge", help, counts)
    waits = status.forward_waits
    yield alone(
        "gradient_wait_seconds",
        "gauge",
        "Time for which the program has been waiting for a gradient.",
        waits.for_s if waits else 0.0,
    )
    yield alone("plans_total", "counter", "Plans adopted after the first.", agent.plans)
    yield alone("recuts_total", "counter", "Changes of the cut of blocks.", agent.recuts)
    yield alone("push_credit_bytes", "gauge", "Bytes that may be in flight.", agent.push_credit)
    bandwidth = network.bandwidth if network else None
    yield alone("bandwidth_bytes_per_second", "gauge", "Measured rate of the link.", bandwidth)
    overhead_s = network.overhead_s if network else None
    yield alone("message_overhead_seconds", "gauge", "Measured time per message in addition to its bytes.", overhead_s)
    predicted = status.predicted
    pairs: Values = [
        ({"of": "prophet"}, predicted.iteration_s),
        ({"of": "stock"}, predicted.stock_iteration_s),
    ]
    yield Figure("prophet_predicted_iteration_seconds", "gauge", "Predicted, not measured.", pairs)
    aside = int(bool(agent.stepped_aside or agent.given_back))
    yield alone("off", "gauge", "1 if the engine uses its own order again.", aside)
    yield alone("agent_cpu_seconds_total", "counter", "Processor time of Prophet's thread.", agent.agent_cpu_s)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
