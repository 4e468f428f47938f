"""What all scenarios stand on: the stores of both sides, with the same settings, opened and removed around a round.

The settings are RocketMQ's defaults but for the size of the index, which is smaller, and for the time after which a
put is refused because the disk is slow: here a slow disk shall show as time. A store that is written to is new in each
round. Stores that are only read are filled once, by their own side, and opened anew for each round.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.peers import Peer

from bench.harness import BenchFailed
from bench.store.sizes import Sizes
from penstock.store import Message, MessageStore, Settings

KILO = 1024
HUNDRED = 100
SIZE_NAMES = {KILO: "1 KB", HUNDRED: "100 B"}
SIZE_IDS = {KILO: "1k", HUNDRED: "100b"}

TOPIC = "bench"
PREFIX = "order_"
TAG = "TagA"
QUEUES = 4


def body_of(size: int) -> bytes:
    return bytes(size)


def check(failed: int, count: int) -> None:
    """A refused put is quick and proves nothing. Raises BenchFailed."""
    if failed:
        raise BenchFailed(f"{failed} of {count} puts were refused")


def put_all(store: MessageStore, body: bytes, count: int, threads: int = 1) -> float:
    """Puts messages, each thread waiting for every answer; returns the seconds it took."""
    failed = [0] * threads

    def put_some(thread: int) -> None:
        refused = 0
        for number in range(thread, count, threads):
            message = Message(TOPIC, body, keys=(f"{PREFIX}{number}",), tags=TAG, queue_id=number % QUEUES)
            if not store.put(message).ok:
                refused += 1
        failed[thread] = refused

    workers = [threading.Thread(target=put_some, args=(number,), daemon=True) for number in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - started
    check(sum(failed), count)
    return took


class Ground:
    """The folder of a run, and the stores in it."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self.sizes = sizes
        self._filled: dict[tuple[str, int], Path] = {}
        self._log_ends: dict[int, int] = {}
        self._made = 0

    def settings(self, *, sync: bool = False) -> dict[str, Any]:
        """By RocketMQ's names, for both sides."""
        return {
            "mappedFileSizeCommitLog": self.sizes.log_file,
            "maxHashSlotNum": self.sizes.index.slots,
            "maxIndexNum": self.sizes.index.items,
            "osPageCacheBusyTimeOutMills": 60_000,
            "flushDiskType": "SYNC_FLUSH" if sync else "ASYNC_FLUSH",
        }

    def our_settings(self, *, sync: bool = False) -> Settings:
        return Settings.load(pairs=[f"{name}={value}" for name, value in self.settings(sync=sync).items()])

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new folder, for one round."""
        self._made += 1
        folder = self._folder / f"scratch-{self._made}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # -- stores to write to ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def fresh(self, *, sync: bool = False) -> Iterator[MessageStore]:
        """A new store of ours."""
        with self.scratch() as folder, MessageStore.open(folder, self.our_settings(sync=sync)) as store:
            yield store

    @contextlib.contextmanager
    def fresh_java(self, peer: Peer, *, sync: bool = False) -> Iterator[None]:
        """A new store of Java's, open in the peer."""
        with self.scratch() as folder, self._open_java(peer, folder, sync=sync):
            yield

    # -- stores to read --------------------------------------------------------------------------------------

    def filled(self, size: int) -> Path:
        """A store of ours with all messages of a size, closed."""
        path = self._filled.get(("ours", size))
        if path is None:
            path = self._filled["ours", size] = self._folder / f"ours-{size}"
            with MessageStore.open(path, self.our_settings()) as store:
                put_all(store, body_of(size), self.sizes.messages[size])
                self._log_ends[size] = store.log.max_offset
        return path

    def filled_log(self, size: int) -> tuple[Path, int]:
        """The log file of that store, and where the log ends in it."""
        return self.filled(size) / "commitlog" / f"{0:020d}", self._log_ends[size]

    def filled_java(self, peer: Peer, size: int) -> Path:
        """The same of Java's."""
        path = self._filled.get(("java", size))
        if path is None:
            path = self._filled["java", size] = self._folder / f"java-{size}"
            with self._open_java(peer, path):
                self.ask_put(peer, size, self.sizes.messages[size])
        return path

    @contextlib.contextmanager
    def opened(self, size: int) -> Iterator[MessageStore]:
        with MessageStore.open(self.filled(size), self.our_settings()) as store:
            yield store

    @contextlib.contextmanager
    def opened_java(self, peer: Peer, size: int) -> Iterator[None]:
        with self._open_java(peer, self.filled_java(peer, size)):
            yield

    # -- Java ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open_java(self, peer: Peer, folder: Path, *, sync: bool = False) -> Iterator[None]:
        peer.open(folder, self.settings(sync=sync))
        yield
        peer.ask("close")

    def ask(self, peer: Peer, what: str, **arguments: Any) -> dict[str, Any]:
        """Has the peer do one piece of work on the store it has open."""
        answer: dict[str, Any] = peer.ask("bench", what=what, topic=TOPIC, prefix=PREFIX, **arguments)
        check(answer.get("failed", 0), arguments.get("count", 0))
        return answer

    def ask_put(self, peer: Peer, size: int, count: int, threads: int = 1, **more: Any) -> dict[str, Any]:
        return self.ask(peer, "put", size=size, count=count, threads=threads, **more)

    def warm_up(self, peer: Peer) -> None:
        """Has Java do a little of everything before anything counts."""
        count = self.sizes.warm_up
        with self.fresh_java(peer):
            self.ask_put(peer, HUNDRED, count)
            self.ask(peer, "batch", size=HUNDRED, count=count, batch=32)
            for decode in (False, True):
                self.ask(peer, "get", decode=decode, most=count)
            self.ask(peer, "query", count=count // 10, step=1)
