"""A full disk: puts are refused with a reason, and accepted again as soon as there is room."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.disks import MeasuredFiles
from support.stores import AgedStore, StoreHome, assert_nothing_stored, eventually

from penstock.store import Message, MessageStore, PutStatus, Settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def aged(home: StoreHome) -> AgedStore:
    """One log file with a message, so there is nothing to delete."""
    made = AgedStore(home)
    assert made.store.put(Message("T", b"000000")).ok
    return made


def refused(store: MessageStore) -> str:
    end = store.log.queue.wrote_offset
    answer = store.put(Message("T", b"x"))
    assert answer.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert_nothing_stored(store, answer, end)
    return answer.reason


def test_a_put_on_a_full_disk_is_refused_and_says_which_path_which_number_and_which_setting(aged: AgedStore) -> None:
    aged.disk.percent = 90
    aged.retention.watcher.work()
    assert aged.store.put(Message("T", b"000001")).ok, "at the level itself puts are accepted"
    aged.disk.percent = 90.5
    aged.retention.watcher.work()
    reason = refused(aged.store)
    for part in (str(aged.home.path / "commitlog"), "91% full", "9728 MiB free", "diskSpaceWarningLevelRatio"):
        assert part in reason, reason
    assert aged.store.put_many([Message("T", b"x")] * 2).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert aged.store.put_async(Message("T", b"x")).result(5).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert aged.store.figures().puts_refused in reason
    assert aged.numbers() == [0, 1], "reads continue"


def test_puts_are_taken_again_when_there_is_room_although_nothing_was_deleted(aged: AgedStore) -> None:
    aged.disk.percent = 95
    aged.retention.watcher.work()
    refused(aged.store)
    aged.disk.percent = 90
    aged.retention.watcher.work()
    assert aged.store.put(Message("T", b"000001")).ok
    assert aged.store.figures().puts_refused == ""


def test_the_watcher_looks_by_itself(home: StoreHome) -> None:
    disk = MeasuredFiles()
    store = home.open(files=disk, disk_enough_free_bytes=0)
    disk.percent = 95
    eventually(lambda: not store.put(Message("T", b"x")).ok, "the disk's fullness goes unnoticed")
    disk.percent = 50
    eventually(lambda: store.put(Message("T", b"x")).ok, "the disk's room goes unnoticed")


def test_a_store_that_is_opened_on_a_full_disk_refuses_from_the_first_put_on(home: StoreHome) -> None:
    disk = MeasuredFiles()
    disk.percent = 99
    refused(home.open(files=disk, disk_enough_free_bytes=0))


def test_enough_free_bytes_keep_puts_coming_whatever_the_ratio(home: StoreHome) -> None:
    disk = MeasuredFiles()
    disk.percent = 95
    store = home.open(files=disk)
    assert store.put(Message("T", b"x")).ok, "five of a hundred GiB are plenty for a dev store"
    store.close()
    store = home.open(files=disk, disk_enough_free_bytes=6 << 30)
    assert "diskEnoughFreeBytes" in refused(store)


def test_a_full_partition_of_the_queues_refuses_puts_too_and_is_named(aged: AgedStore) -> None:
    aged.store.catch_up()
    aged.disk.queues_percent = 95
    aged.retention.watcher.work()
    assert f"the disk of {aged.home.path / 'consumequeue'} is 95% full" in refused(aged.store)


def test_a_disk_that_cannot_be_measured_refuses_nothing(aged: AgedStore) -> None:
    aged.disk.percent = 95
    aged.disk.broken = OSError(5, "Input/output error", "/data")
    aged.retention.watcher.work()
    assert aged.store.put(Message("T", b"000001")).ok


def test_a_store_on_a_full_disk_is_closed_cleanly(aged: AgedStore) -> None:
    aged.disk.percent = 95
    aged.retention.watcher.work()
    aged.store.close()
    assert not (aged.home.path / "abort").exists()
    aged.disk.percent = 50
    assert aged.open().report.clean_exit
    assert aged.numbers() == [0]


def test_a_full_disk_has_files_deleted_at_once(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(6)
    aged.age(1)
    aged.disk.percent, aged.disk.percent_of_a_file = 90.5, 2
    aged.retention.watcher.work()
    eventually(lambda: aged.disk.percent <= 85, "the cleaner was not woken")
    assert aged.log_names == [3, 4, 5], "three had to go to come from 90.5 to 84.5 percent"
    aged.retention.watcher.work()
    assert aged.store.put(Message("T", b"x")).ok


class SlowDisk(MeasuredFiles):
    """Takes its time to delete a log file."""

    def __init__(self) -> None:
        super().__init__()
        self.deleting, self.may_go_on = threading.Event(), threading.Event()

    def unlink(self, path: Path) -> None:
        if path.parent.name == "commitlog":
            self.deleting.set()
            assert self.may_go_on.wait(30)
        super().unlink(path)


def test_slow_deletion_does_not_delay_the_look_at_the_disk(home: StoreHome) -> None:
    disk = SlowDisk()
    aged = AgedStore(home, disk)
    aged.fill(3)
    aged.age(80)
    aged.store.delete_expired()
    assert disk.deleting.wait(30)
    disk.percent = 95
    aged.retention.watcher.work()
    refused(aged.store)
    disk.percent = 50
    aged.retention.watcher.work()
    assert aged.store.put(Message("T", b"x")).ok
    disk.may_go_on.set()
    eventually(lambda: aged.log_names == [2], "deletion did not go on")


@pytest.mark.parametrize(
    ("change", "sleeps"),
    [({"clean_resource_interval": 5000}, (60.0, 5.0)), ({}, (60.0, 10.0))],
)
def test_the_cleaner_first_comes_after_a_minute_and_then_every_so_often(
    home: StoreHome, change: dict[str, Any], sleeps: tuple[float, float]
) -> None:
    cleaner = home.open(**change).retention.cleaner
    assert (cleaner._first, cleaner._interval) == sleeps


def test_deletion_follows_rocketmqs_settings_and_defaults() -> None:
    settings = Settings()
    assert (settings.delete_when, settings.file_reserved_time) == ("04", 72)
    assert (settings.disk_space_warning_level_ratio, settings.disk_space_clean_forcibly_ratio) == (0.9, 0.85)
    given = ["rocketmq.broker.diskSpaceWarningLevelRatio=0.95", "diskSpaceCleanForciblyRatio=0.92", "deleteWhen=03;15"]
    assert Settings.load(pairs=given).notes() == []
