"""Predicts exactly what will be deleted, when and why, and which groups have not read it; changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.disks import MeasuredFiles
from support.stores import FILE_SIZE, HOUR_MS, PER_FILE, AgedStore, StoreHome

from penstock.errors import BadStore
from penstock.format.config_tables import ConsumerOffsets, DelayOffsets
from penstock.format.constants import SCHEDULE_TOPIC
from penstock.store import Message
from penstock.store.config_files import ConfigFiles
from penstock.store.files.file_io import Files
from penstock.store.retention.policy import DELIVERY, Cause, count_before

if TYPE_CHECKING:
    from penstock.store.retention.explain import Outlook


@pytest.fixture
def aged(home: StoreHome) -> AgedStore:
    """Six log files of four messages, stored an hour after each other, of two queues in turn. The first two are old."""
    made = AgedStore(home)
    for number in range(6):
        made.fill(1, "T", number % 2)
        home.clock.now += HOUR_MS
    made.age(3)
    made.age(80, files=2)
    return made


def test_each_file_is_explained(aged: AgedStore) -> None:
    now = aged.home.clock.now
    outlook = aged.store.explain_retention()
    assert outlook.now_ms == now
    assert [file.name for file in outlook.files] == [path.name for path in aged.home.log_files()]
    first, second, third, last = (outlook.files[place] for place in (0, 1, 2, 5))
    assert (first.modified_ms, first.expires_ms) == (now - 80 * HOUR_MS, now - 8 * HOUR_MS)
    assert (first.stored_from_ms, first.stored_until_ms) == (now - 6 * HOUR_MS, now - 5 * HOUR_MS)
    assert (first.cause, first.why) == (Cause.AGE, "older than fileReservedTime")
    assert second.cause is Cause.AGE
    assert (third.cause, third.why) == (None, "not old enough")
    assert third.expires_ms == now + 69 * HOUR_MS
    assert (last.cause, last.why, last.goes_ms) == (None, "the last file always stays", -1)
    assert last.stored_until_ms == now - HOUR_MS


def test_it_says_when_a_file_goes_at_the_hours_of_delete_when(aged: AgedStore) -> None:
    outlook = aged.store.explain_retention()
    next_hour = outlook.next_hour.at_ms
    assert outlook.now_ms < next_hour <= outlook.now_ms + 24 * HOUR_MS
    first, third = outlook.files[0], outlook.files[2]
    assert first.goes_ms == next_hour
    assert third.goes_ms >= third.expires_ms
    assert (third.goes_ms - next_hour) % HOUR_MS == 0
    aged.home.clock.now = third.goes_ms
    assert len(aged.run()) == 5, "and then it does"


def test_what_goes_now_is_what_a_pass_deletes(aged: AgedStore) -> None:
    predicted = aged.store.explain_retention().now
    assert predicted.size == 2 * FILE_SIZE
    assert predicted.log_offset == 2 * FILE_SIZE
    assert [gone.name for gone in aged.run_on_request()] == predicted.files
    assert aged.store.log.min_offset == predicted.log_offset
    assert aged.store.explain_retention().now.files == []


def test_young_files_that_the_disk_asks_for_are_predicted_too(aged: AgedStore) -> None:
    aged.disk.percent = 88
    outlook = aged.store.explain_retention()
    assert outlook.now.files == [path.name for path in aged.home.log_files()[:-1]]
    assert outlook.files[3].why == "not old, but the disk is above diskSpaceCleanForciblyRatio"
    assert outlook.disk[0].level == "YOUNG_FILES_GO"
    assert outlook.puts_refused == ""
    assert [gone.name for gone in aged.run()] == outlook.now.files


def test_a_full_disk_says_why_puts_are_refused(aged: AgedStore) -> None:
    aged.disk.percent = 99
    outlook = aged.store.explain_retention()
    assert "99% full" in outlook.puts_refused
    assert outlook.disk[0].level == "FULL"


def test_an_old_file_behind_a_young_one_waits_for_it(aged: AgedStore) -> None:
    aged.age(1, files=1)
    outlook = aged.store.explain_retention()
    assert outlook.now.files == []
    assert outlook.files[1].why == "old enough, but behind a file that stays"
    assert outlook.files[1].goes_ms == outlook.files[0].goes_ms > outlook.now_ms + 71 * HOUR_MS


def test_a_file_that_was_deleted_by_hand_is_as_old_as_can_be(aged: AgedStore) -> None:
    aged.age(1)
    aged.home.log_files()[0].unlink()
    assert len(aged.store.explain_retention().now.files) == 1


# -- who has not read it ---------------------------------------------------------------------------------------


def unread_of(outlook: Outlook) -> set[tuple[str, str, int, int, int]]:
    return {(each.group, each.topic, each.queue_id, each.next_offset, each.messages) for each in outlook.now.unread}


def test_groups_that_have_not_read_what_goes_are_named_with_messages_and_bytes(aged: AgedStore) -> None:
    offsets = {("T", "done"): {0: 12, 1: 4}, ("T", "slow"): {0: 3, 1: 0}, ("T", "half"): {0: 4}, ("U", "other"): {0: 0}}
    outlook = aged.store.explain_retention(offsets)
    assert unread_of(outlook) == {("slow", "T", 0, 3, 1), ("slow", "T", 1, 0, 4), ("half", "T", 1, -1, 4)}
    sizes = {(each.group, each.queue_id): each.size for each in outlook.now.unread}
    queue = aged.store.queues.find("T", 0)
    assert sizes["slow", 0] == queue.unit(3)[1]
    assert sizes["slow", 1] == sum(aged.store.queues.find("T", 1).unit(number)[1] for number in range(4))
    assert [each.size for each in outlook.now.unread] == sorted(sizes.values(), reverse=True)


def test_the_offsets_are_read_from_the_config_files(aged: AgedStore) -> None:
    config = ConfigFiles(Files(), aged.home.path / "config")
    config.consumer_offsets.write(ConsumerOffsets(offsets={("T", "slow"): {0: 2, 1: 4}}))
    assert unread_of(aged.store.explain_retention()) == {("slow", "T", 0, 2, 2)}


def test_delayed_messages_that_are_not_delivered_are_named(home: StoreHome) -> None:
    aged = AgedStore(home)
    for _ in range(2):
        assert aged.store.put(Message("T", b"x", delay_level=3)).ok
    aged.fill(2)
    aged.age(80)
    ConfigFiles(Files(), home.path / "config").delay_offsets.write(DelayOffsets(offsets={3: 1, 4: 0}))
    assert unread_of(aged.store.explain_retention()) == {(DELIVERY, SCHEDULE_TOPIC, 2, 1, 1)}


def test_offsets_that_cannot_be_read_are_an_error(aged: AgedStore) -> None:
    config = aged.home.path / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_text("{garbage")
    with pytest.raises(BadStore, match="consumerOffset"):
        aged.store.explain_retention()


def test_places_without_a_record_do_not_count(aged: AgedStore) -> None:
    queue = aged.store.queues.find("T", 0)
    assert count_before(queue, 0, 1 << 40) == (12, sum(queue.unit(number)[1] for number in range(12)))
    aged.home.write(aged.home.queue_files("T")[0], 20, bytes(8) + (0x7FFFFFFF).to_bytes(4, "big") + bytes(8))
    assert count_before(queue, 0, FILE_SIZE) == (PER_FILE - 1, sum(queue.unit(number)[1] for number in (0, 2, 3)))
    assert count_before(queue, 3, 0) == (0, 0)


# -- nothing changes -------------------------------------------------------------------------------------------


def test_a_view_of_a_store_in_use_explains_it_and_changes_nothing(aged: AgedStore) -> None:
    before = aged.home.listing()
    times = [path.stat().st_mtime_ns for path in aged.home.log_files()]
    changes = {**aged.settings, "disk_space_clean_forcibly_ratio": 1, "disk_space_warning_level_ratio": 1}
    view = aged.home.open(read_only=True, **changes)  # it sees the real disk, however full that is
    assert view.explain_retention({}).now.files == aged.store.explain_retention({}).now.files
    view.close()
    assert aged.home.listing() == before
    assert [path.stat().st_mtime_ns for path in aged.home.log_files()] == times


def test_an_empty_store_has_nothing_to_explain(home: StoreHome) -> None:
    outlook = home.open(files=MeasuredFiles()).explain_retention()
    assert outlook.files == outlook.now.files == []
    assert outlook.now.log_offset == 0
