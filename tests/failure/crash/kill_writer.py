"""The process that is killed: `kill_writer.py` waits for orders on stdin and forks a writer for each.

An order is a JSON object; the answers are the writer's process id, and its exit status once it has ended. A fork of a
process that has everything imported costs milliseconds, so that many kills fit into a short time.

A writer opens the store and puts from several threads, in all three ways, while another thread reads; after a while it
closes the store and opens it again, until it is killed. What was acknowledged or read is written to files of its
own at once: `A` or `S`, the number, then the place.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pkgutil
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from support.messages import SMALL_STEPS, is_delayed, message, number_of, place_of, place_put

from penstock.errors import StoreFailed
from penstock.store import MessageStore, PutResult, Settings

PRODUCERS = 3
NUMBERS_EACH = 100_000
"""How many numbers belong to one producer of one round."""


class Journal:
    """An append-only file; what was written to it survives the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def write(self, kind: str, number: int, place: tuple[Any, ...]) -> None:
        os.write(self._descriptor, f"{kind} {number} {' '.join(map(str, place))}\n".encode())


class Producer(threading.Thread):
    """Puts its own numbers, one after the other, singly or in batches."""

    def __init__(self, order: dict[str, Any], place: int, store: MessageStore, numbers: Iterator[int]) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._numbers = numbers
        self._pause = order["pause"]
        self._journal = Journal(Path(order["journals"]) / f"{order['round']}-{place}")
        self._chance = random.Random(f"{order['seed']} {place}")
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            number = next(self._numbers)
            way = "single" if is_delayed(number) else self._chance.choice(("single", "async", "many"))
            getattr(self, f"_put_{way}")(number)
            if self._pause:
                time.sleep(self._chance.random() * self._pause)

    def _put_single(self, number: int) -> None:
        self._answered(number, self._store.put(message(number)))

    def _put_async(self, number: int) -> None:
        def answered(done: Future[PutResult]) -> None:
            self._answered(number, done.result())

        self._store.put_async(message(number)).add_done_callback(answered)

    def _put_many(self, number: int) -> None:
        batch = [number]
        while len(batch) < 5 and not is_delayed(batch[-1] + 1):
            batch.append(next(self._numbers))
        answer = self._store.put_many([message(each) for each in batch])
        for each, result in zip(batch, answer.results, strict=False):
            self._answered(each, result)

    def _answered(self, number: int, result: PutResult) -> None:
        if result.ok:
            self._journal.write("A", number, place_put(number, result))


class Consumer(threading.Thread):
    """Reads whatever queue there is, from wherever it likes, and notes what it saw."""

    def __init__(self, order: dict[str, Any], store: MessageStore) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._journal = Journal(Path(order["journals"]) / f"{order['round']}-consumer")
        self._chance = random.Random(f"{order['seed']} consumer")
        self.ended = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(StoreFailed):  # the store was closed while this was reading
            while not self.ended.is_set():
                self._look_around()
                time.sleep(0.001)

    def _look_around(self) -> None:
        for queue in self._store.queues:
            newest = self._store.max_offset(queue.topic, queue.queue_id)
            start = self._chance.randint(queue.min_offset, max(newest - 1, 0))
            for record in self._store.get(queue.topic, queue.queue_id, start).messages:
                self._journal.write("S", number_of(record), place_of(record))


def write(order: dict[str, Any]) -> None:
    """Opens, puts and closes until it is killed."""
    first = order["round"] * PRODUCERS * NUMBERS_EACH
    numbers = [itertools.count(first + place * NUMBERS_EACH) for place in range(PRODUCERS)]
    settings = Settings.dev(**order["settings"])
    chance = random.Random(order["seed"])
    while True:
        store = MessageStore.open(order["path"], settings)
        threads: list[Producer | Consumer] = [Producer(order, place, store, mine) for place, mine in enumerate(numbers)]
        threads.append(Consumer(order, store))
        for thread in threads:
            thread.start()
        time.sleep(chance.random() * order["session"])
        for thread in threads:
            thread.ended.set()
        if chance.random() < 0.5:  # else it is closed while they are at it, and they are refused
            for thread in threads:
                thread.join()
        try:
            store.close()
        finally:
            for thread in threads:
                thread.join()


def recover(order: dict[str, Any]) -> None:
    """Only opens, and ends without closing."""
    MessageStore.open(order["path"], Settings.dev(**order["settings"]))


def fork(order: dict[str, Any]) -> int:
    """The child's process id; the child never returns."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        globals()[order["do"]](order)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def main() -> None:
    for name, size in SMALL_STEPS.items():
        setattr(pkgutil.resolve_name(name.rpartition(".")[0]), name.rpartition(".")[2], size)
    for line in sys.stdin:
        child = fork(json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
