"""Deleting topics and queues: gone for good, whatever happens meanwhile, and free for a new beginning."""

from __future__ import annotations

import json
import shutil
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from support.disks import FaultyFiles, refuse
from support.stores import PER_FILE, AgedStore, StoreHome, eventually

from penstock.errors import StoreFailed
from penstock.format.constants import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from penstock.format.queue_unit import PRE_BLANK
from penstock.store import BrokerRole, GetStatus, Message, Settings
from penstock.store.rebuild import rebuild

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.store import MessageStore


@pytest.fixture
def filled(home: StoreHome) -> StoreHome:
    """Topics A, with two queues, and B, of ten messages a queue."""
    store = home.open()
    for topic, queue_id in (("A", 0), ("B", 0), ("A", 1)):
        home.put_numbered(store, 10, topic, queue_id)
    store.close()
    return home


def note_of(home: StoreHome) -> dict[str, int]:
    path = home.path / "penstock" / "deleted_topics.json"
    topics: dict[str, int] = json.loads(path.read_text())["content"]["topics"] if path.exists() else {}
    return topics


def assert_a_is_gone(home: StoreHome, store: MessageStore) -> None:
    assert store.topics() == ["B"]
    assert store.get("A", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert not (home.path / "consumequeue" / "A").exists()
    assert home.bodies(store, "B") == [b"%04d" % number for number in range(10)]


def test_a_deleted_topic_is_gone_and_only_that(filled: StoreHome) -> None:
    store = filled.open()
    assert store.delete_topic("A")
    assert_a_is_gone(filled, store)
    assert not store.delete_topic("A"), "there is no such topic any more"
    assert not store.delete_topic("never")
    assert set(note_of(filled)) == {"A"}


def test_its_messages_stay_in_the_log_and_are_found_by_key_until_the_log_goes(filled: StoreHome) -> None:
    store = filled.open()
    (hit,) = (record for record in store.query("A", "k7") if record.queue_id == 0)
    store.delete_topic("A")
    assert store.look_up(hit.physical_offset) == hit
    assert len(store.query("A", "k7")) == 2


@pytest.mark.parametrize("how", ["closed", "crashed", "without queues", "without queues and index, crashed"])
def test_it_does_not_come_back_at_the_next_start(filled: StoreHome, how: str) -> None:
    """In RocketMQ it does, whenever queues are built from the log."""
    store = filled.open()
    store.delete_topic("A")
    store.close()
    if "without queues" in how:
        shutil.rmtree(filled.path / "consumequeue")
        (filled.path / "penstock" / "dispatched.json").unlink()
    if "index" in how:
        shutil.rmtree(filled.path / "index")
    if "crashed" in how:
        filled.mark_crashed()
        (filled.path / "checkpoint").unlink()
    for read_only in (True, False):
        store = filled.open(read_only=read_only)
        assert store.topics() == ["B"]
        assert [len(store.query(topic, "k3")) for topic in "AB"] == [2, 1]
    assert_a_is_gone(filled, store)


def test_what_is_put_under_its_name_later_is_a_new_topic_that_begins_at_0(filled: StoreHome) -> None:
    store = filled.open()
    store.delete_topic("A")
    answers = [store.put(Message("A", b"new %d" % number, queue_id=1)) for number in range(3)]
    assert [answer.queue_offset for answer in answers] == [0, 1, 2]
    expected = [b"new 0", b"new 1", b"new 2"]
    assert filled.bodies(store, "A", 1) == expected
    for how in ("closed", "crashed", "without queues"):
        store.close()
        if how == "crashed":
            filled.mark_crashed()
        if how == "without queues":
            shutil.rmtree(filled.path / "consumequeue")
        store = filled.open()
        assert filled.bodies(store, "A", 1) == expected, how
        assert store.max_offset("A", 0) == 0
        assert filled.bodies(store, "B") == [b"%04d" % number for number in range(10)]
    assert store.put(Message("A", b"next", queue_id=1)).queue_offset == 3
    assert store.delete_topic("A"), "and it can be deleted again"
    assert store.put(Message("A", b"newer", queue_id=1)).queue_offset == 0
    assert filled.bodies(store, "A", 1) == [b"newer"]


def test_messages_that_are_not_dispatched_yet_are_deleted_with_it(home: StoreHome) -> None:
    store = home.open(sync=True, flush_interval_commit_log=3_600_000)
    home.put_numbered(store, 3, "A")
    with store.dispatcher.paused():
        assert store.put(Message("A", b"late")).ok
    store.delete_topic("A")
    assert store.put(Message("A", b"first")).queue_offset == 0
    assert home.bodies(store, "A") == [b"first"]


def test_a_note_that_cannot_be_written_leaves_the_topic_as_it_was(filled: StoreHome, disk: FaultyFiles) -> None:
    store = filled.open(files=disk)
    before = filled.state(store)
    disk.before_sync_folder = lambda path: refuse(28) if path.name == "penstock" else None
    with pytest.raises(StoreFailed, match="no space left"):
        store.delete_topic("A")
    disk.before_sync_folder = lambda path: None
    assert filled.state(store) == before
    assert store.put(Message("A", b"0010")).queue_offset == 10


def test_a_deletion_that_was_cut_short_is_completed_at_the_next_start(filled: StoreHome, tmp_path: Path) -> None:
    """The store is copied before each step of the deletion, as a crash would leave it."""
    copies: list[StoreHome] = []

    class CopiedFiles(FaultyFiles):
        def unlink(self, path: Path) -> None:
            if "consumequeue" in path.parts:
                copies.append(filled.copy_to(tmp_path / f"copy{len(copies)}"))
            super().unlink(path)

    store = filled.open(files=CopiedFiles())
    store.delete_topic("A")
    copies.append(filled.copy_to(tmp_path / "after"))
    assert len(copies) == 3
    for copy in copies:
        again = copy.open()
        assert not again.report.clean_exit
        assert_a_is_gone(copy, again)
        assert again.put(Message("A", b"new")).queue_offset == 0
        again.close()
        again = copy.open()
        assert copy.bodies(again, "A") == [b"new"], "and what came later stays"
        copy.close_all()


def test_without_its_note_a_topic_comes_back_and_with_a_broken_one_it_is_said(
    filled: StoreHome, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled.open()
    store.delete_topic("A")
    store.close()
    (filled.path / "penstock" / "deleted_topics.json").write_bytes(bytes(30))
    shutil.rmtree(filled.path / "consumequeue")
    assert filled.open().topics() == ["A", "B"]
    assert "may reappear" in caplog.text


def test_unused_topics_are_deleted_but_never_rocketmqs_own_two(home: StoreHome) -> None:
    store = home.open()
    for topic in ("A", "B", "C", OP_HALF_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC"):
        assert store.put(Message(topic, b"x")).ok
    assert store.put(Message("A", b"later", delay_level=2)).ok
    assert store.clean_unused_topics(["B", "unknown"]) == ["A", "C", "RMQ_SYS_TRANS_HALF_TOPIC"]
    assert store.topics() == ["B", OP_HALF_TOPIC, SCHEDULE_TOPIC]
    assert set(note_of(home)) == {"A", "C", "RMQ_SYS_TRANS_HALF_TOPIC"}
    assert store.clean_unused_topics(["B"]) == []


def test_queues_without_a_message_in_the_log_are_deleted_on_request(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(2, "old", 0)
    aged.fill(2, "old", 1)
    aged.fill(2, "T", 0)
    aged.age(80, files=3)
    aged.run_on_request()
    store = aged.store
    assert store.clean_expired_queues() == [("old", 0)]
    assert not (home.path / "consumequeue" / "old" / "0").exists()
    assert aged.numbers("old", 1) == list(range(PER_FILE, 2 * PER_FILE)), "half of it is still there"
    assert store.clean_expired_queues() == []
    assert store.put(Message("old", b"000000")).queue_offset == 0
    store.close()
    aged.open()
    assert aged.numbers("old", 0) == [0]
    assert note_of(home) == {}, "its messages are not in the log, so nothing can bring them back"


def test_the_brokers_own_queues_stay(home: StoreHome) -> None:
    """The broker's progress in them is a queue offset: if they restarted at 0, it would pass over messages."""
    aged = AgedStore(home)
    own = (SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC)
    for topic in own:
        aged.fill(1, topic, 0)
    aged.fill(1, "T", 0)
    aged.age(80)
    aged.run_on_request()
    assert [aged.store.min_offset(topic, 0) for topic in own] == [PER_FILE] * 3
    assert aged.store.clean_expired_queues() == []
    for topic in own:
        assert aged.store.put(Message(topic, b"next", queue_id=0)).queue_offset == PER_FILE


def test_extension_files_go_with_their_queue(filled: StoreHome) -> None:
    store = filled.open()
    folder = filled.path / "consumequeue_ext" / "A" / "1"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(bytes(100))
    store.delete_topic("A")
    assert not folder.parent.exists()


def test_the_note_is_forgotten_once_the_log_begins_behind_it(home: StoreHome) -> None:
    aged = AgedStore(home)
    aged.fill(2, "A")
    assert aged.store.delete_topic("A")
    end = note_of(home)["A"]
    aged.fill(4, "T")
    aged.age(80, files=1)
    aged.run_on_request()
    assert note_of(home) == {"A": end}
    aged.age(80)
    aged.run_on_request()
    assert note_of(home) == {}


def test_puts_that_go_on_meanwhile_belong_to_the_old_topic_or_to_the_new_one(home: StoreHome) -> None:
    store = home.open()
    home.put_numbered(store, 5, "A")
    offsets: list[int] = []
    permits = threading.Semaphore(0)

    def put() -> None:
        for _ in range(20 * 50):
            permits.acquire()
            offsets.append(store.put(Message("A", b"x")).queue_offset)

    writer = threading.Thread(target=put, daemon=True)
    writer.start()
    for _ in range(20):
        before = len(offsets)
        permits.release(50)
        eventually(lambda: len(offsets) > before + 1, "the writer does not come on")  # noqa: B023
        assert store.delete_topic("A")
    writer.join()
    assert offsets.count(0) >= 19
    assert {after - before for before, after in pairwise(offsets) if after} == {1}
    assert store.put(Message("A", b"x")).queue_offset in (0, offsets[-1] + 1)
    assert store.max_offset("A", 0) == len(home.bodies(store, "A"))


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.delete_topic("A"),
        lambda store: store.clean_unused_topics([]),
        lambda store: store.clean_expired_queues(),
        lambda store: store.delete_expired(),
    ],
)
def test_a_store_that_is_read_only_or_closed_deletes_nothing(filled: StoreHome, act: Any) -> None:
    before = filled.listing()
    view = filled.open(read_only=True)
    with pytest.raises(StoreFailed, match="read-only"):
        act(view)
    view.close()
    with pytest.raises(StoreFailed, match="closed"):
        act(view)
    assert filled.listing() == before


def test_a_message_put_after_a_power_loss_is_not_taken_for_one_of_the_deleted_topic(home: StoreHome) -> None:
    """The deletion was noted at an end of the log that the power loss has moved back."""
    store = home.open()
    home.put_numbered(store, 3, "A")
    kept = store.log.max_offset
    home.put_numbered(store, 30, "A")
    assert store.delete_topic("A")
    store.close()
    (path,) = home.log_files()
    home.write(path, kept, bytes(path.stat().st_size - kept))
    home.mark_crashed()
    store = home.open()
    assert store.log.max_offset == kept
    assert store.topics() == []
    home.put_numbered(store, 2, "A")
    for _ in range(2):
        store.close()
        store = home.open()
        assert home.bodies(store, "A") == [b"0000", b"0001"]
    shutil.rmtree(home.path / "consumequeue")
    assert home.bodies(home.open(read_only=True), "A") == [b"0000", b"0001"]


def test_a_slave_that_knew_a_deletion_before_its_messages_serves_its_own_as_a_master(home: StoreHome) -> None:
    store = home.open(broker_role=BrokerRole.SLAVE)
    assert store.delete_as_master({"A": 1 << 20}) == []
    assert store.deleted_topics() == {}, "it is deleted when the log has reached the offset"
    store.change_role(store.role.next(BrokerRole.ASYNC_MASTER))
    home.put_numbered(store, 2, "A")
    for _ in range(2):
        assert home.bodies(store, "A") == [b"0000", b"0001"]
        store.close()
        store = home.open()


def test_a_topic_does_not_come_back_after_a_kill_once_its_messages_are_gone_from_the_log(
    home: StoreHome, tmp_path: Path
) -> None:
    """The snapshot of the queues still has it, so the note of its deletion must stay until the next snapshot."""
    aged = AgedStore(home)
    aged.fill(1, "A")
    aged.store.close()
    assert aged.open().delete_topic("A")
    aged.fill(4, "B")
    aged.age(80, files=1)
    assert len(aged.run_on_request()) == 1
    again = AgedStore(home.copy_to(tmp_path / "copy"))
    assert again.store.topics() == ["B"]
    assert list(note_of(again.home)) == ["A"]
    again.store.close()
    again.open()
    again.age(80, files=1)
    assert len(again.run_on_request()) == 1
    assert note_of(again.home) == {}, "the snapshot of the last close knows no such queue"
    assert again.store.put(Message("A", b"000000")).queue_offset == 0
    again.home.close_all()


def test_a_queue_file_that_a_power_loss_brings_back_empty_brings_no_topic_back(home: StoreHome) -> None:
    settings = {"mapped_file_size_consume_queue": 8 * 20}
    store = home.open(**settings)
    home.put_numbered(store, 12, "A")
    home.put_numbered(store, 1, "B")
    store.catch_up()
    second = home.queue_files("A")[1]
    assert store.delete_topic("A")
    store.close()
    second.parent.mkdir(parents=True)
    second.write_bytes(bytes(8 * 20))
    home.mark_crashed()
    store = home.open(**settings)
    assert store.topics() == ["B"]
    assert store.put(Message("A", b"new")).queue_offset == 0
    store.catch_up()
    store.close()
    home.mark_crashed()
    assert home.bodies(home.open(**settings), "A") == [b"new"]


@pytest.mark.parametrize("act", [None, rebuild], ids=["start", "rebuild"])
def test_a_topic_made_again_whose_messages_are_all_lost_assigns_no_offset_twice(home: StoreHome, act: Any) -> None:
    """A consumer may have got them, and would pass over messages with the same offsets."""
    store = home.open()
    home.put_numbered(store, 1, "A")
    assert store.delete_topic("A")
    begin = store.log.max_offset
    home.put_numbered(store, 2, "A")
    end = store.log.max_offset
    home.put_numbered(store, 1, "B")
    store.close()
    home.write(home.log_files()[0], begin, bytes(end - begin))
    for _ in range(2):
        if act is not None:
            act(home.path, Settings.dev())
        store = home.open()
        assert store.max_offset("A", 0) == 2
        store.close()
    units = home.queue_files("A")[0]
    home.write(units, 0, 2 * PRE_BLANK)
    store = home.open()
    assert store.put(Message("A", b"new")).queue_offset == 2


def test_a_topic_made_again_whose_first_message_is_lost_keeps_the_others(home: StoreHome) -> None:
    """Its first queue file begins with a unit without a record, which says nothing about the file's age."""
    settings = {"mapped_file_size_consume_queue": 8 * 20}
    store = home.open(**settings)
    home.put_numbered(store, 3, "A")
    assert store.delete_topic("A")
    begin = store.log.max_offset
    home.put_numbered(store, 1, "A")
    end = store.log.max_offset
    home.put_numbered(store, 11, "A")
    store.close()
    home.write(home.log_files()[0], begin, bytes(end - begin))
    shutil.rmtree(home.path / "consumequeue")
    home.mark_crashed()
    for _ in range(3):
        store = home.open(**settings)
        assert home.bodies(store, "A") == [b"%04d" % number for number in range(1, 12)]
        store.close()
