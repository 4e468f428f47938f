"""A disk without room: a status with a sentence, never a signal; and it goes on by itself when there is room again.

The writer is a process of its own, on a disk of a few megabytes: if a store into a map met a missing block, it would
die of SIGBUS, and its exit code would tell.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.disks import make_sparse

from penstock.store import FlushDiskType, Message, MessageStore, PutStatus, Settings
from penstock.store.files.file_io import Files

LONGEST_SECONDS = 120
BALLAST = 2 << 20

PROCESS = """
import json, sys, time
from penstock.errors import PenstockError
from penstock.store import Message, MessageStore, Settings

folder, *pairs = sys.argv[1:]
no_levels = Settings.dev(disk_space_warning_level_ratio=1, disk_space_clean_forcibly_ratio=1)  # only the disk refuses
settings = Settings.load(pairs=pairs, base=no_levels)


def message(number, topics):
    return Message(f"t{number % topics}", b"%06d" % number + bytes(3000), keys=f"k{number}")


def put(number, topics):
    answer = store.put(message(number, topics))
    return {"status": answer.status.value, "reason": answer.reason}


def fill(number, topics):
    while (answer := put(number, topics))["status"] == "PUT_OK":
        number += 1
        while store.dispatcher.behind > 0 and store.flags.writable:
            time.sleep(0.0001)  # dispatch keeps up or says that it cannot: so little room is needed to go on
    return {"number": number, **answer}


def put_within(number, topics, seconds):
    deadline = time.monotonic() + seconds
    while (answer := put(number, topics))["status"] != "PUT_OK" and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


def got(topic):
    bodies, offset = [], 0
    while offset < store.max_offset(topic, 0):
        page = store.get(topic, 0, offset)
        bodies += [int(record.body[:6]) for record in page.messages]
        offset = page.next_begin_offset
    return bodies


def got_all(topics):
    return sorted(body for topic in range(topics) for body in got(f"t{topic}"))


def found(count, topics):
    hits = [store.query(f"t{number % topics}", f"k{number}") for number in range(count)]
    return [[int(record.body[:6]) for record in records] for records in hits]


def close():
    store.close()
    return None


try:
    store = MessageStore.open(folder, settings)
except PenstockError as error:
    print(json.dumps({"failed": str(error)}), flush=True)
    sys.exit(3)
