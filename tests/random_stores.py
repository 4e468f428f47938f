"""Random stores for hypothesis: several topics and queues, small files, and something of everything in the messages."""

from __future__ import annotations

import itertools
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import lz4.frame
import zstandard
from hypothesis import strategies as st

from penstock.format.record import Record
from penstock.format.sys_flag import COMPRESSED
from penstock.store import Message, MessageStore, Settings

T0 = 1_600_000_000_000
LOG_SIZE = 4096
UNITS_PER_FILE = 7
SETTINGS = Settings.dev(
    mapped_file_size_commit_log=LOG_SIZE, mapped_file_size_consume_queue=20 * UNITS_PER_FILE, max_message_size=4096
)
TOPICS = ("orders", "Alerts", "%RETRY%group")
ZLIB, LZ4, ZSTD = 0x1, 0x101, 0x201
PACK: dict[int, Callable[[bytes], bytes]] = {
    ZLIB: zlib.compress,
    LZ4: lz4.frame.compress,
    ZSTD: zstandard.ZstdCompressor().compress,
}
UNPACK: dict[int, Callable[[bytes], bytes]] = {
    ZLIB: zlib.decompress,
    LZ4: lz4.frame.decompress,
    ZSTD: zstandard.ZstdDecompressor().decompress,
}
TRANSACTIONS = (0, 0, 0, 0x4, 0x8, 0xC)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Plain, compressed, prepared, committed or rolled back; with or without tags, keys and properties."""
    body = draw(st.binary(max_size=30)) * draw(st.sampled_from((0, 1, 1, 5, 30)))
    codec = draw(st.sampled_from((0, 0, ZLIB, LZ4, ZSTD)))
    return Message(
        draw(st.sampled_from(TOPICS)),
        PACK[codec](body) if codec else body,
        tags=draw(st.sampled_from(("", "Aa", "BB", "red"))),
        keys=draw(st.lists(st.sampled_from(("k1", "k2", "ключ", "Aa", "BB")), max_size=3, unique=True)),
        properties=draw(st.sampled_from(({}, {"UNIQ_KEY": "id7"}, {"a": "1", "b": "ü"}))),
        queue_id=draw(st.integers(0, 2)),
        sys_flag=codec | draw(st.sampled_from(TRANSACTIONS)),
        born_host=draw(st.sampled_from(("127.0.0.1:9", "[::1]:9"))),
        store_host=draw(st.sampled_from(("", "[fe80::1]:10911"))),
        flag=draw(st.integers(-5, 5)),
        reconsume_times=draw(st.integers(0, 3)),
    )


class Made(NamedTuple):
    """A store to make: messages or batches, one after the other, and how many log files retention takes."""

    puts: list[list[Message]]
    deleted: int

    def fill(self, store: MessageStore) -> None:
        for put in self.puts:
            answer = store.put(put[0]) if len(put) == 1 else store.put_many(put)
            assert answer.ok, answer.reason

    def make(self, folder: Path) -> None:
        """Fills it, closes it, and deletes the first log files, never the last."""
        with opened(folder) as store:
            self.fill(store)
        files = sorted((folder / "commitlog").iterdir())
        for path in files[: min(self.deleted, len(files) - 1)]:
            path.unlink()


STORES = st.builds(
    Made,
    st.lists(
        messages().map(lambda each: [each])
        | st.lists(messages().filter(lambda each: not each.sys_flag & 0xC), min_size=2, max_size=5),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 2),
)


@contextmanager
def opened(folder: Path, *, read_only: bool = False) -> Iterator[MessageStore]:
    """The store with a clock that goes on by a second for each message."""
    ticks = itertools.count(T0, 1000)
    with MessageStore.open(folder, SETTINGS, read_only=read_only, clock=lambda: next(ticks)) as store:
        yield store


@contextmanager
def empty_folder(path: Path) -> Iterator[Path]:
    """A folder that is there for one example."""
    path.mkdir()
    yield path
    shutil.rmtree(path)


def unpacked(record: Record) -> bytes:
    """The body as its sender had it."""
    codec = record.sys_flag & 0x301
    return UNPACK[codec](record.body) if record.sys_flag & COMPRESSED else record.body
