"""The load generator: a process of its own on one core, the same for both brokers.

    python -m bench.broker.generator '{"do": "send", "port": 10911, "topic": "t", ...}'

prints what it did as one line of JSON. Raw sockets and frames that are ready before the clock runs, so that it is not
what is measured; `bench broker --only generator` shows what it can do at most.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from bench.broker.frames import QUEUES, batches, pulls, sends
from bench.broker.paced import open_loop
from bench.broker.window import BadReply, closed_loop

Answer = dict[str, float]
_RING = 1024
_TIMEOUT_S = 60.0


def send(job: dict[str, Any]) -> Answer:
    """Single messages, `window` at a time."""
    ring = sends(job["topic"], job["body"], _RING)
    with connected(job) as broker:
        return closed_loop(broker, ring, job["count"], job["window"])


def batch(job: dict[str, Any]) -> Answer:
    """Batches of `messages`."""
    ring = batches(job["topic"], job["body"], job["messages"], 64)
    with connected(job) as broker:
        return closed_loop(broker, ring, job["count"] // job["messages"], job["window"])


def pull(job: dict[str, Any]) -> Answer:
    """Every message of a topic, `passes` times."""
    ring = pulls(job["topic"], job["count"] // QUEUES)
    with connected(job) as broker:
        return closed_loop(broker, ring, len(ring) * job["passes"], job["window"])


def paced(job: dict[str, Any]) -> Answer:
    """Both ends at a fixed rate."""
    with connected(job) as producer, connected(job) as consumer:
        return open_loop(
            producer, consumer, job["topic"], body_size=job["body"], rate=job["rate"], seconds=job["seconds"]
        )


def connected(job: dict[str, Any]) -> socket.socket:
    broker = socket.create_connection(("127.0.0.1", job["port"]), _TIMEOUT_S)
    broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return broker


JOBS: dict[str, Callable[[dict[str, Any]], Answer]] = {"send": send, "batch": batch, "pull": pull, "paced": paced}


def main(order: str) -> int:
    job = json.loads(order)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    gc.disable()
    try:
        answer = JOBS[job["do"]](job)
    except (BadReply, OSError) as error:
        print(json.dumps({"failed": str(error)}))
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