print(json.dumps({"clean": store.report.clean_exit}), flush=True)
for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(globals()[name](*arguments)), flush=True)
"""


class Peer:
    """The process that owns the store; a call is a line to it and a line back."""

    def __init__(self, folder: Path, *pairs: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(folder), *pairs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.greeting = self._answer()

    def _answer(self) -> Any:
        line = self._process.stdout.readline()
        assert line, f"the process died with {self._process.wait(LONGEST_SECONDS)}"
        return json.loads(line)

    def call(self, name: str, *arguments: object) -> Any:
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> int:
        """Ends it without closing the store, unless that was asked for; returns its exit code."""
        self._process.stdin.close()
        return self._process.wait(LONGEST_SECONDS)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def mounted(place: Path, *arguments: str) -> Iterator[Path]:
    """Mounts a file system of 8 MB, two of them taken by a file that can be removed."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root")
    place.mkdir()
    done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        (place / "ballast").write_bytes(b"\1" * BALLAST)
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A tmpfs of 8 MB; with the parameter "ext4", a disk of that kind."""
    if getattr(request, "param", "tmpfs") == "tmpfs":
        yield from mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=8m", "tmpfs")
        return
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing")
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, 8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-m", "0", str(image)], check=True)
    yield from mounted(tmp_path / "disk", "-o", "loop", str(image))


Start = Callable[..., Peer]


@pytest.fixture
def start(disk: Path) -> Iterator[Start]:
    """Starts a process on the store of the small disk; none is left when the disk goes."""
    started: list[Peer] = []

    def new(*pairs: str) -> Peer:
        started.append(Peer(disk / "store", *pairs))
        return started[-1]

    yield new
    for peer in started:
        peer.kill()


def make_room(disk: Path) -> None:
    (disk / "ballast").unlink()


class Case:
    """Which kind of file it is that does not fit: the others are small, or there from the beginning."""

    def __init__(self, status: PutStatus, words: str, topics: int, *pairs: str) -> None:
        self.status = status.value
        self.words = words
        self.topics = topics
        self.pairs = pairs


CASES = {
    "a log file": Case(
        PutStatus.CREATE_MAPEDFILE_FAILED,
        "/commitlog/",
        1,
        "mappedFileSizeCommitLog=400000",
    ),
    "a log file that is made ahead": Case(
        PutStatus.CREATE_MAPEDFILE_FAILED,
        "/commitlog/",
        1,
        "mappedFileSizeCommitLog=400000",
        "preAllocateFiles=true",
    ),
    "a step of a log file that grows": Case(
        PutStatus.CREATE_MAPEDFILE_FAILED,
        "/commitlog/",
        1,
        "mappedFileSizeCommitLog=67108864",
        "growLogFiles=true",
    ),
    "a log file under synchronous flush": Case(
        PutStatus.CREATE_MAPEDFILE_FAILED,
        "/commitlog/",
        1,
        "mappedFileSizeCommitLog=400000",
        "flushDiskType=SYNC_FLUSH",
    ),
    "a queue file": Case(
        PutStatus.SERVICE_NOT_AVAILABLE,
        "/consumequeue/",
        1000,
        "mappedFileSizeCommitLog=4194304",
        "mappedFileSizeConsumeQueue=200000",
    ),
    "a queue file under synchronous flush": Case(
        PutStatus.SERVICE_NOT_AVAILABLE,
        "/consumequeue/",
        1000,
        "mappedFileSizeCommitLog=4194304",
        "mappedFileSizeConsumeQueue=200000",
        "flushDiskType=SYNC_FLUSH",
    ),
    "an index file": Case(
        PutStatus.SERVICE_NOT_AVAILABLE,
        "/index/",
        1,
        "mappedFileSizeCommitLog=4194304",
        "maxHashSlotNum=100000",
        "maxIndexNum=4",
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def assert_all_is_there(peer: Peer, case: Case, count: int) -> None:
    assert peer.call("got_all", case.topics) == list(range(count))
    assert peer.call("found", count, case.topics) == [[number] for number in range(count)]


def test_a_full_disk_is_a_status_and_puts_go_on_when_there_is_room(disk: Path, start: Start, case: Case) -> None:
    peer = start(*case.pairs)
    full = peer.call("fill", 0, case.topics)
    count = full["number"]
    assert count > 3
    assert full["status"] == case.status
    assert case.words in full["reason"]
    assert "no space left on the disk" in full["reason"]
    assert peer.call("put", count, case.topics)["status"] == case.status, "it stays so"
    assert peer.call("got", "t0")[0] == 0, "what is there can be read"
    make_room(disk)
    assert peer.call("put_within", count, case.topics, LONGEST_SECONDS)["status"] == "PUT_OK"
    assert_all_is_there(peer, case, count + 1)
    peer.call("close")
    assert peer.end() == 0
    again = start(*case.pairs)
    assert again.greeting == {"clean": True}
    assert_all_is_there(again, case, count + 1)
    assert again.end() == 0


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "not closed"])
@pytest.mark.parametrize("case", ["a log file", "a queue file", "an index file"], indirect=True)
def test_nothing_acknowledged_is_lost_if_the_process_ends_while_the_disk_is_full(
    disk: Path, start: Start, case: Case, closed: bool
) -> None:
    peer = start(*case.pairs)
    count = peer.call("fill", 0, case.topics)["number"]
    if closed:
        peer.call("close")
    assert peer.end() == 0
    make_room(disk)
    again = start(*case.pairs)
    assert_all_is_there(again, case, count)
    assert again.call("put_within", count, case.topics, LONGEST_SECONDS)["status"] == "PUT_OK"
    again.call("close")
    assert again.end() == 0


def test_a_store_on_a_full_disk_is_not_opened_and_says_why(disk: Path, start: Start) -> None:
    with pytest.raises(OSError, match="No space left"):
        (disk / "more").write_bytes(bytes(16 << 20))
    peer = start()
    assert "no space left on the disk" in peer.greeting["failed"]
    assert str(disk / "store") in peer.greeting["failed"]
    assert peer.end() == 3
    (disk / "more").unlink()
    again = start()
    assert again.greeting == {"clean": True}
    assert again.call("put", 0, 1)["status"] == "PUT_OK"
    again.call("close")
    assert again.end() == 0


def fill_disk(disk: Path) -> None:
    with (disk / "more").open("wb", buffering=0) as more, contextlib.suppress(OSError):
        while True:
            more.write(bytes(4096))


@pytest.mark.parametrize("disk", ["ext4"], indirect=True)  # a tmpfs needs room even to read a hole
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "not closed"])
def test_a_sparse_copy_on_a_full_disk_refuses_and_is_not_killed(disk: Path, start: Start, closed: bool) -> None:
    pairs = (
        "mappedFileSizeCommitLog=1048576",
        "mappedFileSizeConsumeQueue=200000",
        "maxHashSlotNum=40000",
        "maxIndexNum=40000",
    )
    peer = start(*pairs)
    for number in range(20):
        assert peer.call("put", number, 1)["status"] == "PUT_OK"
    assert peer.call("got_all", 1) == list(range(20))
    if closed:
        peer.call("close")
    assert peer.end() == 0
    for path in (disk / "store").rglob("*"):
        if path.is_file() and path.name.isdecimal():
            make_sparse(path)
    fill_disk(disk)
    peer = start(*pairs)
    if "failed" in peer.greeting:
        assert "no space left on the disk" in peer.greeting["failed"]
        assert peer.end() == 3
    else:
        answer = peer.call("put", 20, 1)
        assert answer["status"] == PutStatus.CREATE_MAPEDFILE_FAILED.value
        assert "/commitlog/" in answer["reason"]
        assert "no space left on the disk" in answer["reason"]
        assert peer.call("got_all", 1) == list(range(20))
        peer.call("close")
        assert peer.end() == 0
    (disk / "more").unlink()
    again = start(*pairs)
    assert again.call("put", 20, 1)["status"] == "PUT_OK"
    assert again.call("got_all", 1) == list(range(21))
    assert again.call("found", 21, 1) == [[number] for number in range(21)]
    again.call("close")
    assert again.end() == 0


# -- the same without a real disk ----------------------------------------------------------------------------


class NoRoomForQueues(Files):
    """A disk on which queue files find no room, and which tells when one was refused."""

    def __init__(self) -> None:
        self.room = True
        self.refused = threading.Event()

    def _create_whole(self, path: Path, size: int, allocated: int) -> int:
        if not self.room and "consumequeue" in path.parts:
            self.refused.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super()._create_whole(path, size, allocated)


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_reader_that_brings_dispatch_up_to_date_also_ends_the_refusal(tmp_path: Path, flush: FlushDiskType) -> None:
    disk = NoRoomForQueues()
    disk.room = False
    settings = Settings.dev(flush_disk_type=flush, flush_interval_commit_log=3_600_000)
    with MessageStore.open(tmp_path / "store", settings, files=disk) as store:
        assert store.put(Message("orders", b"one")).ok
        assert disk.refused.wait(LONGEST_SECONDS)
        deadline = time.monotonic() + LONGEST_SECONDS
        while store.flags.writable and time.monotonic() < deadline:
            os.sched_yield()
        refused = store.put(Message("orders", b"two"))
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "messages cannot be dispatched" in refused.reason
        disk.room = True
        assert [message.body for message in store.get("orders", 0, 0).messages] == [b"one"]
        while not (answer := store.put(Message("orders", b"two"))).ok and time.monotonic() < deadline:
            os.sched_yield()
        assert answer.ok, answer.reason
