"""Who deletes what, where dispatch is external: the store the log's files, the job those of queues and index."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.stores import PER_FILE, AgedStore, StoreHome, build_all, eventually

from penstock.errors import StoreInUse
from penstock.store import Dispatch, GetStatus, Message, MessageStore
from penstock.store.external_dispatch import queue_and_index_builder as builder_module
from penstock.store.external_dispatch.queue_and_index_builder import Builder
from penstock.store.repair import repair


@pytest.fixture
def aged(home: StoreHome) -> AgedStore:
    return AgedStore(home, dispatch=Dispatch.EXTERNAL)


def dispatch_all(aged: AgedStore, builder: Builder) -> None:
    eventually(lambda: builder.published == aged.store.log.max_offset, "the end is published")
    build_all(builder)
    aged.store.catch_up()
    assert aged.store.dispatcher.behind == 0


def fill(aged: AgedStore, files: int, start: int = 0) -> None:
    for number in range(start, start + files * PER_FILE):
        body = (b"%06d" % number).ljust(880, b".")
        assert aged.store.put(Message("T", body, keys=(f"k{number}",))).queue_offset == number
    aged.store.flush()


def names(aged: AgedStore) -> tuple[list[str], list[str]]:
    return [path.name for path in aged.home.queue_files("T")], [path.name for path in aged.home.index_files()]


def test_what_is_not_dispatched_is_not_deleted(aged: AgedStore) -> None:
    fill(aged, 5)
    aged.age(100)
    assert aged.run_on_request() == []
    with Builder.open(aged.home.path) as builder:
        dispatch_all(aged, builder)
    assert len(aged.run_on_request()) == 4


def test_a_queue_whose_messages_all_expired_goes_on_after_a_power_loss(
    aged: AgedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "_SYNC_EVERY_S", math.inf)
    fill(aged, 3)
    aged.store.put(Message("other", bytes(900)))
    aged.store.flush()
    with Builder.open(aged.home.path) as builder:
        dispatch_all(aged, builder)
        aged.age(100)
        assert aged.run_on_request() == [], "the disk may know nothing of the queue yet"
    assert len(aged.run_on_request()) == 3
    lost = tmp_path / "lost"
    shutil.copytree(aged.home.path, lost)
    shutil.rmtree(lost / "consumequeue" / "T")
    (lost / "penstock" / "dispatch.done").unlink()
    with MessageStore.open(lost, aged.store.settings.with_changes(store_path_root_dir=lost)) as store:
        assert store.put(Message("T", b"next")).queue_offset == 3 * PER_FILE


def test_the_store_deletes_the_log_and_the_job_what_was_derived_from_it(
    aged: AgedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "_SYNC_EVERY_S", 0.0)
    builder = Builder.open(aged.home.path)
    fill(aged, 10)
    dispatch_all(aged, builder)
    before = names(aged)
    aged.age(100, files=8)
    assert len(aged.run_on_request()) == 8
    assert names(aged) == before, "queues and index are the job's"
    assert aged.store.min_offset("T", 0) == 8 * PER_FILE
    assert aged.store.get("T", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
    fill(aged, 1, 10 * PER_FILE)
    dispatch_all(aged, builder)
    builder.close()
    queues, indexes = names(aged)
    assert len(queues) < len(before[0])
    assert len(indexes) < len(before[1])
    aged.retention.derived.clean()
    assert aged.numbers() == list(range(8 * PER_FILE, 11 * PER_FILE))
    assert aged.found(range(8 * PER_FILE, 11 * PER_FILE)) == list(range(8 * PER_FILE, 11 * PER_FILE))


def test_a_deleted_topic_goes_and_comes_again_from_offset_0(aged: AgedStore) -> None:
    store = aged.store
    with Builder.open(aged.home.path) as builder:
        for number in range(30):
            store.put(Message("gone", b"old %d" % number))
            store.put(Message("kept", b"%d" % number))
        dispatch_all(aged, builder)
        assert store.delete_topic("gone")
        assert store.get("gone", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
        assert store.topics() == ["kept"]
        assert aged.home.queue_files("gone"), "its files are the job's to remove"
        assert store.put(Message("gone", b"new")).queue_offset == 0
        dispatch_all(aged, builder)
        assert [record.body for record in aged.home.read_queue(store, "gone")] == [b"new"]
        assert len(aged.home.read_queue(store, "kept")) == 30
        assert len(aged.home.queue_files("gone")) == 1
    store.close()
    with aged.open() as store:
        assert [record.body for record in aged.home.read_queue(store, "gone")] == [b"new"]
        assert store.put(Message("gone", b"newer")).queue_offset == 1


@pytest.mark.parametrize("expires", [False, True])
def test_a_topic_that_is_made_again_after_retention_is_seen(
    aged: AgedStore, monkeypatch: pytest.MonkeyPatch, expires: bool
) -> None:
    monkeypatch.setattr(builder_module, "_SYNC_EVERY_S", 0.0)
    with Builder.open(aged.home.path) as builder:
        aged.store.put(Message("T", bytes(880)))
        dispatch_all(aged, builder)  # the queue is opened in this life of the store
        fill(aged, 10, 1)
        dispatch_all(aged, builder)
        before = len(aged.home.queue_files("T"))
        if expires:
            aged.age(100, files=8)
            assert len(aged.run_on_request()) == 8
            aged.store.put(Message("other", b"x"))
            dispatch_all(aged, builder)
            assert len(aged.home.queue_files("T")) < before
            aged.retention.derived.clean()
        assert aged.store.delete_topic("T")
        fill(aged, 1)
        dispatch_all(aged, builder)
        assert aged.store.max_offset("T", 0) == PER_FILE
        assert len(aged.home.read_queue(aged.store, "T")) == PER_FILE


@pytest.mark.parametrize("again", [False, True])
def test_a_new_queue_whose_first_record_is_damaged_is_seen(aged: AgedStore, again: bool) -> None:
    store = aged.store
    with Builder.open(aged.home.path) as builder:
        store.put(Message("gone", b"old"))
        dispatch_all(aged, builder)
        topic = "gone" if again else "new"
        if again:
            assert store.delete_topic("gone")
        at = store.log.max_offset
        for number in range(5):
            assert store.put(Message(topic, b"%d" % number)).queue_offset == number
        store.flush()
        aged.home.write(aged.home.log_files()[0], at + 4, b"\xff\xff")
        dispatch_all(aged, builder)
        assert store.max_offset(topic, 0) == 5
    store.close()
    with aged.open() as store:
        store.catch_up()
        assert store.max_offset(topic, 0) == 5
        assert topic in store.topics()


def test_expired_queues_are_left_to_go_on(aged: AgedStore) -> None:
    assert aged.store.clean_expired_queues() == []


def test_a_repair_refuses_while_the_job_runs(aged: AgedStore) -> None:
    aged.store.close()
    settings: Any = aged.store.settings
    with Builder.open(aged.home.path), pytest.raises(StoreInUse, match="stop it first"):
        repair(aged.home.path, settings)
    repair(aged.home.path, settings)
