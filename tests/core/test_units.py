"""Rates and sizes as text."""

from __future__ import annotations

import pytest

from prophet_scheduler.core.units import format_rate, format_size, format_time, parse_rate, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [
        ("250mbit", 250e6),
        ("3gbit", 3e9),
        ("1.5Gbit/s", 1.5e9),
        ("100 kbit", 1e5),
        ("250E6 bit/s", 250e6),
        ("9600bit", 9600),
        ("10Gbps", 1e10),
        ("250mbps", 250e6),
        ("1 Gb/s", 1e9),
        ("2.5 Gbit/s", 2.5e9),
        ("100 Mbits/s", 1e8),
        (250_000_000, 250e6),
        (2.5e8, 250e6),
    ],
)
def test_rates(text: object, bits_per_s: float) -> None:
    assert parse_rate(text) == bits_per_s


@pytest.mark.parametrize(
    "bad", ["fast", "", None, True, "250", "1e9", "250MBps", "1 GB/s", "250MB", "-3mbit", 0, -1, "nanbit", float("nan")]
)
def test_what_is_no_rate_says_what_to_write(bad: object) -> None:
    with pytest.raises(ValueError, match=r"a rate; write e.g. 250mbit"):
        parse_rate(bad)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("25.6MB", 25_600_000), ("512KiB", 524_288), ("4M", 4_000_000), ("256kB", 256_000), ("1GiB", 2**30), (4096, 4096)],
)
def test_sizes(text: object, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("bad", ["big", "25mbit", 0, [1], False])
def test_what_is_no_size_says_what_to_write(bad: object) -> None:
    with pytest.raises(ValueError, match=r"a size; write e.g. 25.6MB or 512KiB"):
        parse_size(bad)


@pytest.mark.parametrize("text", ["250mbit", "3gbit", "1.5gbit", "64kbit", "2bit"])
def test_a_rate_is_written_as_it_is_read(text: str) -> None:
    assert format_rate(parse_rate(text)) == text


@pytest.mark.parametrize("text", ["25.6MB", "512KiB", "4MiB", "4MB", "256kB", "12B"])
def test_a_size_is_written_as_it_is_read(text: str) -> None:
    assert format_size(parse_size(text)) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("5ms", 0.005), ("100us", 1e-4), ("1.5 s", 1.5), ("0", 0.0), (0.02, 0.02), (0, 0.0)]
)
def test_times(text: object, seconds: float) -> None:
    assert parse_time(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("bad", ["soon", "5min", -1, "-5ms", None, True, float("inf")])
def test_what_is_no_time_says_what_to_write(bad: object) -> None:
    with pytest.raises(ValueError, match=r"a time; write e.g. 5ms"):
        parse_time(bad)


@pytest.mark.parametrize("text", ["5ms", "100us", "2s", "1.5ms"])
def test_a_time_is_written_as_it_is_read(text: str) -> None:
    assert format_time(parse_time(text)) == text
    assert format_time(0) == "0s"
