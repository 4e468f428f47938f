"""One turn of `bench compare` with the embedded store.

`python -P bench/turn.py ORDER` runs it, with a tree's `src` on PYTHONPATH. It uses the public names of `penstock.store`
only, and nothing of `bench`, so that it runs on trees whose inner modules have other names. It prints CPU seconds for
one message as one line of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import penstock
from penstock.store import Message, MessageStore, Settings

TOPIC, QUEUES, PAGE = "bench", 4, 32
SLICES = 16


def put_all(store: MessageStore, body: bytes, first: int, count: int) -> None:
    for number in range(first, first + count):
        message = Message(TOPIC, body, keys=(f"order_{number}",), tags="TagA", queue_id=number % QUEUES)
        if not store.put(message).ok:
            raise SystemExit(f"put {number} was refused")


def get_all(store: MessageStore) -> int:
    messages = 0
    for queue_id in range(QUEUES):
        offset = 0
        while (page := store.get(TOPIC, queue_id, offset, PAGE)).count:
            messages += page.count
            offset = page.next_begin_offset
    return messages


def turn(order: dict[str, Any]) -> dict[str, Any]:
    """Puts messages into a new store, slice by slice, each until dispatch is done; then reads all of them in passes.

    Figures are those of the cheapest slice or pass. A slice and a pass before them warm up.
    """
    body, count, passes = bytes(order["body"]), order["count"] // SLICES, order["passes"]
    puts, callers, gets, got = [], [], [], 0
    with MessageStore.open(Path(order["folder"]), Settings.load(pairs=order["settings"])) as store:
        put_all(store, body, 0, count)
        store.catch_up()
        gc.collect()
        for number in range(SLICES):
            process, caller = time.process_time(), time.thread_time()
            put_all(store, body, (number + 1) * count, count)
            callers.append((time.thread_time() - caller) / count)
            store.catch_up()
            puts.append((time.process_time() - process) / count)
        get_all(store)
        gc.collect()
        for _ in range(passes):
            process = time.process_time()
            got = get_all(store)
            gets.append((time.process_time() - process) / got)
    figures = {"put": min(puts), "put-caller": min(callers), "get": min(gets)}
    return {"from": penstock.__file__, "figures": figures, "got": got, "cpu": sum(puts) * count + sum(gets) * got}


if __name__ == "__main__":
    print(json.dumps(turn(json.loads(sys.argv[1]))))
