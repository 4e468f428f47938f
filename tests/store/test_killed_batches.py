"""A process is killed in the middle of a batch, when only the size and magic of its first record are missing.

A batch is hidden by its first record, which is published last. A kill before that leaves a complete record without size
and magic, and published records behind it, which no consumer has seen and no answer has acknowledged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ROOT, TESTS
from support.messages import as_v2, is_delayed, make_log, make_record, message, read_queue, read_store
from support.stores import StoreHome

from penstock.format import kernels
from penstock.format.constants import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, SECTOR_SIZE
from penstock.format.record_layout import SIZE_AND_MAGIC, size_and_magic
from penstock.format.scan import unpublished_magic
from penstock.store import Message
from penstock.store.audit.audit import audit
from penstock.store.rebuild import rebuild
from penstock.store.repair import repair

ALONE, BATCH = range(1, 4), range(21, 26)
ROWS = 50
WRITER = f"""
import os, signal, sys
from support.messages import message
from penstock.format import kernels
from penstock.store import MessageStore, Settings

store = MessageStore.open(sys.argv[1], Settings.dev())
for number in {ALONE!r}:
    assert store.put(message(number)).ok
store.catch_up()
kernels.publish = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "rows":
    import pyarrow
    store.put_arrow(pyarrow.record_batch({{"topic": ["rows"] * {ROWS}, "body": [b"row"] * {ROWS}}}))
