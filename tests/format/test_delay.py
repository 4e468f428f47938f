from __future__ import annotations

import pytest

from penstock.errors import BadSettings
from penstock.format.delay import DEFAULT_DELAY_LEVELS, deliver_timestamp, parse_delay_levels


def test_the_default_levels_are_rocketmqs_eighteen() -> None:
    seconds = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
    assert tuple(second * 1000 for second in seconds) == DEFAULT_DELAY_LEVELS


def test_levels_are_read_in_every_unit() -> None:
    assert parse_delay_levels(" 2s 3m  4h 5d") == (2_000, 180_000, 14_400_000, 432_000_000)
    assert parse_delay_levels("") == ()


@pytest.mark.parametrize("text", ["1", "1x", "s", "-1s", "1s,2s", "1.5s", "١s"])
def test_what_is_no_delay_is_refused(text: str) -> None:
    with pytest.raises(BadSettings, match="messageDelayLevel"):
        parse_delay_levels(text)


@pytest.mark.parametrize(("level", "due"), [(1, 2_000), (3, 11_000), (0, 2_000), (19, 2_000), (-1, 2_000)])
def test_a_message_is_due_after_its_level_and_an_unknown_level_waits_a_second(level: int, due: int) -> None:
    assert deliver_timestamp(1_000, level, DEFAULT_DELAY_LEVELS) == due
