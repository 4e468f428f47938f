"""A range of a queue, pulled from its broker: whole records as they came, and what is wrong with the rest.

Nothing is there twice and nothing is left out unsaid: a message comes as a row, as a flaw, or is lost. Every record is
checked as a store does: its shape, its body's CRC, and that it is the message of this topic, queue and offset. Brokers
differ in what they do with a damaged record: Java's hand it out as it is, ours pass over it; both become flaws. Where
tags are left to the broker it cannot be told what it passed over. Belongs to the link's loop.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

import numpy as np

from penstock.client.fetch import PullStatus
from penstock.errors import NoAnswer
from penstock.format import kernels
from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.kernels import Longs, Rows
from penstock.format.rows import ROW, Reason
from penstock.pipeline.cluster_link import ClusterLink
from penstock.pipeline.places import Flaw
from penstock.pipeline.ranges import Queue, Span
from penstock.pipeline.store_task import gone
from penstock.protocol.subscription import EVERYTHING

log = logging.getLogger("penstock.pipeline")

_MOST_MESSAGES: Final = 1024
"""Of one pull; brokers have limits of their own, 32 unless they are told otherwise."""
_NO_ROWS: Final = np.empty(0, ROW)


class Piece(NamedTuple):
    """Some messages of one queue: their records without anything between them, and a row for each."""

    queue: Queue
    records: memoryview
    rows: Rows
    flaws: tuple[Flaw, ...] = ()


class RangePuller:
    """Pulls ranges. `tags` are left to the broker; whether data loss is an error is said once for all ranges."""

    def __init__(self, link: ClusterLink, *, tags: str = EVERYTHING, fail_on_data_loss: bool = True) -> None:
        self._link = link
        self._tags = tags
        self._fail_on_data_loss = fail_on_data_loss
        self._told: set[Span] = set()

    async def pieces(self, span: Span, start: int, stop: int) -> AsyncGenerator[Piece, None]:
        """The part of a span from `start` to `stop`, in order. Raises DataLost, unless that is allowed."""
        queue, at, careful_until = span.queue, start, start
        while at < stop:
            one_by_one = at < careful_until
            page = await self._link.pull(queue, at, 1 if one_by_one else min(stop - at, _MOST_MESSAGES), self._tags)
            if page.status in (PullStatus.OFFSET_ILLEGAL, PullStatus.NO_NEW_MSG) and page.next_offset <= at:
                self._lose(span, at, span.stop)  # the queue ends before the range does
                return
            if page.status is PullStatus.OFFSET_ILLEGAL:
                following = page.min_offset if page.min_offset > at else span.stop
                self._lose(span, at, min(following, span.stop))
                at = following
                continue
            if page.next_offset <= at:
                raise NoAnswer(
                    f"broker {queue.broker} answers a pull of topic {queue.topic} queue {queue.queue_id} at {at} with "
                    f"{page.next_offset} as the next offset, which leads nowhere"
                )
            rows, flaw = sound_rows(page.body, queue, at)
            following, flaws = page.next_offset, []
            if flaw is not None and not one_by_one:
                # Which message is damaged is known for sure only if it comes alone.
                careful_until, following = page.next_offset, _behind(rows, at)
            elif flaw is not None and following <= stop:
                flaws = [flaw._replace(queue_offset=following - 1)]
            inside = rows[: int(np.searchsorted(rows["queue_offset"], stop))]
            if self._tags == EVERYTHING:
                flaws += await self._missing(span, at, min(following, stop), inside["queue_offset"], flaws)
            if len(inside) or flaws:
                size = int(inside["size"].sum(dtype=np.int64))
                yield Piece(queue, memoryview(page.body)[:size], inside, tuple(flaws))
            at = following

    async def _missing(self, span: Span, start: int, stop: int, there: Longs, known: list[Flaw]) -> list[Flaw]:
        """Flaws for the messages of a range that the broker did not give, as far as they are not lost."""
        if len(there) == stop - start:
            return []
        told = {flaw.queue_offset for flaw in known}.union(there.tolist())
        missing = [number for number in range(start, stop) if number not in told]
        if not missing:
            return []
        lowest = await self._link.min_offset(span.queue)
        if missing[0] < lowest:
            self._lose(span, missing[0], min(lowest, span.stop))
        return [
            _flaw(span.queue, f"the record of queue offset {number} is missing", number)
            for number in missing
            if number >= lowest
        ]

    def _lose(self, span: Span, start: int, stop: int) -> None:
        topic, broker, queue_id = span.queue
        error = gone(topic, broker, queue_id, start, stop)
        if self._fail_on_data_loss:
            raise error
        if span not in self._told:
            self._told.add(span)
            log.warning("messages from %d on of topic %s queue %d (broker %s) are gone", start, topic, queue_id, broker)


def sound_rows(body: bytes | memoryview, queue: Queue, at: int) -> tuple[Rows, Flaw | None]:
    """Rows of a page's records up to the first that is damaged or not of this queue, and what is wrong with it."""
    if not body:
        return _NO_ROWS, None
    room = np.empty(len(body) // MIN_RECORD_SIZE + 1, ROW)
    count, _, reason = kernels.loose_rows(body, 0, True, room)
    rows = room[:count]
    kept = _of_queue(body, rows, queue, at)
    if kept < count:
        return rows[:kept], _flaw(queue, "a record is that of another message")
    if reason != Reason.STOP:
        return rows, _flaw(queue, f"a record is damaged ({Reason(reason).name})")
    return rows, None


def _of_queue(body: bytes | memoryview, rows: Rows, queue: Queue, at: int) -> int:
    """How many rows, from the first on, are messages of the queue, in order, from an offset on."""
    topic = np.frombuffer(queue.topic.encode(), np.uint8)
    numbers = rows["queue_offset"]
    good = (rows["queue_id"] == queue.queue_id) & (rows["topic_length"] == len(topic))
    good &= numbers > np.concatenate(([at - 1], numbers[:-1]))
    count = len(rows) if good.all() else int(good.argmin())
    lengths = rows["size"][:count].astype(np.int64)
    places = np.cumsum(lengths) - lengths + rows["topic_at"][:count]
    names = np.empty((count, len(topic)), np.uint8)
    kernels.gather(body, places, np.full(count, len(topic), np.int32), names.reshape(-1))
    same = (names == topic).all(axis=1)
    return count if same.all() else int(same.argmin())


def _behind(rows: Rows, at: int) -> int:
    return int(rows["queue_offset"][-1]) + 1 if len(rows) else at


def _flaw(queue: Queue, what: str, queue_offset: int | None = None) -> Flaw:
    return Flaw(queue.topic, queue.queue_id, queue_offset, None, what)
