"""The transient pool: appends go to a buffer first and are seen once they are committed to the file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.store import FlushDiskType, GetStatus, Message, MessageStore, PutStatus, Settings
from penstock.store import flush as flush_module
from penstock.store.files.mapped_file_queue import file_name
from penstock.store.flush import TimedCommit

PAGE = 4096
SIZE = 16 * PAGE
HOUR_MS = 3_600_000

Open = Callable[..., MessageStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    opened: list[MessageStore] = []

    def new(name: str = "store", **changes: Any) -> MessageStore:
        defaults = {
            "mapped_file_size_commit_log": SIZE,
            "transient_store_pool_enable": True,
            "transient_store_pool_size": 3,
            "commit_interval_commit_log": HOUR_MS,
        }
        opened.append(MessageStore.open(tmp_path / name, Settings.dev(**{**defaults, **changes})))
        return opened[-1]

    yield new
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Open) -> MessageStore:
    """A store whose pool commits only when the test says so."""
    return open_store()


def commit(store: MessageStore) -> None:
    store.log.queue.commit_all()


def bodies(store: MessageStore) -> list[bytes]:
    found: list[bytes] = []
    while True:
        page = store.get("orders", 0, len(found))
        if page.status is not GetStatus.FOUND:
            return found
        found += [message.body for message in page.messages]


def big(number: int) -> bytes:
    return b"%d" % number + bytes(20_000)


def test_the_free_buffers_are_counted(store: MessageStore) -> None:
    assert store.figures().transient_buffers_free == 3
    store.put(Message("orders", b"x"))
    assert store.figures().transient_buffers_free < 3


def test_a_message_is_seen_only_once_it_is_committed(store: MessageStore, tmp_path: Path) -> None:
    answer = store.put(Message("orders", b"one", keys="k"))
    assert answer.ok
    assert bodies(store) == []
    assert store.query("orders", "k") == []
    assert store.look_up(answer.physical_offset) is None
    assert (tmp_path / "store" / "commitlog" / file_name(0)).read_bytes() == bytes(SIZE)
    commit(store)
    assert bodies(store) == [b"one"]
    assert [record.body for record in store.query("orders", "k")] == [b"one"]
    assert store.look_up(answer.physical_offset).body == b"one"


def test_what_is_not_committed_is_lost_when_the_process_dies_and_only_that(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    store.put(Message("orders", b"one"))
    commit(store)
    store.put(Message("orders", b"two"))
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    again = open_store("copy")
    assert bodies(again) == [b"one"]
    assert again.report.torn_bytes == 0


def test_closing_commits_everything(open_store: Open) -> None:
    store = open_store()
    put = [big(number) for number in range(8)]
    for body in put:
        assert store.put(Message("orders", body)).ok
    store.close()
    again = open_store()
    assert again.report.clean_exit
    assert bodies(again) == put


def test_the_commit_thread_does_it_by_itself(open_store: Open) -> None:
    store = open_store(commit_interval_commit_log=1, commit_commit_log_thorough_interval=1)
    arrived: list[int] = []
    store.on_arrival(lambda topic, queue_id, end, codes: arrived.append(end))
    for _ in range(3):
        store.put(Message("orders", b"x"))
    store.close()  # ends with one last, thorough round of commit and dispatch
    assert arrived[-1] == 3


def test_readers_see_the_log_in_order_over_several_buffered_files(store: MessageStore) -> None:
    put = [big(number) for number in range(9)]  # three to a file: all three buffers are in use
    for body in put:
        assert store.put(Message("orders", body)).ok
    assert store.log.max_offset == 0
    assert bodies(store) == [], "a get does not wait for the commit"
    assert store.log.queue.commit()
    assert bodies(store) == put[:3]
    commit(store)
    assert bodies(store) == put


def test_a_full_file_gives_its_buffer_back(store: MessageStore) -> None:
    pool = store._pool
    assert pool.available == 3
    for number in range(7):
        store.put(Message("orders", big(number)))
    assert pool.available == 0
    commit(store)
    assert pool.available == 2, "the last file is not full"


def test_a_buffers_earlier_content_never_reaches_the_file_it_is_lent_to_next(
    store: MessageStore, tmp_path: Path
) -> None:
    answers = []
    for number in range(40):
        answers.append(store.put(Message("orders", bytes([200 + number]) * (15_000 + 321 * number))))
        commit(store)
    commit(store)
    log = tmp_path / "store" / "commitlog"
    for path in sorted(log.iterdir()):
        here = [answer for answer in answers if answer.physical_offset // SIZE * SIZE == int(path.name)]
        end = here[-1].end_offset - int(path.name)
        filler = 8 if len(list(log.iterdir())) > int(path.name) // SIZE + 1 else 0
        assert path.read_bytes()[end + filler :] == bytes(SIZE - end - filler), path.name


def test_without_a_free_buffer_a_file_is_written_directly(store: MessageStore) -> None:
    put = [big(number) for number in range(14)]  # five files, three buffers
    for body in put:
        assert store.put(Message("orders", body)).ok
    assert bodies(store) == [], "nothing is seen before what was put earlier"
    commit(store)
    assert bodies(store) == put


def test_without_a_free_buffer_puts_are_refused_where_fast_failure_is_asked_for(open_store: Open) -> None:
    store = open_store(fast_fail_if_no_buffer_in_store_pool=True)
    put = [big(number) for number in range(9)]
    for body in put:
        assert store.put(Message("orders", body)).ok
    for _ in range(2):
        refused = store.put(Message("orders", big(9)))
        assert refused.status is PutStatus.CREATE_MAPEDFILE_FAILED
        assert "the transient pool has no free buffer" in refused.reason
    commit(store)
    assert store.put(Message("orders", big(9))).ok
    commit(store)
    assert bodies(store) == [*put, big(9)]


def test_the_pool_is_not_used_where_puts_wait_for_the_disk(open_store: Open) -> None:
    store = open_store(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store.put(Message("orders", b"one"))
    assert bodies(store) == [b"one"]


# -- when the commit thread commits --------------------------------------------------------------------------


def test_a_commit_waits_for_its_pages_and_is_thorough_now_and_then(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [1000.0]
    monkeypatch.setattr(flush_module.time, "monotonic", lambda: seconds[0])
    committer = TimedCommit(Settings(), store.log.queue, lambda: None)
    store.put(Message("orders", bytes(4 * PAGE - 200)))
    committer.work()
    assert store.log.max_offset == 0, "less than four pages"
    answer = store.put(Message("orders", bytes(200)))
    committer.work()
    assert store.log.max_offset == answer.end_offset
    answer = store.put(Message("orders", b"little"))
    seconds[0] += 0.19
    committer.work()
    assert store.log.max_offset == answer.physical_offset
    seconds[0] += 0.01
    committer.work()
    assert store.log.max_offset == answer.end_offset


# -- limits on locked memory ---------------------------------------------------------------------------------

WITHOUT_LOCKED_MEMORY = """
import ctypes, resource, sys

