"""An open loop: messages at a fixed rate, whatever the broker does, and a consumer that waits for them.

A message carries the time at which it was sent; its latency ends when the consumer has read it. Sends are not held back
by late answers, so a broker that pauses is seen to pause by all that fall into it. One thread does both sides; its own
lateness is told as well (`sendLateness99pct`).
"""

from __future__ import annotations

import select
import socket
import struct
import time

from bench.broker.frames import FIRST_OPAQUE, QUEUES, Ring, pull_frame, send_frame
from bench.broker.window import BadReply, closed_loop
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.frame import FrameReader

_STAMP = struct.Struct(">Q")
_SIZE = struct.Struct(">I")
_BODY_AT = 88
"""Where a record's body begins, with IPv4 hosts."""
_NOTHING_YET = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
"""Answers to a pull that is to be repeated; the last one where a queue's first message is not dispatched yet."""
_LAST_WORD_S = 10.0
"""How long the last messages may take."""


def open_loop(
    producer: socket.socket, consumer: socket.socket, topic: str, *, body_size: int, rate: int, seconds: float
) -> dict[str, float]:
    """Latencies in milliseconds, by OpenMessaging Benchmark's names."""
    total = int(rate * seconds)
    frames = [bytearray(send_frame(topic, queue, bytes(body_size), FIRST_OPAQUE)) for queue in range(QUEUES)]
    opaque_at = [frame.rindex(b"%d" % FIRST_OPAQUE, 0, len(frame) - body_size) for frame in frames]
    readers = {producer: FrameReader(), consumer: FrameReader()}
    offsets = [1, *[0] * (QUEUES - 1)]
    closed_loop(producer, Ring([send_frame(topic, 0, bytes(body_size), 1)]), 1, 1)  # so that there is such a topic
    for queue, offset in enumerate(offsets):
        consumer.sendall(pull_frame(topic, queue, offset, queue, wait=True))
    sent_at: list[int] = []
    lateness: list[int] = []
    published: list[int] = []
    received: list[int] = []
    now_ns = time.perf_counter_ns
    started = now_ns()
    gap = 1_000_000_000 // rate
    deadline = started + int((seconds + _LAST_WORD_S) * 1e9)
    while len(published) < total or len(received) < total:
        now = now_ns()
        if now > deadline:
            raise BadReply(f"only {len(published)} of {total} were acknowledged, and {len(received)} received")
        number = len(sent_at)
        due = started + number * gap
        if number < total and due <= now:
            frame, queue = frames[number % QUEUES], number % QUEUES
            frame[opaque_at[queue] : opaque_at[queue] + 6] = b"%d" % (FIRST_OPAQUE + number)
            sent = now_ns()
            frame[-body_size : 8 - body_size] = _STAMP.pack(sent)
            producer.sendall(frame)
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
            for reply in readers[ready].feed(data):
                if reply.code != 0 and (ready is producer or reply.code not in _NOTHING_YET):
                    raise BadReply(f"the broker answered {reply.code}: {reply.remark}")
                if ready is producer:
                    published.append(arrived - sent_at[reply.opaque - FIRST_OPAQUE])
                else:
                    stamps = stamps_of(reply)
                    received += [arrived - stamp for stamp in stamps]
                    offsets[reply.opaque] += len(stamps)
                    queue = reply.opaque
                    consumer.sendall(pull_frame(topic, queue, offsets[queue], queue, wait=True))
    took = (now_ns() - started) / 1e9
    return {
        "publishRate": total / took,
        "consumeRate": len(received) / took,
        **percentiles("publishLatency", published),
        **percentiles("endToEndLatency", received),
        "sendLateness99pct": percentiles("", lateness)["99pct"],
    }


def stamps_of(reply: Command) -> list[int]:
    """The times that the messages of a page carry."""
    data, at, found = reply.body, 0, []
    while at < len(data):
        found.append(_STAMP.unpack_from(data, at + _BODY_AT)[0])
        at += _SIZE.unpack_from(data, at)[0]
    return found


def percentiles(name: str, nanoseconds: list[int]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1
    parts = {"50pct": 0.5, "99pct": 0.99, "999pct": 0.999}
    return {f"{name}{text}": ordered[round(last * part)] / 1e6 for text, part in parts.items()}
