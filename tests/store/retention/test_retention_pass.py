"""A pass of the cleaner: which files of the log go, when, how many, and how it is paced and interrupted."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from support.disks import FaultyFiles, MeasuredFiles
from support.stores import HOUR_MS, PER_FILE, AgedStore, StoreHome, eventually, is_one_sentence

from penstock.format.queue_unit import UNIT_SIZE
from penstock.store import Message
from penstock.store.retention.cleaner import DeletedFile
from penstock.store.retention.policy import Cause

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def aged(home: StoreHome) -> AgedStore:
    """Five full log files and the one being written, each 80 hours old; fileReservedTime is 72."""
    made = AgedStore(home)
    made.fill(6)
    made.age(80)
    return made


def test_old_files_go_at_the_hour_of_delete_when_and_at_no_other(aged: AgedStore) -> None:
    assert aged.run() == []
    assert aged.log_names == [0, 1, 2, 3, 4, 5]
    aged.home.clock.now += 12 * HOUR_MS
    assert [gone.cause for gone in aged.run()] == [Cause.AGE] * 5
    assert aged.log_names == [5], "never the last"
    assert aged.numbers() == list(range(5 * PER_FILE, 6 * PER_FILE))
    aged.fill(1)
    assert aged.numbers() == list(range(5 * PER_FILE, 7 * PER_FILE)), "and it resumes"


def test_a_file_goes_when_it_was_last_changed_the_reserved_time_ago(home: StoreHome) -> None:
    aged = AgedStore(home, file_reserved_time=10)
    aged.fill(3)
    aged.age(9.5)
    aged.age(10, files=1)
    assert [gone.name for gone in aged.run_on_request()] == ["00000000000000000000"]
    assert aged.run_on_request() == []
    home.clock.now += HOUR_MS // 2
    assert [gone.name for gone in aged.run_on_request()] == ["00000000000000004096"]


def test_a_pass_ends_at_the_first_file_that_is_not_old(aged: AgedStore) -> None:
    aged.age(1, files=3)
    aged.age(80, files=2)
    assert len(aged.run_on_request()) == 2
    assert aged.log_names == [2, 3, 4, 5], "the third is young, those behind it stay too"


def test_at_most_ten_files_go_in_a_pass(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(13)
    aged.age(80)
    assert len(aged.run_on_request()) == 10
    assert len(aged.run_on_request()) == 2
    assert aged.log_names == [12]


def test_a_request_has_old_files_deleted_at_any_hour_by_the_cleaners_own_thread(aged: AgedStore) -> None:
    aged.store.delete_expired()
    eventually(lambda: aged.log_names == [5], "the cleaner did not come")
    assert aged.retention.cleaner._requested > 0


def test_a_request_is_good_for_twenty_passes(aged: AgedStore) -> None:
    cleaner = aged.retention.cleaner
    cleaner._requested = 20
    for _ in range(25):
        aged.run()
    assert cleaner.passes == 20


def test_young_files_stay_on_request(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(3)
    aged.age(71)
    assert aged.run_on_request() == []


def test_above_the_first_level_old_files_go_at_any_hour_and_young_ones_stay(aged: AgedStore) -> None:
    aged.age(1)
    aged.age(80, files=2)
    aged.disk.percent = 75
    assert aged.run() == []
    aged.disk.percent = 75.5
    assert [gone.cause for gone in aged.run()] == [Cause.AGE, Cause.AGE]
    assert aged.log_names == [2, 3, 4, 5]


def test_above_the_second_level_young_files_go_too_but_only_as_many_as_must(aged: AgedStore) -> None:
    """RocketMQ deletes ten, although one would do."""
    aged.age(1)
    aged.disk.percent, aged.disk.percent_of_a_file = 86.5, 1
    assert [gone.cause for gone in aged.run()] == [Cause.DISK, Cause.DISK]
    assert aged.log_names == [2, 3, 4, 5]
    assert aged.numbers() == list(range(2 * PER_FILE, 6 * PER_FILE))


def test_consumers_are_not_asked(aged: AgedStore) -> None:
    aged.age(1)
    aged.disk.percent = 95
    assert len(aged.run()) == 5, "no group has read anything, and they are deleted anyway"
    assert aged.log_names == [5]


def test_young_files_stay_if_the_setting_says_so(home: StoreHome) -> None:
    aged = AgedStore(home, clean_file_forcibly_enable=False)
    aged.fill(3)
    aged.age(1)
    aged.age(80, files=1)
    aged.disk.percent = 99
    assert [gone.cause for gone in aged.run()] == [Cause.AGE]
    assert aged.log_names == [1, 2]


def test_a_full_partition_of_the_queues_has_log_files_deleted_too(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(3)
    aged.age(1)
    assert aged.run() == []
    aged.disk.queues_percent = 86
    assert [gone.cause for gone in aged.run()] == [Cause.DISK, Cause.DISK]


def test_a_disk_that_cannot_be_measured_has_nothing_deleted(aged: AgedStore, caplog: pytest.LogCaptureFixture) -> None:
    aged.disk.percent = 99
    aged.disk.broken = OSError(errno.EIO, os.strerror(errno.EIO), "/data")
    assert aged.run() == aged.run() == []
    said = [record for record in caplog.records if "cannot be measured" in record.message]
    assert len(said) == 1, "said once"
    aged.disk.broken = None
    assert len(aged.run()) == 5


def test_what_is_not_on_disk_yet_is_not_deleted(home: StoreHome) -> None:
    aged = AgedStore(home)
    for number in range(3 * PER_FILE):
        assert aged.store.put(Message("T", b"%06d" % number + bytes(900))).ok
    aged.store.catch_up()
    aged.age(80)
    assert aged.run_on_request() == []
    aged.store.flush()
    assert len(aged.run_on_request()) == 2


def test_what_is_not_dispatched_yet_is_not_deleted(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(3)
    gone: list[DeletedFile] = []
    with aged.store.dispatcher.paused():
        for number in range(3 * PER_FILE):
            assert aged.store.put(Message("T", b"%06d" % (number + 3 * PER_FILE) + bytes(900))).ok
        aged.store.flush()
        aged.age(80)
        aged.retention.cleaner._delete_log_files(gone)
        assert aged.log_names == [2, 3, 4, 5], "of the third file the end is not dispatched"
    aged.store.catch_up()
    assert len(aged.run_on_request()) == 3
    assert aged.numbers() == list(range(5 * PER_FILE, 6 * PER_FILE))


def test_deletion_is_paced_and_closing_does_not_wait_for_it(home: StoreHome) -> None:
    aged = AgedStore(home, delete_commit_log_files_interval=HOUR_MS)
    aged.fill(4)
    aged.age(80)
    aged.store.delete_expired()
    eventually(lambda: aged.log_names == [1, 2, 3], "the cleaner did not come")
    aged.store.close()
    assert aged.log_names == [1, 2, 3], "one, then a pause"
    assert not (home.path / "abort").exists()


def test_the_pause_between_queues_is_interrupted_too(home: StoreHome) -> None:
    aged = AgedStore(home, delete_consume_queue_files_interval=HOUR_MS)
    aged.fill(4, queue_id=0)
    aged.fill(4, queue_id=1)
    aged.fill(1, queue_id=1)
    aged.age(80)
    aged.store.delete_expired()
    eventually(lambda: len(home.queue_files("T", 0)) == 1, "the queues did not follow")
    aged.store.close()
    assert [len(home.queue_files("T", queue_id)) for queue_id in (0, 1)] == [1, 2], "the second had to wait"
    aged.settings["delete_consume_queue_files_interval"] = 0
    aged.open()
    aged.run()
    assert len(home.queue_files("T", 1)) == 1, "the first pass after a start resumes"


class StubbornDisk(MeasuredFiles):
    """Refuses to delete log files for a while."""

    refuses = True

    def unlink(self, path: Path) -> None:
        if self.refuses and path.parent.name == "commitlog":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        super().unlink(path)


def test_a_disk_that_refuses_is_tried_again(home: StoreHome, caplog: pytest.LogCaptureFixture) -> None:
    disk = StubbornDisk()
    aged = AgedStore(home, disk)
    aged.fill(3)
    aged.age(80)
    cleaner = aged.retention.cleaner
    cleaner._requested = 20
    for _ in range(3):
        cleaner.work()
    said = [record.getMessage() for record in caplog.records if "could not be deleted" in record.message]
    assert len(said) == 1
    assert is_one_sentence(said[0])
    assert "00000000000000000000" in cleaner.problem
    assert "read-only for this user" in cleaner.problem
    assert aged.store.get("T", 0, 0).next_begin_offset > 0, "reads go on"
    disk.refuses = False
    cleaner.work()
    assert cleaner.problem == ""
    assert aged.log_names == [2]
    aged.fill(1)
    assert aged.numbers() == list(range(2 * PER_FILE, 4 * PER_FILE))


def test_a_file_deleted_by_hand_is_unmapped(aged: AgedStore) -> None:
    aged.age(1)
    aged.home.log_files()[0].unlink()
    assert len(aged.run_on_request()) == 1
    assert aged.store.log.min_offset == 4096
    assert aged.numbers() == list(range(PER_FILE, 6 * PER_FILE))


def test_the_figures_tell_of_disk_and_deletion(aged: AgedStore) -> None:
    before = aged.store.figures().retention
    assert before is not None
    (disk,) = before.disk
    assert (disk.used_ratio, disk.level) == (0.5, "ROOMY")
    assert disk.path == str(aged.home.path / "commitlog")
    assert before.next_expiry_ms == aged.home.clock.now - 8 * HOUR_MS
    assert (before.log_files_deleted, before.derived_files_deleted, before.bytes_freed) == (0, 0, 0)
    aged.run_on_request()
    after = aged.store.figures().retention
    assert after is not None
    assert after.log_files_deleted == 5
    assert after.derived_files_deleted == 4, "two files of the queue, two of the index"
    assert after.bytes_freed == 5 * 4096 + 2 * 200 + 2 * (40 + 4 * 50 + 20 * 11)
    assert after.next_expiry_ms == -1
    assert after.problem == ""
    assert aged.home.open(read_only=True, **aged.settings).figures().retention is None


class RoomyDisk(FaultyFiles):
    def disk_usage(self, folder: Path) -> tuple[int, int]:
        return 50, 50


def test_messages_that_come_during_a_pass_are_not_deleted_before_their_units_are_on_disk(home: StoreHome) -> None:
    """Once the record is gone, only its unit tells at which offset the queue goes on."""
    disk = RoomyDisk()
    aged = AgedStore(home, disk)
    aged.fill(3, "old")
    aged.age(80)
    folders: list[Path] = []

    def put_more(folder: Path) -> None:
        if folder.name == "commitlog" and not folders:
            folders.append(folder)
            aged.fill(2, "new")
            aged.age(80)

    disk.before_sync_folder = put_more
    assert len(aged.run_on_request()) == 2
    queue = aged.store.queues.find("new", 0)
    assert queue is not None
    assert queue.first_from(aged.store.log.min_offset) * UNIT_SIZE <= queue.files.flushed_where
    assert aged.numbers("new") == [*range(2 * PER_FILE)]
    assert len(aged.run_on_request()) == 2
    assert queue.first_from(aged.store.log.min_offset) * UNIT_SIZE <= queue.files.flushed_where
