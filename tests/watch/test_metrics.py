"""The page of figures for Prometheus."""

from __future__ import annotations

import re
from dataclasses import replace

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.watch.metrics import figures, metrics_page
from prophet_scheduler.watch.status import Flow, LiveStatus, Predicted, Spread, UrgencyBand, WorkerName

LINE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)+)\} (\S+)')
AGENT = AgentStatus("prophet", "", 3, 0.25, 1 << 20, 2_000_000, network=Network(31.25e6, 0.001), recuts=2)
STATUS = LiveStatus(
    WorkerName('tr"ain\\', 1, "ddp"),
    time_s=1e9,
    since_s=10.0,
    iterations=40,
    agent=AGENT,
    iteration=Spread(0.9, 0.8, 1.1, 0.95, 40),
    sent=Flow(1000, 100.0, 0.5),
    received=Flow(900, 90.0, 0.25),
    urgency=(UrgencyBand(0, "block at 0.00 MiB", 3, 30, 1, 10), UrgencyBand(8, "block at 0.03 MiB")),
    predicted=Predicted(0.88, 1.7),
)


def values(page: str) -> dict[tuple[str, str], float]:
    found = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match is not None, line
            name, labels, value = match.groups()
            assert 'job="tr\\"ain\\\\",rank="1",policy="prophet"' in labels
            own = labels.split('policy="prophet"', 1)[1].strip(",")
            found[name, own] = float(value)
    return found


def test_metrics_have_values_and_labels() -> None:
    found = values(metrics_page(STATUS))
    assert found["prophet_iterations_total", ""] == 40
    assert found["prophet_iteration_seconds", 'quantile="0.5"'] == 0.9
    assert found["prophet_bytes_total", 'direction="received"'] == 900
    assert found["prophet_busy_ratio", 'direction="sent"'] == 0.5
    assert found["prophet_transfers_waiting", 'urgency="0"'] == 3
    assert found["prophet_predicted_iteration_seconds", 'of="stock"'] == 1.7
    assert found["prophet_bandwidth_bytes_per_second", ""] == 31.25e6
    assert found["prophet_off", ""] == 0


def test_metrics_have_help_and_type() -> None:
    lines = metrics_page(STATUS).splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert len(names) == len(set(names)) == len(list(figures(STATUS)))
    for name in names:
        place = next(place for place, line in enumerate(lines) if line.startswith(f"# HELP {name} "))
        kind = lines[place + 1].split()
        assert kind[:3] == ["#", "TYPE", name] and kind[3] in ("gauge", "counter")
        assert (kind[3] == "counter") == name.endswith("_total")
        assert lines[place + 2].startswith(name + "{")


def test_unknown_values_are_left_out() -> None:
    page = metrics_page(replace(STATUS, iteration=None, predicted=Predicted(), agent=replace(AGENT, network=None)))
    assert "iteration_seconds" not in page and "bandwidth" not in page
    aside = replace(AGENT, stepped_aside="no hook")
    assert values(metrics_page(replace(STATUS, agent=aside)))["prophet_off", ""] == 1
