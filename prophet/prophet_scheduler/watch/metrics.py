"""Page of metrics for Prometheus, from a status.

Rule of this file: conversion of a LiveStatus to the text format, version 0.0.4 (prometheus.io/docs/instrumenting,
"Exposition formats"). server.py has the page's address. Times are seconds, sizes bytes. Metrics are only added, never
removed. The page omits unknown values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prophet_scheduler.watch.status import LiveStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Figure(NamedTuple):
    """One metric: its name without `prophet_`, its help text, and its values (None: unknown) by a label's value."""

    name: str
    help: str
    values: Mapping[str, float | int | None]
    label: str = ""
    """Name of the label; empty for a metric with a single value."""


def metrics_page(status: LiveStatus) -> str:
    """Return the page. Each value has the labels job, rank and policy."""
    own = {"job": status.worker.job, "rank": str(status.worker.rank), "policy": status.agent.policy}
    lines = []
    for name, help, values, label in figures(status):
        known = {text: value for text, value in values.items() if value is not None}
        if known:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP prophet_{name} {help}", f"# TYPE prophet_{name} {kind}"]
        for text, value in known.items():
            labels = {**own, label: text} if label else own
            inner = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
            lines.append(f"prophet_{name}{{{inner}}} {value!r}")
    return "\n".join(lines) + "\n"


def figures(status: LiveStatus) -> list[Figure]:
    """Return all metrics, including those with unknown values."""
    agent, spread, network = status.agent, status.iteration, status.agent.network
    predicted, waits, sent, received = status.predicted, status.forward_waits, status.sent, status.received
    quantiles = {"0.1": spread.p10_s, "0.5": spread.median_s, "0.9": spread.p90_s} if spread else {}
    totals = {"sent": sent.total_bytes, "received": received.total_bytes}
    rates = {"sent": sent.bytes_per_s, "received": received.bytes_per_s}
    busy = {"sent": sent.busy, "received": received.busy}
    waiting = {str(place): band.waiting for place, band in enumerate(status.urgency)}
    in_flight = {str(place): band.in_flight for place, band in enumerate(status.urgency)}
    way, urgency = "direction", "by urgency: 0 is the first layers."
    predictions = {"prophet": predicted.iteration_s, "stock": predicted.stock_iteration_s}
    bandwidth, overhead_s = (network.bandwidth, network.overhead_s) if network else (None, None)
    return [
        Figure("iterations_total", "Iterations since Prophet began to watch.", {"": status.iterations}),
        Figure("iteration_seconds", "Time of the newest iterations, by quantile.", quantiles, "quantile"),
        Figure("bytes_total", "Bytes of gradients since Prophet began to watch.", totals, way),
        Figure("bytes_per_second", "Bytes of gradients over the last seconds.", rates, way),
        Figure("busy_ratio", "Share of time with a transfer in flight.", busy, way),
        Figure("transfers_waiting", f"Transfers that are ready but not sent, {urgency}", waiting, "urgency"),
        Figure("transfers_in_flight", f"Transfers that are in flight, {urgency}", in_flight, "urgency"),
        Figure(
            "gradient_wait_seconds",
            "Time for which the program has been waiting for a gradient.",
            {"": waits.for_s if waits else 0.0},
        ),
        Figure("plans_total", "Plans adopted after the first.", {"": agent.plans}),
        Figure("recuts_total", "Changes of the cut of blocks.", {"": agent.recuts}),
        Figure("push_credit_bytes", "Bytes that may be in flight.", {"": agent.push_credit}),
        Figure("bandwidth_bytes_per_second", "Measured rate of the link.", {"": bandwidth}),
        Figure("message_overhead_seconds", "Measured time per message in addition to its bytes.", {"": overhead_s}),
        Figure("predicted_iteration_seconds", "Predicted, not measured.", predictions, "of"),
        Figure(
            "off", "1 if the engine uses its own order again.", {"": int(bool(agent.stepped_aside or agent.given_back))}
        ),
        Figure("agent_cpu_seconds_total", "Processor time of Prophet's thread.", {"": agent.agent_cpu_s}),
    ]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
