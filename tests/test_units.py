"""Sizes, counts and times are formatted in one place, and look the same everywhere."""

from __future__ import annotations

import pytest

from penstock.human_units import format_count, format_duration, format_rate, format_size, format_time, parse_time


@pytest.mark.parametrize(
    ("count", "text", "brief"),
    [
        (0, "0 B", "0 B"),
        (1023, "1023 B", "1023 B"),
        (1536, "1.5 KiB", "1.5 KiB"),
        (300 << 20, "300.0 MiB", "300 MiB"),
        (5 << 50, "5120.0 TiB", "5120 TiB"),
    ],
)
def test_a_size_has_the_unit_that_fits(count: int, text: str, brief: str) -> None:
    assert format_size(count) == text
    assert format_size(count, brief=True) == brief


def test_counts_and_rates() -> None:
    assert format_count(1234567) == "1\u2009234\u2009567"
    assert [format_rate(each) for each in (0, 0.25, 99.94, 1500)] == ["0", "0.2", "99.9", "1\u2009500"]


def test_durations_have_one_unit() -> None:
    shown = [format_duration(each) for each in (5, 90_000, 600_000, 86_400_000, 864_000_000)]
    assert shown == ["5 ms", "90 s", "10 min", "24 h", "10 d"]


def test_a_time_survives_a_round_trip() -> None:
    assert parse_time(format_time(1_700_000_000_123)) == 1_700_000_000_123
    assert parse_time(" 1700000000123 ") == 1_700_000_000_123
    assert format_time(1_700_000_000_999, "seconds") == format_time(1_700_000_000_000, "seconds")


def test_a_missing_time_is_a_dash_and_an_impossible_one_its_number() -> None:
    assert [format_time(each) for each in (0, -1, 10**18)] == ["-", "-", str(10**18)]
    for text in ("yesterday", "now-1", "now-1y", "nowadays"):
        with pytest.raises(ValueError, match="it must be"):
            parse_time(text)


def test_a_time_may_be_relative_to_the_present() -> None:
    now = parse_time("now")
    assert 0 <= parse_time("now-1h") - (now - 3_600_000) < 60_000
    assert 0 <= parse_time("now + 2d") - (now + 172_800_000) < 60_000
    assert parse_time("2026-01-31T23:59:00Z") == 1_769_903_940_000
