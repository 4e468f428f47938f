"""An exception interrupts a put on its general path: Ctrl-C, or a signal handler that raises.

Then all of its messages are stored, or no byte of them is left: neither for this process, nor for the next one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from support.messages import read_queue
from support.stores import StoreHome

from penstock.errors import StoreFailed
from penstock.format import kernels
from penstock.store import MessageStore
from penstock.store.commit_log import CommitLog
from penstock.store.files.file_io import FileMap
from penstock.store.message import Message

BATCH = 10


def put_messages(store: MessageStore) -> None:
    store.log.appender.is_open = False  # the general path, which an exception can interrupt
    store.put_many([Message("rows", b"row") for _ in range(BATCH)])


def put_one(store: MessageStore) -> None:
    store.log.appender.is_open = False
    store.put(Message("rows", b"row"))


def put_rows(store: MessageStore) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    store.put_arrow(pyarrow.record_batch({"topic": ["rows"] * BATCH, "body": [b"row"] * BATCH}))


PUTS = pytest.mark.parametrize("put", [put_messages, put_one, put_rows])
Put = Callable[[MessageStore], None]


def interrupting(target: object, name: str, monkeypatch: pytest.MonkeyPatch, *, after: bool = False) -> None:
    """Has the next call of a function raise KeyboardInterrupt, instead of its work or `after` it."""
    really = getattr(target, name)

    def interrupt(*given: object) -> object:
        monkeypatch.setattr(target, name, really)
        if after:
            really(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(target, name, interrupt)


def interrupted_put(store: MessageStore, put: Put) -> None:
    with pytest.raises(KeyboardInterrupt):
        put(store)


def opened(home: StoreHome) -> MessageStore:
    store = home.open()
    assert store.put(Message("alone", b"one")).ok
    store.catch_up()
    return store


def assert_nothing_left(home: StoreHome, store: MessageStore) -> None:
    """Neither in this process nor, after a clean close, in the next one."""
    end = store.log.max_offset
    file = store.log.queue.last
    assert file is not None
    assert not any(file.map.view[end:])
    assert store.put(Message("rows", b"more")).queue_offset == 0
    store.close()
    with home.open() as again:
        assert again.report.clean_exit
        assert (again.report.damage, again.report.torn_bytes) == ([], 0)
        assert [record.body for record in read_queue(again, "rows", 0)] == [b"more"]


@PUTS
def test_a_put_that_is_interrupted_before_it_is_published_leaves_nothing(
    home: StoreHome, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(home)
    interrupting(kernels, "publish", monkeypatch)
    interrupted_put(store, put)
    assert_nothing_left(home, store)


@PUTS
def test_a_clean_close_right_after_it_leaves_nothing_either(
    home: StoreHome, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(home)
    interrupting(kernels, "publish", monkeypatch)
    interrupted_put(store, put)
    end = store.log.max_offset
    store.close()
    with home.open() as again:
        assert again.report.clean_exit
        assert (again.report.damage, again.report.log_end) == ([], end)
        assert again.queues.find("rows", 0) is None


@PUTS
def test_a_second_interruption_while_it_is_taken_back_changes_nothing(
    home: StoreHome, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(home)
    interrupting(kernels, "publish", monkeypatch)
    interrupting(kernels, "take_back", monkeypatch)
    interrupted_put(store, put)
    assert not store.log.appender.is_open, "the fast path would write over it"
    store.log.reopen()
    assert not store.log.appender.is_open
    with store.log.exclusive():
        pass
    assert store.log.appender.is_open
    assert_nothing_left(home, store)


@PUTS
def test_a_close_takes_back_what_a_second_interruption_left(
    home: StoreHome, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(home)
    interrupting(kernels, "publish", monkeypatch)
    interrupting(kernels, "take_back", monkeypatch)
    interrupted_put(store, put)
    store.close()
    with home.open() as again:
        assert again.report.damage == []
        assert again.queues.find("rows", 0) is None


@PUTS
@pytest.mark.parametrize("where", [(kernels, "publish"), (CommitLog, "_attach_to"), (CommitLog, "set_next_offset")])
def test_a_put_that_is_interrupted_after_it_was_published_is_stored(
    home: StoreHome, put: Put, where: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 1 if put is put_one else BATCH
    store = opened(home)
    interrupting(*where, monkeypatch, after=where[0] is kernels)
    interrupted_put(store, put)
    assert store.put(Message("rows", b"more")).queue_offset == count
    store.close()
    with home.open() as again:
        assert again.report.damage == []
        assert [record.queue_offset for record in read_queue(again, "rows", 0)] == list(range(count + 1))


def test_a_slave_takes_back_what_a_failing_disk_has_written_of_its_masters_bytes(
    home: StoreHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = StoreHome(tmp_path / "master").open()
    for _ in range(30):
        assert master.put(Message("T", b"b" * 5000)).ok
    data = master.log.read(0, master.log.max_offset)
    assert data is not None
    master.close()
    slave = home.open(broker_role="SLAVE")
    assert slave.replica_log is not None
    really = FileMap.write

    def write_half(given: FileMap, position: int, piece: memoryview) -> None:
        really(given, position, piece[: len(piece) // 2])
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(FileMap, "write", write_half)
        with pytest.raises((OSError, StoreFailed)):
            slave.replica_log.append(0, data)
    file = slave.log.queue.last
    assert file is not None
    assert not any(file.map.view)
    slave.replica_log.append(0, data)
    assert slave.log.read(0, len(data)) == data
    slave.close()


class Interrupts:
    """A field of a message that raises when the appender looks at it."""

    def __bool__(self) -> bool:
        raise KeyboardInterrupt


def test_a_batch_that_is_interrupted_on_the_fast_path_leaves_nothing(home: StoreHome) -> None:
    if kernels.active == "plain":
        pytest.skip("the plain appender declines before it looks")
    store = opened(home)
    batch = [Message("alone", b"row") for _ in range(BATCH)]
    before = store.log.next_offset("alone", 0)
    with pytest.raises(KeyboardInterrupt):
        store.log.append_ordinary_batch([*batch, Message("alone", b"", tags=Interrupts())])  # type: ignore[arg-type]
    assert store.log.next_offset("alone", 0) == before
    assert_nothing_left(home, store)
