"""A store that only appends: what it tells, what it shows, and how it starts."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from support.disks import FaultyFiles
from support.stores import StoreHome, build_all, derived_files, eventually, is_one_sentence, put_mixed

from penstock.errors import BadSettings, StoreInUse
from penstock.format.queue_unit import UNIT_SIZE
from penstock.store import BrokerRole, Dispatch, GetStatus, Message, Settings
from penstock.store.audit import audit
from penstock.store.external_dispatch import follower
from penstock.store.external_dispatch.files_shared_with_job import read_mark
from penstock.store.external_dispatch.queue_and_index_builder import Builder
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout

SMALL: dict[str, Any] = {"mapped_file_size_commit_log": 16_384, "max_hash_slot_num": 50, "max_index_num": 300}
EXTERNAL: dict[str, Any] = {**SMALL, "dispatch": Dispatch.EXTERNAL}


def published(home: StoreHome) -> int:
    mark = read_mark(Files(), Layout(home.path, home.path).dispatch_end)
    assert mark is not None
    return mark.position


def test_a_slave_dispatches_for_itself() -> None:
    with pytest.raises(BadSettings, match="it must be inline with brokerRole=SLAVE"):
        Settings(dispatch=Dispatch.EXTERNAL, broker_role=BrokerRole.SLAVE)


def test_messages_are_seen_when_the_job_has_built_their_queues(home: StoreHome) -> None:
    with home.open(**EXTERNAL) as store:
        home.put_numbered(store, 1)
        for number in range(1, 50):
            assert store.put(Message("T", b"%04d" % number, keys=(f"k{number}",))).queue_offset == number
        assert store.get("T", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
        assert store.max_offset("T", 0) == 0
        assert not store.query("T", "k7")
        assert not (home.path / "consumequeue").exists()
        with Builder.open(home.path) as builder:
            eventually(lambda: builder.published == store.log.max_offset, "the end is published")
            build_all(builder)
        assert home.bodies(store, "T") == [b"%04d" % number for number in range(50)]
        assert [hit.body for hit in store.query("T", "k7")] == [b"0007"]
        assert store.offset_by_time("T", 0, home.clock.now) >= 0
        assert (store.min_offset("T", 0), store.max_offset("T", 0), store.topics()) == (0, 50, ["T"])


def test_a_reader_that_does_not_wait_builds_nothing_by_itself(home: StoreHome) -> None:
    with home.open(**EXTERNAL) as store:
        home.put_numbered(store, 20)
        for _ in range(3):
            store.try_catch_up()
            assert store.dispatcher.position == 0, "only the job builds queues"
            assert store.get("T", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
        with Builder.open(home.path) as builder:
            eventually(lambda: builder.published == store.log.max_offset, "the end is published")
            build_all(builder)
        eventually(store.try_catch_up, "the queues are refreshed, by this thread or the store's")
        assert store.max_offset("T", 0) == 20


def test_listeners_are_notified_as_queues_grow(home: StoreHome) -> None:
    arrivals: list[tuple[str, int, int, int]] = []
    came = threading.Event()

    def arrived(topic: str, queue_id: int, max_offset: int, codes: Any) -> None:
        arrivals.append((topic, queue_id, max_offset, len(codes)))
        came.set()

    with home.open(**EXTERNAL, mapped_file_size_consume_queue=400) as store, Builder.open(home.path) as builder:
        store.on_arrival(arrived)
        for number in range(50):  # more than two files of the queue hold
            store.put(Message("T", b"%d" % number))
        eventually(lambda: builder.published == store.log.max_offset, "the end is published")
        build_all(builder)
        assert came.wait(30)
        store.put(Message("T", b"one more", queue_id=3))
        eventually(lambda: builder.published == store.log.max_offset, "the end is published")
        build_all(builder)
        eventually(lambda: len(arrivals) == 2, "the second queue is visible")
    assert arrivals == [("T", 0, 50, 50), ("T", 3, 1, 1)]


def test_a_queue_file_that_a_killed_job_left_is_mapped_anew(home: StoreHome) -> None:
    """The job had filled one file and begun the next, and was killed before it said so. Its successor makes that file
    once more.
    """
    with home.open(**EXTERNAL, mapped_file_size_consume_queue=20 * UNIT_SIZE) as store:
        for number in range(20):
            store.put(Message("T", b"%d" % number))
        full = store.log.max_offset
        store.put(Message("T", b"20"))
        eventually(lambda: published(home) == store.log.max_offset, "the end is published")
        killed = Builder.open(home.path)
        say, killed._done.write = killed._done.write, lambda position, safe: None  # type: ignore[method-assign]
        killed.build(full)
        killed.build(killed.published)
        say(full, 0)
        store.catch_up()
        assert (store.max_offset("T", 0), len(home.queue_files("T"))) == (20, 2)
        killed._release()
        store.put(Message("T", b"21"))  # the file that was left does not have this one
        with Builder.open(home.path) as builder:
            eventually(lambda: builder.published == store.log.max_offset, "the end is published")
            build_all(builder)
        store.catch_up()
        assert home.bodies(store, "T") == [b"%d" % number for number in range(22)]


def test_under_sync_flush_only_what_is_on_disk_is_published(home: StoreHome, disk: FaultyFiles) -> None:
    go_on, reached = threading.Event(), threading.Event()
    with home.open(**EXTERNAL, sync=True, files=disk) as store:
        store.put(Message("T", b"on disk"))
        flushed = store.log.max_offset
        eventually(lambda: published(home) == flushed, "what is on disk is published")

        def wait(path: Any) -> None:
            if path.parent.name == "commitlog":
                reached.set()
                go_on.wait(30)

        disk.before_sync = wait
        answer = store.put_async(Message("T", b"on its way"))
        assert reached.wait(30)
        assert store.log.max_offset > flushed
        store.dispatcher.wake()
        with Builder.open(home.path) as builder:
            build_all(builder)
            assert (published(home), builder.position) == (flushed, flushed)
        assert home.bodies(store, "T") == [b"on disk"]
        go_on.set()
        assert answer.result(30).ok
        eventually(lambda: published(home) == store.log.max_offset, "what came to disk is published")


def test_a_start_takes_the_next_offsets_from_the_log(home: StoreHome) -> None:
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 100)
        with Builder.open(home.path) as builder:
            eventually(lambda: builder.published == store.log.max_offset, "the end is published")
            build_all(builder)
        put_mixed(home, store, 100, 100)
    before = derived_files(home.path)
    for crashed in (False, True):
        if crashed:
            home.mark_crashed()
        with home.open(**EXTERNAL) as store:
            put_mixed(home, store, 50, 200 + 50 * crashed)
        assert derived_files(home.path) == before, "a start touches neither queues nor index"
    with Builder.open(home.path) as builder:
        build_all(builder)
    twin = StoreHome(home.path.with_name("twin"))
    with twin.open(**SMALL) as store:
        for start in range(0, 300, 50):
            put_mixed(twin, store, 50, start)
    assert derived_files(home.path) == derived_files(twin.path)


def test_the_store_starts_while_its_job_runs(home: StoreHome) -> None:
    home.open(**EXTERNAL).close()
    with Builder.open(home.path) as builder:
        for round_ in range(3):
            with home.open(**EXTERNAL) as store:
                put_mixed(home, store, 60, 60 * round_)
            build_all(builder)
            with home.open(**EXTERNAL) as store:
                assert store.dispatcher.behind == 0
    twin = StoreHome(home.path.with_name("twin"))
    with twin.open(**SMALL) as store:
        put_mixed(twin, store, 180)
    assert derived_files(home.path) == derived_files(twin.path)


def test_dispatch_goes_from_inline_to_external_and_back(home: StoreHome) -> None:
    twin = StoreHome(home.path.with_name("twin"))
    with twin.open(**SMALL) as store:
        put_mixed(twin, store, 400)
    with home.open(**SMALL) as store:
        put_mixed(home, store, 100)
    with home.open(**EXTERNAL) as store:
        assert store.max_offset("T1", 1) > 0, "what was dispatched before is there at once"
        put_mixed(home, store, 100, 100)
        with Builder.open(home.path) as builder:
            builder.build(builder.published - 500)
        put_mixed(home, store, 100, 200)
    with home.open(**SMALL) as store:
        assert store.dispatcher.behind == 0, "the rest is dispatched by the start"
        put_mixed(home, store, 100, 300)
    assert derived_files(home.path) == derived_files(twin.path)
    assert not (home.path / "penstock" / "dispatch.json").exists()


def test_an_inline_start_refuses_while_the_job_runs(home: StoreHome) -> None:
    home.open(**EXTERNAL).close()
    with Builder.open(home.path) as builder:
        with pytest.raises(StoreInUse, match="stop it first") as error:
            home.open(**SMALL)
        assert is_one_sentence(str(error.value))
        with home.open(**EXTERNAL) as store:
            put_mixed(home, store, 10)
        build_all(builder)
    home.open(**SMALL).close()


def test_a_log_that_lost_its_end_is_settled_before_anything_is_appended(home: StoreHome) -> None:
    with home.open(**EXTERNAL) as store:
        home.put_numbered(store, 1)
        for number in range(1, 40):
            store.put(Message("T", b"%04d" % number, keys=(f"k{number}",)))
        with Builder.open(home.path) as builder:
            eventually(lambda: builder.published == store.log.max_offset, "the end is published")
            build_all(builder)
        eventually(lambda: store.max_offset("T", 0) == 40, "the store sees what was built")
        lost = store.queues.find("T", 0).unit(30)[0]  # type: ignore[union-attr]
    home.write(home.log_files()[0], lost, bytes(16_384 - lost))
    home.mark_crashed()
    with home.open(**EXTERNAL) as store:
        assert store.max_offset("T", 0) == 30
        assert store.put(Message("T", b"after", keys=("k35",))).queue_offset == 30
        with Builder.open(home.path) as builder:
            eventually(lambda: builder.published == store.log.max_offset, "the end is published")
            build_all(builder)
        assert home.bodies(store, "T") == [b"%04d" % number for number in range(30)] + [b"after"]
        assert [hit.body for hit in store.query("T", "k35")] == [b"after"]


def test_after_the_machine_failed_only_what_was_synced_is_shown(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with home.open(**EXTERNAL) as store:
        for number in range(60):
            store.put(Message("T", b"%04d" % number))
        eventually(lambda: published(home) == store.log.max_offset, "the end is published")
        with Builder.open(home.path) as builder:
            builder.build(builder.published // 2)
            half = builder.position
        builder = Builder.open(home.path)
        builder._synced += 1000
        build_all(builder)
        failed = home.copy_to(home.path.with_name("failed"))
        builder.close()
    monkeypatch.setattr("penstock.store.external_dispatch.files_shared_with_job.boot_number", lambda: 42)
    with failed.open(**EXTERNAL) as store:
        assert store.dispatcher.position == half
        assert 0 < store.max_offset("T", 0) < 60
        with Builder.open(failed.path) as builder:
            assert builder.position == half
            eventually(lambda: builder.published == store.log.max_offset, "the end is published")
            build_all(builder)
        assert failed.bodies(store, "T") == [b"%04d" % number for number in range(60)]
    failed.close_all()


def test_an_audit_knows_that_queues_may_be_behind(home: StoreHome) -> None:
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 200)
        with Builder.open(home.path) as builder:
            builder.build(builder.published // 2)
        assert not audit(home.path).errors
    assert not audit(home.path).errors


def test_a_view_shows_what_is_not_dispatched_yet(home: StoreHome) -> None:
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 100)
        with Builder.open(home.path) as builder:
            builder.build(builder.published // 2)
            with home.open(read_only=True, **SMALL) as view:
                seen = home.state(view)
    with home.open(**SMALL) as store:
        assert home.state(store) == seen


# -- a job that is missing or late -----------------------------------------------------------------------------------


def test_a_missing_job_is_a_problem_with_bytes_and_seconds(home: StoreHome) -> None:
    with home.open(**EXTERNAL) as store:
        lag = store.dispatcher.lag()
        assert (lag.behind_bytes, lag.behind_ms) == (0, 0)
        assert (
            f"no job builds the queues (dispatch=external); run `penstock pipeline dispatch --store {home.path}`"
            in (lag.problem)
        )
        store.put(Message("T", b"x" * 2000))
        home.clock.now += 7_000
        eventually(lambda: store.dispatcher.lag().behind_ms > 0, "the message is seen to wait")
        lag = store.dispatcher.lag()
        assert (lag.behind_bytes, lag.behind_ms) == (store.log.max_offset, 7_000)
        assert "dispatch is 2.0 KiB and 7 s behind; run `penstock pipeline dispatch" in lag.problem
        assert is_one_sentence(lag.problem)
        figures = store.figures()
        assert (figures.dispatch_behind_ms, figures.dispatch_problem) == (7_000, lag.problem)
        with Builder.open(home.path) as builder:
            assert store.dispatcher.lag() == (store.log.max_offset, 7_000, ""), (
                "a job that has just begun is no problem"
            )
            build_all(builder)
            eventually(lambda: store.dispatcher.lag() == (0, 0, ""), "the store sees what was built")


def test_a_job_without_progress_is_a_problem(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    with home.open(**EXTERNAL) as store, Builder.open(home.path):
        store.put(Message("T", b"x"))
        home.clock.now += 5_000
        eventually(lambda: store.dispatcher.lag().behind_ms > 0, "the message is seen to wait")
        assert not store.dispatcher.lag().problem
        monkeypatch.setattr(follower, "NO_PROGRESS_S", 0.0)
        problem = store.dispatcher.lag().problem
        assert f"5 s behind, and its job (process {os.getpid()}) has made no progress for" in problem
        assert is_one_sentence(problem)


def test_inline_dispatch_has_no_job_to_miss(home: StoreHome) -> None:
    with home.open(**SMALL) as store:
        store.put(Message("T", b"x"))
        store.catch_up()
        assert store.dispatcher.lag() == (0, 0, "")
