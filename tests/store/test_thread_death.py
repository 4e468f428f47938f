"""A background thread that ends by an exception is noticed: writes stop, the reason is shown, and the store closes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import WAIT_SECONDS
from support.stores import eventually

from penstock.errors import StoreFailed
from penstock.store import FlushDiskType, Message, MessageStore, PutStatus, Settings
from penstock.store.files.file_io import FileMap, Files
from penstock.store.files.mapped_file_queue import file_name
from penstock.store.settings import BrokerRole
from penstock.store.worker_thread import Worker

ASYNC = {"flush_disk_type": FlushDiskType.ASYNC_FLUSH}
SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
WITH_SLAVES = {**SYNC, "broker_role": BrokerRole.SYNC_MASTER}
POOLED = {**ASYNC, "transient_store_pool_enable": True}
LARGE_FILES = {**ASYNC, "mapped_file_size_commit_log": 64 << 20}


@contextlib.contextmanager
def opened(path: Path, **settings: object) -> Iterator[MessageStore]:
    store = MessageStore.open(path / "store", Settings.dev(**settings))
    try:
        yield store
    finally:
        store.close()


def names(path: Path, **settings: object) -> set[str]:
    with opened(path, **settings) as store:
        return {worker._thread.name for worker in store._threads.workers}


def kill(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the next round of a worker raise what nothing expects, and waits for its end."""

    def out_of_memory() -> None:
        raise MemoryError("planted")

    monkeypatch.setattr(worker, "work", out_of_memory)
    worker._wake.set()
    worker._thread.join(WAIT_SECONDS)
    assert not worker._thread.is_alive()


KINDS = {
    "async": (ASYNC, {"penstock-flush", "penstock-derived-flush", "penstock-clean", "penstock-disk"}),
    "sync": (SYNC, {"penstock-group-commit"}),
    "sync master": (WITH_SLAVES, {"penstock-deadlines"}),
    "pooled": (POOLED, {"penstock-commit"}),
    "large files": (LARGE_FILES, {"penstock-prefault"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whichever_thread_ends_writes_stop_and_the_reason_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    settings, expected = KINDS[kind]
    found = names(tmp_path / "names", **settings)
    assert found >= expected
    for number, name in enumerate(sorted(found if kind == "async" else expected)):
        with opened(tmp_path / str(number), **settings) as store:
            (worker,) = [each for each in store._threads.workers if each._thread.name == name]
            kill(worker, monkeypatch)
            assert name in store.flags.reason, "the reason names the thread"
            assert "planted" in store.flags.reason
            assert list(store.dead_threads) == [name]
            result = store.put(Message("orders", b"too late"))
            assert not result.stored
            assert name in (result.reason or "")
        assert (tmp_path / str(number) / "store" / "abort").exists(), "the next start recovers"


def test_a_flush_listener_that_fails_does_not_leave_puts_waiting_for_ever(tmp_path: Path) -> None:
    with opened(tmp_path, **SYNC, sync_flush_timeout=300) as store:

        def fails() -> None:
            raise MemoryError("planted")

        store.watermarks.on_advance(fails)
        assert store.put(Message("orders", b"the sync succeeds, its listener does not")).ok
        eventually(lambda: "penstock-group-commit" in store.flags.reason, "the thread's death is not noticed")
        assert not store.put(Message("orders", b"refused")).stored


def test_an_arrival_listener_that_fails_stops_writes(tmp_path: Path) -> None:
    with opened(tmp_path, **ASYNC) as store:

        def fails(*_: object) -> None:
            raise MemoryError("planted")

        store.on_arrival(fails)
        store.put(Message("orders", b"first"))
        thread = store.dispatcher._thread
        assert thread is not None
        thread.join(WAIT_SECONDS)
        assert "penstock-dispatch" in store.flags.reason
        store.dispatcher._arrived.remove(fails)


class BrokenOnce(Files):
    """The first request to load a map's pages fails with EIO."""

    broken = True

    def open_or_create(self, made: FileMap) -> FileMap:
        will_need = made.will_need

        def fails_once() -> None:
            if BrokenOnce.broken:
                BrokenOnce.broken = False
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            will_need()

        made.will_need = fails_once  # type: ignore[method-assign]
        return made

    def create_map(self, path: Path, size: int, *, allocated: int | None = None) -> FileMap:
        made = super().create_map(path, size, allocated=allocated)
        return self.open_or_create(made) if path.parent.name == "commitlog" else made


def test_an_error_while_a_file_is_prepared_fails_one_put_and_not_all_that_follow(tmp_path: Path) -> None:
    BrokenOnce.broken = True
    settings = Settings.dev(warm_mapped_file_enable=True, pre_allocate_files=True)
    with MessageStore.open(tmp_path / "store", settings, files=BrokenOnce()) as store:
        first = store.put(Message("orders", b"first"))
        assert first.status is not PutStatus.PUT_OK
        assert "cannot prepare the next log file" in (first.reason or "")
        assert store.put(Message("orders", b"second")).stored


def test_a_thread_that_ends_in_its_last_round_leaves_no_clean_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, **ASYNC) as store:
        store.put(Message("orders", b"x"))
        (worker,) = [each for each in store._threads.workers if each._thread.name == "penstock-derived-flush"]

        def out_of_memory() -> None:
            raise MemoryError("planted")

        monkeypatch.setattr(worker, "finish", out_of_memory)
    assert (tmp_path / "store" / "abort").exists()


def test_without_a_supervisor_the_exception_is_not_swallowed() -> None:
    class Fails(Worker):
        def work(self) -> None:
            raise StoreFailed("planted")

    worker = Fails("fails", None)
    worker._wake.set()
    with pytest.raises(StoreFailed):
        worker._run()


class EndsTheAllocator(Files):
    """Creating the second log file ends the thread that does it, by what no handler of errors expects."""

    def create_map(self, path: Path, size: int, *, allocated: int | None = None) -> FileMap:
        if path.parent.name == "commitlog" and not path.name.endswith("0" * 20):
            raise SystemExit("planted")
        return super().create_map(path, size, allocated=allocated)


def test_when_the_allocator_ends_nobody_waits_for_its_files(tmp_path: Path) -> None:
    settings = Settings.dev(pre_allocate_files=True)
    with MessageStore.open(tmp_path / "store", settings, files=EndsTheAllocator()) as store:
        assert store.put(Message("orders", b"this wants the second file as well")).stored
        allocator = store.log._allocator
        assert allocator is not None
        assert allocator._thread is not None
        allocator._thread.join(WAIT_SECONDS)
        assert "penstock-allocate" in store.flags.reason
        refused = store.put(Message("orders", b"refused at once, without waiting for a file"))
        assert "penstock-allocate" in (refused.reason or "")
        with pytest.raises(StoreFailed, match="the thread that creates log files has ended"):
            allocator.allocate(tmp_path / "store" / "commitlog" / file_name(1 << 40), 1 << 40)
    assert (tmp_path / "store" / "abort").exists(), "the next start recovers"


def test_all_threads_that_ended_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, **ASYNC) as store:
        first, second = store._threads.workers[:2]
        kill(first, monkeypatch)
        kill(second, monkeypatch)
        for worker in (first, second):
            assert worker._thread.name in store.flags.reason


def test_a_slave_takes_no_more_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, **ASYNC, broker_role=BrokerRole.SLAVE) as store:
        kill(store._threads.workers[0], monkeypatch)
        assert store.replica_log is not None
        with pytest.raises(StoreFailed, match=store._threads.workers[0]._thread.name):
            store.replica_log.append(0, b"bytes of the master's log")
