"""The load generator: a process of its own on one core, the same for all brokers. It needs nothing of Penstock.

    python -m bench.load '{"do": "send", "port": 10911, "topic": "t", ...}'

prints what it did as one line of JSON. It uses raw sockets, and frames that are encoded before the clock runs, so that
it is not what is measured; `bench broker --only generator` shows its own limit, with the server of `{"do": "sink"}`
that only answers.

The closed loop keeps a number of requests in flight. It splits replies by their lengths and reads the code from the
header's first bytes, where both brokers write it; one reply in a thousand is decoded. The open loop sends at a fixed
rate that late answers do not slow down, so a pause of the broker is seen by all messages that fall into it.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, product
from pathlib import Path
from typing import Any

from bench.workspace import BenchFailed

QUEUES = 4
"""Queues of a topic that the first send creates, on both sides."""
PAGE = 32
FIRST_OPAQUE = 100_000
Answer = dict[str, float]
_SEND, _PULL, _SEND_BATCH = 310, 11, 320
_NOTHING_YET = (19, 20, 21)
"""Codes of a pull that has to be repeated: not found, retry at once, offset moved (a queue's first unit is missing)."""
_GROUP = "bench"
_SUBSCRIPTION, _SUSPEND = 4, 2
_HOLD_MS = 15_000
_RING = 1024
_TIMEOUT_S = 60.0
_MAX_SECONDS = 300
_DRAIN_S = 10.0
_PREFIX = struct.Struct(">II")
_SUCCESS = b'{"code":0,'
_CHECK_EVERY = 1000
_READ = 1 << 20
_STAMP = struct.Struct(">Q")
_SIZE = struct.Struct(">I")
_BODY_AT = 88
"""Offset of the body in a record with IPv4 hosts."""


class BadReply(Exception):
    """An answer that is not the expected one."""


# -- frames --------------------------------------------------------------------------------------------------


def frame(code: int, fields: dict[str, object], body: bytes, opaque: int, flag: int = 0) -> bytes:
    """A request of RocketMQ's protocol with a JSON header."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
    head = {"code": code, "extFields": texts, "flag": flag, "language": "PYTHON", "opaque": opaque, "version": 409}
    header = json.dumps(head, separators=(",", ":")).encode()
    return _PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body


def send_frame(topic: str, queue_id: int, body: bytes, opaque: int, *, batch: bool = False) -> bytes:
    """A send with the short names of the Java client; a single message has one key and one tag."""
    properties = "" if batch else message_properties(opaque)
    now = time.time_ns() // 1_000_000
    fields = {"a": _GROUP, "b": topic, "c": "TBW102", "d": QUEUES, "e": queue_id, "f": 0, "g": now, "h": 0}
    fields |= {"i": properties, "j": 0, "k": False, "m": batch}
    return frame(_SEND_BATCH if batch else _SEND, fields, body, opaque)


def message_properties(number: int) -> str:
    return f"KEYS\x01order-{number}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01tag-a\x02"


def batch_body(body_size: int, first: int, count: int) -> bytes:
    """The body of one batch: messages with keys of their own."""
    pieces = []
    for number in range(first, first + count):
        properties = message_properties(number).encode()
        size = 22 + body_size + len(properties)
        pieces.append(struct.pack(">IIIII", size, 0, 0, 0, body_size) + bytes(body_size))
        pieces.append(struct.pack(">H", len(properties)) + properties)
    return b"".join(pieces)


def pull_frame(topic: str, queue_id: int, offset: int, opaque: int, *, wait: bool = False) -> bytes:
    place = {"consumerGroup": _GROUP, "topic": topic, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": PAGE}
    how = {"sysFlag": _SUBSCRIPTION | (_SUSPEND if wait else 0), "commitOffset": 0, "suspendTimeoutMillis": _HOLD_MS}
    return frame(_PULL, {**place, **how, "subVersion": 0, "subscription": "*"}, b"", opaque)


def reply_frame(length: int) -> bytes:
    """A successful reply to a send, with a body of `length`."""
    fields = {"msgId": "7F000001" + "0" * 24, "queueId": 0, "queueOffset": 100_000, "MSG_REGION": "DefaultRegion"}
    return frame(0, {**fields, "TRACE_ON": True}, bytes(length), FIRST_OPAQUE, flag=1)


class Ring:
    """Frames in one block of memory, sent round and round as slices.

    A ring is longer than any window and its opaques differ, so no two requests in flight share one.
    """

    def __init__(self, frames: Iterable[bytes]) -> None:
        pieces = list(frames)
        self.block = memoryview(b"".join(pieces))
        self._ends = [0, *accumulate(map(len, pieces))]
        self._next = 0

    def __len__(self) -> int:
        return len(self._ends) - 1

    def take(self, count: int) -> list[memoryview]:
        """The next `count` frames, in one slice or, at the ring's end, in two."""
        begin, size = self._next, len(self)
        end = min(begin + count, size)
        slices = [self.block[self._ends[begin] : self._ends[end]]]
        self._next = end % size
        if (rest := begin + count - end) > 0:
            slices += self.take(rest)
        return slices


def sends(topic: str, body_size: int, count: int, topics: int = 0) -> Ring:
    """Sends to a topic, or in turns to as many topics as `topics` says, named by number."""
    body = bytes(body_size)
    names = [f"{topic}-{number}" for number in range(topics)] or [topic]
    return Ring(
        send_frame(names[number % len(names)], number // len(names) % QUEUES, body, FIRST_OPAQUE + number)
        for number in range(count)
    )


def batches(topic: str, body_size: int, messages: int, count: int) -> Ring:
    """`count` batches with `messages` messages each."""
    return Ring(
        send_frame(
            topic,
            number % QUEUES,
            batch_body(body_size, FIRST_OPAQUE + number * messages, messages),
            FIRST_OPAQUE + number,
            batch=True,
        )
        for number in range(count)
    )


def pulls(topic: str, per_queue: int, topics: int = 0) -> Ring:
    """All of a topic with `per_queue` messages in each queue, page by page, the queues in turns.

    With `topics` all of as many topics, named by number, one after the other.
    """
    names = [f"{topic}-{number}" for number in range(topics)] or [topic]
    pages = [(queue_id, offset) for offset in range(0, per_queue, PAGE) for queue_id in range(QUEUES)]
    return Ring(
        pull_frame(name, queue_id, offset, FIRST_OPAQUE + number)
        for number, (name, (queue_id, offset)) in enumerate(product(names, pages))
    )


def split(data: bytearray) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Takes whole frames off the front of `data`: their headers and bodies."""
    while len(data) >= 8:
        length, header = _PREFIX.unpack_from(data)
        if len(data) < 4 + length:
            return
        body_at = 8 + (header & 0xFFFFFF)
        yield json.loads(data[8:body_at]), bytes(data[body_at : 4 + length])
        del data[: 4 + length]


def check(reply: bytes) -> None:
    """Raises BadReply unless this is one successful reply."""
    ((head, _),) = split(bytearray(reply))
    if not head["flag"] & 1 or head["code"] != 0:
        raise BadReply(f"the broker answered {head['code']}: {head.get('remark')}")


# -- loops ---------------------------------------------------------------------------------------------------


def closed_loop(connection: socket.socket, ring: Ring, total: int, window: int) -> Answer:
    """Sends `total` frames of a ring, `window` in flight; returns the seconds and the bytes of the replies' bodies."""
    if len(ring) < window:
        raise ValueError("the ring is shorter than the window")
    buffer = bytearray(4 * _READ)
    view = memoryview(buffer)
    unpack, header_at = _PREFIX.unpack_from, _PREFIX.size
    code_end = header_at + len(_SUCCESS)
    held = done = body_bytes = 0
    started = time.perf_counter()
    sent = min(window, total)
    _send(connection, ring, sent)
    while done < total:
        got = connection.recv_into(view[held:], _READ)
        if not got:
            raise BadReply(f"the broker closed the connection after {done} replies")
        end = held + got
        at, before = 0, done
        while end - at >= code_end:
            length, header = unpack(buffer, at)
            stop = at + 4 + length
            if stop > end:
                if stop - at > len(buffer) - _READ:
                    raise BadReply(f"a reply has {length} bytes")
                break
            if buffer[at + header_at : at + code_end] != _SUCCESS or done % _CHECK_EVERY == 0:
                check(bytes(view[at:stop]))
            body_bytes += length - 4 - (header & 0xFFFFFF)
            done += 1
            at = stop
        held = end - at
        if held and at:
            buffer[:held] = buffer[at:end]
        more = min(done - before, total - sent)
        if more > 0:
            _send(connection, ring, more)
            sent += more
    return {"seconds": time.perf_counter() - started, "body_bytes": body_bytes, "replies": done}


def _send(connection: socket.socket, ring: Ring, count: int) -> None:
    for piece in ring.take(count):
        connection.sendall(piece)


def open_loop(
    producer: socket.socket, consumer: socket.socket, topic: str, *, body_size: int, rate: int, seconds: float
) -> Answer:
    """Sends at a fixed rate while a consumer waits; returns latencies in milliseconds by OpenMessaging's names.

    A message carries the time at which it was sent. One thread does both sides; `sendLateness99pct` is its own delay.
    """
    total = int(rate * seconds)
    frames = [bytearray(send_frame(topic, queue, bytes(body_size), FIRST_OPAQUE)) for queue in range(QUEUES)]
    opaque_at = [each.rindex(b"%d" % FIRST_OPAQUE, 0, len(each) - body_size) for each in frames]
    read = {producer: bytearray(), consumer: bytearray()}
    offsets = [1, *[0] * (QUEUES - 1)]
    closed_loop(producer, Ring([send_frame(topic, 0, bytes(body_size), 1)]), 1, 1)  # creates the topic
    for queue, offset in enumerate(offsets):
        consumer.sendall(pull_frame(topic, queue, offset, queue, wait=True))
    sent_at: list[int] = []
    lateness: list[int] = []
    published: list[int] = []
    received: list[int] = []
    now_ns = time.perf_counter_ns
    started = now_ns()
    gap = 1_000_000_000 // rate
    deadline = started + int((seconds + _DRAIN_S) * 1e9)
    while len(published) < total or len(received) < total:
        now = now_ns()
        if now > deadline:
            raise BadReply(f"only {len(published)} of {total} were acknowledged, and {len(received)} received")
        number = len(sent_at)
        due = started + number * gap
        if number < total and due <= now:
            queue = number % QUEUES
            request = frames[queue]
            request[opaque_at[queue] : opaque_at[queue] + 6] = b"%d" % (FIRST_OPAQUE + number)
            sent = now_ns()
            request[-body_size : 8 - body_size] = _STAMP.pack(sent)
            producer.sendall(request)
            sent_at.append(sent)
            lateness.append(sent - due)
            wait = 0.0
        else:
            wait = (due - now) / 1e9 if number < total else 1.0
        for ready in select.select([producer, consumer], [], [], wait)[0]:
            data = ready.recv(1 << 20)
            arrived = now_ns()
            if not data:
                raise BadReply("the broker closed a connection")
            read[ready] += data
            for head, body in split(read[ready]):
                code, opaque = head["code"], head["opaque"]
                if code != 0 and (ready is producer or code not in _NOTHING_YET):
                    raise BadReply(f"the broker answered {code}: {head.get('remark')}")
                if ready is producer:
                    published.append(arrived - sent_at[opaque - FIRST_OPAQUE])
                else:
                    stamps = stamps_of(body)
                    received += [arrived - stamp for stamp in stamps]
                    offsets[opaque] += len(stamps)
                    consumer.sendall(pull_frame(topic, opaque, offsets[opaque], opaque, wait=True))
    took = (now_ns() - started) / 1e9
    return {
        "publishRate": total / took,
        "consumeRate": len(received) / took,
        **percentiles("publishLatency", published),
        **percentiles("endToEndLatency", received),
        "sendLateness99pct": percentiles("", lateness)["99pct"],
    }


def stamps_of(records: bytes) -> list[int]:
    """The times that the messages of a page carry."""
    at, found = 0, []
    while at < len(records):
        found.append(_STAMP.unpack_from(records, at + _BODY_AT)[0])
        at += _SIZE.unpack_from(records, at)[0]
    return found


def percentiles(name: str, nanoseconds: list[int]) -> Answer:
    """In milliseconds."""
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1
    parts = {"50pct": 0.5, "99pct": 0.99, "999pct": 0.999}
    return {f"{name}{text}": ordered[round(last * part)] / 1e6 for text, part in parts.items()}


# -- jobs ----------------------------------------------------------------------------------------------------


def connected(job: dict[str, Any]) -> socket.socket:
    broker = socket.create_connection(("127.0.0.1", job["port"]), _TIMEOUT_S)
    broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return broker


def send(job: dict[str, Any]) -> Answer:
    """Single messages, `window` in flight."""
    ring = sends(job["topic"], job["body"], _RING, job.get("topics", 0))
    with connected(job) as broker:
        return closed_loop(broker, ring, job["count"], job["window"])


def batch(job: dict[str, Any]) -> Answer:
    """Batches of `messages`."""
    ring = batches(job["topic"], job["body"], job["messages"], 64)
    with connected(job) as broker:
        return closed_loop(broker, ring, job["count"] // job["messages"], job["window"])


def pull(job: dict[str, Any]) -> Answer:
    """Every message of a topic, or of `topics` topics with `count` messages each, `passes` times."""
    ring = pulls(job["topic"], job["count"] // QUEUES, job.get("topics", 0))
    with connected(job) as broker:
        return closed_loop(broker, ring, len(ring) * job["passes"], job["window"])


def paced(job: dict[str, Any]) -> Answer:
    """Both ends at a fixed rate."""
    with connected(job) as producer, connected(job) as consumer:
        return open_loop(
            producer, consumer, job["topic"], body_size=job["body"], rate=job["rate"], seconds=job["seconds"]
        )


def sink(job: dict[str, Any]) -> Answer:
    """A server that only answers: prints its port and serves one connection. It counts bytes, not frames."""
    reply = reply_frame(job["reply"])
    replies = memoryview(reply * _RING)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(1 << 20)
        held = 0
        while got := connection.recv_into(buffer):
            count, held = divmod(held + got, job["request"])
            while count:
                now = min(count, _RING)
                connection.sendall(replies[: now * len(reply)])
                count -= now
    return {}


JOBS: dict[str, Callable[[dict[str, Any]], Answer]] = {
    "send": send,
    "batch": batch,
    "pull": pull,
    "paced": paced,
    "sink": sink,
}


def generate(**job: Any) -> Answer:
    """Runs a job in a new process. Raises BenchFailed with what went wrong."""
    order = [sys.executable, "-m", "bench.load", json.dumps(job)]
    place = Path(__file__).parent.parent
    try:
        done = subprocess.run(order, cwd=place, capture_output=True, text=True, timeout=_MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"the load did not end within {_MAX_SECONDS} s") from None
    if not done.stdout.strip():
        raise BenchFailed(f"the load generator failed: {done.stderr.strip().splitlines()[-1:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "failed" in answer:
        raise BenchFailed(str(answer["failed"]))
    return answer


def main(order: str) -> int:
    job = json.loads(order)
    if job["do"] != "sink":
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