# Root may lock memory whatever the limit says: give that right (CAP_IPC_LOCK, number 14) away first.
libc = ctypes.CDLL(None, use_errno=True)
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capget(header, sets) == 0
sets[0] &= ~(1 << 14)
assert libc.capset(header, sets) == 0
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))

import logging
from penstock.store import Message, MessageStore, Settings

logging.basicConfig(format="%(message)s", stream=sys.stderr)
settings = Settings.load(pairs=sys.argv[2:], base=Settings.dev(mapped_file_size_commit_log=65536))
with MessageStore.open(sys.argv[1], settings) as store:
    for number in range(20):
        assert store.put(Message("orders", bytes(10_000))).ok
with MessageStore.open(sys.argv[1], settings, read_only=True) as store:
    print(store.max_offset("orders", 0))
"""


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["warmMapedFileEnable=true"], "warmed but not locked in memory (see `ulimit -l`)"),
        (
            ["transientStorePoolEnable=true", "transientStorePoolSize=2"],
            "2 of 2 transient buffers could not be locked in memory (see `ulimit -l`); they may be swapped",
        ),
    ],
)
def test_where_memory_may_not_be_locked_one_sentence_says_so_and_everything_works(
    tmp_path: Path, settings: list[str], sentence: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCKED_MEMORY, str(tmp_path / "store"), *settings],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "20\n"
    lines = [line for line in done.stderr.splitlines() if "locked" in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].endswith(sentence)
