"""Requests of the load, encoded before the clock runs.

A `Ring` is one block of frames that lie one behind the other, so that any number of them goes out as a slice. The
opaques differ within a ring, which is longer than any window: no two requests under way have the same one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import accumulate

from penstock.format.batch import encode_batch_body
from penstock.protocol import fields
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.frame import encode
from penstock.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullMessage
from penstock.protocol.headers.send import SendMessageV2

QUEUES = 4
"""Of a topic that is made by the first send, on both sides."""
PAGE = 32
FIRST_OPAQUE = 100_000
_GROUP = "bench"
_HOLD_MS = 15_000


class Ring:
    """Frames, to be sent round and round."""

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


def send_frame(topic: str, queue_id: int, body: bytes, opaque: int, *, batch: bool = False) -> bytes:
    """A send as the Java client writes it: V2 names, the properties of a message with one key and one tag."""
    properties = "" if batch else message_properties(opaque)
    header = SendMessageV2(
        producer_group=_GROUP,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=time.time_ns() // 1_000_000,
        flag=0,
        properties=properties,
        batch=batch,
    )
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return encode(Command(code, fields.write(header), body, opaque))


def message_properties(number: int) -> str:
    return f"KEYS\x01order-{number}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01tag-a\x02"


def sends(topic: str, body_size: int, count: int) -> Ring:
    body = bytes(body_size)
    return Ring(send_frame(topic, number % QUEUES, body, FIRST_OPAQUE + number) for number in range(count))


def batches(topic: str, body_size: int, messages: int, count: int) -> Ring:
    """Each with `messages` of them."""
    return Ring(
        send_frame(
            topic,
            number % QUEUES,
            encode_batch_body(
                (0, bytes(body_size), message_properties(FIRST_OPAQUE + number * messages + each).encode())
                for each in range(messages)
            ),
            FIRST_OPAQUE + number,
            batch=True,
        )
        for number in range(count)
    )


def pull_frame(topic: str, queue_id: int, offset: int, opaque: int, *, wait: bool = False) -> bytes:
    header = PullMessage(
        consumer_group=_GROUP,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=PAGE,
        sys_flag=SUBSCRIPTION | (SUSPEND if wait else 0),
        commit_offset=0,
        suspend_timeout_millis=_HOLD_MS,
        sub_version=0,
        subscription="*",
    )
    return encode(Command(RequestCode.PULL_MESSAGE, fields.write(header), b"", opaque))


def pulls(topic: str, per_queue: int) -> Ring:
    """All of a topic that has `per_queue` messages in each queue, page by page, the queues in turns."""
    places = [(queue_id, offset) for offset in range(0, per_queue, PAGE) for queue_id in range(QUEUES)]
    return Ring(
        pull_frame(topic, queue_id, offset, FIRST_OPAQUE + number) for number, (queue_id, offset) in enumerate(places)
    )