store.engine.log.appender.is_open = False  # the general path, which publishes by that function
store.put_many([message(number) for number in {BATCH!r}])
"""


@pytest.fixture(params=["messages", "rows"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def killed(home: StoreHome, way: str) -> StoreHome:
    """Three messages, and a batch whose first record has no size."""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{ROOT / 'src'}"}
    command = [sys.executable, "-c", WRITER, str(home.path), way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not any(map(is_delayed, BATCH))
    return home


def first_of_batch(home: StoreHome) -> tuple[Path, int, int]:
    """The log file, and where the first record of the batch begins and ends."""
    (log, *_) = home.log_files()
    data = log.read_bytes()
    at = 0
    while size := size_and_magic(data, at)[0]:
        at += size
    return log, at, kernels.find_record(data, 0, at, len(data), True)


def log_of(home: StoreHome) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((home.path / "commitlog").iterdir()))


def assert_whole(home: StoreHome, way: str, *, read_only: bool) -> None:
    """The batch is there: no damage, no offset of a queue without its message."""
    with home.open(read_only=read_only) as store:
        assert store.report.damage == []
        if way == "rows":
            found = read_queue(store, "rows", 0)
            assert [record.queue_offset for record in found] == list(range(ROWS))
        else:
            assert sorted(read_store(store)) == [*ALONE, *BATCH]


def test_the_first_record_of_a_batch_that_a_kill_interrupted_is_published(killed: StoreHome, way: str) -> None:
    assert_whole(killed, way, read_only=False)
    assert audit(killed.path).errors == []
    assert_whole(killed, way, read_only=False)


def test_a_view_of_such_a_store_shows_the_same_and_changes_nothing(killed: StoreHome, way: str) -> None:
    before = log_of(killed)
    assert_whole(killed, way, read_only=True)
    assert log_of(killed) == before


def test_puts_go_on_behind_it(killed: StoreHome, way: str) -> None:
    with killed.open() as store:
        more = store.put(message(41))
        assert more.ok
        assert more.physical_offset > 0
    with killed.open() as store:
        store.catch_up()
        (found,) = (record for record in store.query(message(41).topic, "k41"))
        assert found.physical_offset == more.physical_offset


def test_a_first_record_that_is_not_whole_stays_damage(killed: StoreHome) -> None:
    (log, *_) = sorted((killed.path / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    at = 0
    while size := int.from_bytes(data[at : at + 4]):
        at += size
    data[at + 12] ^= 0xFF  # its queue
    data[at + 8] ^= 0xFF  # and its CRC
    log.write_bytes(data)
    with killed.open() as store:
        assert [each.physical_offset for each in store.report.damage] == [at]


@pytest.mark.parametrize("stored", [4, 5, 6, 7])
def test_a_kill_between_the_stores_of_size_and_magic_leaves_no_gap(killed: StoreHome, way: str, stored: int) -> None:
    log, at, end = first_of_batch(killed)
    killed.write(log, at, SIZE_AND_MAGIC.pack(end - at, MESSAGE_MAGIC)[:stored])
    assert_whole(killed, way, read_only=True)
    assert_whole(killed, way, read_only=False)
    assert audit(killed.path).errors == []


def test_a_record_without_its_magic_in_an_earlier_file_stays_damage(home: StoreHome) -> None:
    """A batch lies in one file, and the log ends in it."""
    with home.open(mapped_file_size_commit_log=4096) as store:
        bad = [store.put(message) for message in [Message("T", b"b" * 400)] * 20][2]
        assert len(store.log.queue.files) > 1
    home.write(home.log_files()[0], bad.physical_offset + 4, bytes(4))
    home.mark_crashed()
    with home.open(mapped_file_size_commit_log=4096) as store:
        assert [each.physical_offset for each in store.report.damage] == [bad.physical_offset]


@pytest.mark.parametrize("head", [b"\0\0\0\x5b", b"\x7f\0\0\0", b"\0\0\0\0\xda\xa4", b"\0\0\0\0\xcb\xd4\x31\x94"])
def test_a_record_with_another_size_or_magic_stays_damage(killed: StoreHome, head: bytes) -> None:
    log, at, _ = first_of_batch(killed)
    killed.write(log, at, head)
    with killed.open() as store:
        assert [each.physical_offset for each in store.report.damage] == [at]


def test_an_unpublished_record_has_the_magic_with_which_it_is_valid() -> None:
    record = make_record(0, b"body", topic="topic")
    assert unpublished_magic(bytes(8) + record[8:], 0, 0, len(record)) == MESSAGE_MAGIC
    newer = as_v2(record, b"topic")
    assert unpublished_magic(bytes(8) + newer[8:], 0, 0, len(newer)) == MESSAGE_MAGIC_V2
    assert unpublished_magic(newer[:6] + bytes(2) + newer[8:], 0, 0, len(newer)) == MESSAGE_MAGIC_V2
    assert unpublished_magic(bytes(7) + record[7:8] + newer[8:], 0, 0, len(newer)) is None, "a part of V1's magic"
    assert unpublished_magic(bytes(4) + record[4:], 0, 0, len(record)) is None, "it was published"
    assert unpublished_magic(bytes(len(record)), 0, 0, len(record)) is None
    assert unpublished_magic(bytes(8), 0, 0, 3) is None


def test_a_first_record_of_version_two_is_published_as_such(home: StoreHome) -> None:
    """A slave of RocketMQ 5 was killed while it appended."""
    newer = as_v2(make_record(0, b"first", topic="topic"), b"topic")
    rest = make_log([b"second", b"third"], len(newer), topic="other")
    with home.open() as store:
        size = store.settings.mapped_file_size_commit_log
    log = home.path / "commitlog" / ("0" * 20)
    log.parent.mkdir(exist_ok=True)
    log.write_bytes((bytes(8) + newer[8:] + rest).ljust(size, b"\0"))
    home.mark_crashed()
    with home.open() as store:
        assert store.report.damage == []
        assert [record.body for record in read_queue(store, "topic", 0)] == [b"first"]
    assert log.read_bytes()[: len(newer)] == newer


@pytest.fixture
def torn(killed: StoreHome) -> tuple[StoreHome, int, int]:
    """The first record of the batch has lost a sector of its properties, and its size and magic."""
    log, at, _ = first_of_batch(killed)
    old = log.read_bytes()
    record = make_record(at, b"first", topic="torn", properties={"p": "v" * 3000, "tenant": "acme"})
    rest = make_log([b"second", b"third"], at + len(record), topic="behind")
    data = bytearray(old[:at] + bytes(8) + record[8:] + rest).ljust(len(old), b"\0")
    lost = (at // SECTOR_SIZE + 3) * SECTOR_SIZE
    data[lost : lost + SECTOR_SIZE] = bytes(SECTOR_SIZE)
    log.write_bytes(data)
    (killed.path / "penstock/dispatched.json").unlink(missing_ok=True)  # nothing says that this was on disk
    (killed.path / "checkpoint").unlink(missing_ok=True)
    return killed, at, at + len(record)


def test_a_first_record_that_lost_a_sector_stays_damage_and_is_kept(torn: tuple[StoreHome, int, int]) -> None:
    home, at, end = torn
    left = log_of(home)[at:end]
    for _ in range(2):
        with home.open() as store:
            assert [(each.physical_offset, each.end) for each in store.report.damage] == [(at, end)]
            assert [record.body for record in read_queue(store, "behind", 0)] == [b"second", b"third"]
            assert read_queue(store, "torn", 0) == []
        home.mark_crashed()
    assert not any(log_of(home)[at:end])
    assert left in [path.read_bytes() for path in home.kept()]


@pytest.mark.parametrize("mend", [rebuild, repair])
def test_a_rebuild_or_a_repair_does_not_publish_a_record_that_lost_a_sector(
    torn: tuple[StoreHome, int, int], mend: Callable[[Path], object]
) -> None:
    home, _, _ = torn
    mend(home.path)
    with home.open() as store:
        assert [record.body for record in read_queue(store, "behind", 0)] == [b"second", b"third"]
        assert read_queue(store, "torn", 0) == []


@pytest.mark.parametrize("mend", [rebuild, repair])
def test_a_rebuild_or_a_repair_of_such_a_store_leaves_no_gap(
    killed: StoreHome, way: str, mend: Callable[[Path], object]
) -> None:
    mend(killed.path)
    assert audit(killed.path).errors == []
    assert_whole(killed, way, read_only=False)
