"""What may go and why, decided over plain values."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from penstock.store import Settings
from penstock.store.files.file_io import Files
from penstock.store.retention.policy import Cause, DiskUsage, Level, LogFile, RetentionLimits

GIB = 1 << 30
NOW = int(datetime(2024, 5, 17, 15, 30).timestamp() * 1000)
HOUR_MS = 3_600_000


def usage(percent: float, total: int = 100 * GIB, path: str = "/data/commitlog") -> DiskUsage:
    used = round(total * percent / 100)
    return DiskUsage(Path(path), used, total - used)


def rocketmq(**changes: object) -> RetentionLimits:
    """The ratios alone decide."""
    return RetentionLimits.of(Settings(disk_enough_free_bytes=0).with_changes(**changes))


def file(number: int, age_hours: float, *, safe: bool = True) -> LogFile:
    return LogFile(number * GIB, GIB, int(NOW - age_hours * HOUR_MS), safe)


# -- the disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "usable", "ratio"), [(0, 100, 0.0), (50, 50, 0.5), (901, 99, 0.91), (900, 100, 0.9), (1, 10**9, 0.01)]
)
def test_the_used_share_is_rounded_up_to_whole_percents(used: int, usable: int, ratio: float) -> None:
    assert DiskUsage(Path("/"), used, usable).ratio == ratio


def test_blocks_that_are_kept_for_root_are_neither_used_nor_usable(tmp_path: Path) -> None:
    facts = os.statvfs(tmp_path)
    used, usable = Files().disk_usage(tmp_path)
    slack = 1 << 30  # others write to this disk, too
    assert abs(used - (facts.f_blocks - facts.f_bfree) * facts.f_frsize) < slack
    assert abs(usable - facts.f_bavail * facts.f_frsize) < slack


@pytest.mark.parametrize(
    ("percent", "level"),
    [
        (0, Level.ROOMY),
        (75, Level.ROOMY),
        (75.1, Level.OLD_FILES_GO),
        (85, Level.OLD_FILES_GO),
        (85.1, Level.YOUNG_FILES_GO),
        (90, Level.YOUNG_FILES_GO),
        (90.1, Level.FULL),
        (100, Level.FULL),
    ],
)
def test_the_levels_are_those_of_rocketmq(percent: float, level: Level) -> None:
    assert rocketmq().level(usage(percent)) is level


def test_the_levels_are_settings() -> None:
    limits = rocketmq(
        disk_max_used_space_ratio=20, disk_space_clean_forcibly_ratio=0.3, disk_space_warning_level_ratio=0.4
    )
    assert [limits.level(usage(percent)) for percent in (20, 21, 31, 41)] == list(Level)


@pytest.mark.parametrize(
    ("total", "percent", "level"),
    [
        (240 * GIB, 92, Level.YOUNG_FILES_GO),  # 19 GiB free
        (240 * GIB, 94, Level.FULL),  # 14 GiB free
        (4096 * GIB, 92, Level.OLD_FILES_GO),  # 328 GiB free
        (4096 * GIB, 99.3, Level.YOUNG_FILES_GO),  # 29 GiB free
        (20 * GIB, 86, Level.YOUNG_FILES_GO),
        (20 * GIB, 91, Level.FULL),
    ],
)
def test_a_large_disk_with_enough_room_is_not_full_at_a_ratio(total: int, percent: float, level: Level) -> None:
    assert RetentionLimits.of(Settings()).level(usage(percent, total)) is level


def test_the_dev_profile_is_content_with_little_room() -> None:
    limits = RetentionLimits.of(Settings.dev())
    assert limits.level(usage(97, 20 * GIB)) is Level.OLD_FILES_GO
    assert limits.level(usage(98, 20 * GIB)) is Level.YOUNG_FILES_GO
    assert limits.level(usage(99, 20 * GIB)) is Level.FULL


def test_a_least_number_of_free_bytes_holds_whatever_the_ratio() -> None:
    limits = RetentionLimits.of(Settings(disk_min_free_bytes=50 * GIB))
    assert limits.level(usage(10, 200 * GIB)) is Level.ROOMY
    assert limits.level(usage(51, 200 * GIB)) is Level.YOUNG_FILES_GO, "less than twice as many"
    assert limits.level(usage(76, 200 * GIB)) is Level.FULL


def test_the_log_partition_comes_first_and_the_fuller_one_counts() -> None:
    log, queues = usage(80), usage(80, path="/queues")
    assert rocketmq().worst([log, queues]) == (Level.OLD_FILES_GO, log)
    full = usage(95, path="/queues")
    assert rocketmq().worst([log, full]) == (Level.FULL, full)
    assert rocketmq().worst([]) == (Level.ROOMY, None)


def test_a_refusal_names_the_path_the_numbers_and_the_settings() -> None:
    by_ratio = rocketmq().refusal(usage(92))
    assert by_ratio == (
        "the disk of /data/commitlog is 92% full, 8192 MiB free; "
        "puts are accepted again at 90% (diskSpaceWarningLevelRatio)"
    )
    assert "or with 16384 MiB free (diskEnoughFreeBytes)" in RetentionLimits.of(Settings()).refusal(usage(92))
    by_bytes = RetentionLimits.of(Settings(disk_min_free_bytes=50 * GIB)).refusal(usage(60))
    assert "with 51200 MiB free (diskMinFreeBytes)" in by_bytes


# -- the clock -------------------------------------------------------------------------------------------------


def test_the_hour_is_the_local_one() -> None:
    assert rocketmq(delete_when="15").is_hour(NOW)
    assert rocketmq(delete_when="04;15").is_hour(NOW)
    assert not rocketmq(delete_when="04;14;16").is_hour(NOW)


@pytest.mark.parametrize(
    ("hours", "moment"),
    [
        ("15", datetime(2024, 5, 17, 15, 30)),
        ("16", datetime(2024, 5, 17, 16)),
        ("04", datetime(2024, 5, 18, 4)),
        ("04;23", datetime(2024, 5, 17, 23)),
    ],
)
def test_the_next_hour_is_found(hours: str, moment: datetime) -> None:
    assert rocketmq(delete_when=hours).next_hour_ms(NOW) == int(moment.timestamp() * 1000)


# -- the files -------------------------------------------------------------------------------------------------


def test_a_file_is_old_from_its_last_change_plus_the_reserved_time_on() -> None:
    limits = rocketmq()
    assert limits.cause(file(0, 72), NOW, Level.ROOMY) is Cause.AGE
    assert limits.cause(file(0, 72), NOW - 1, Level.ROOMY) is None
    assert rocketmq(file_reserved_time=71).cause(file(0, 71), NOW, Level.ROOMY) is Cause.AGE


@pytest.mark.parametrize("level", list(Level))
def test_a_young_file_goes_only_where_the_disk_asks_for_it(level: Level) -> None:
    expected = Cause.DISK if level >= Level.YOUNG_FILES_GO else None
    assert rocketmq().cause(file(0, 1), NOW, level) is expected
    assert rocketmq(clean_file_forcibly_enable=False).cause(file(0, 1), NOW, level) is None


def test_what_is_not_on_disk_and_dispatched_stays_whatever_happens() -> None:
    assert rocketmq().cause(file(0, 100, safe=False), NOW, Level.FULL) is None


def test_files_go_from_the_oldest_on_until_one_stays_and_never_the_last() -> None:
    old, young = (lambda number: file(number, 80)), (lambda number: file(number, 3))
    limits, roomy = rocketmq(), [usage(10)]

    def going(files: list[LogFile]) -> list[int]:
        return [each.from_offset // GIB for each, _ in limits.files_to_delete(files, NOW, roomy)]

    assert going([old(0), old(1), old(2)]) == [0, 1]
    assert going([old(0), young(1), old(2), old(3)]) == [0]
    assert going([old(0)]) == []
    assert going([]) == []


def test_no_more_young_files_go_than_the_disk_asks_for() -> None:
    files = [file(number, 3) for number in range(30)]
    going = list(rocketmq().files_to_delete(files, NOW, [usage(89, 100 * GIB)]))
    assert [each.from_offset // GIB for each, _ in going] == [0, 1, 2, 3], "down to 85 percent"
    assert {cause for _, cause in going} == {Cause.DISK}
