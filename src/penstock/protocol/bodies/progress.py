"""Consumer progress as administrators see and move it: 220 to 223, 303, 308."""

from __future__ import annotations

from penstock.format.java_ints import Int32, Int64
from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.queues import BodyByQueue, MessageQueue


class ResetOffsetBody(BodyByQueue, kw_only=True):
    """220, 222: where each queue goes on."""

    offset_table: dict[MessageQueue, Int64] = {}

    def for_cpp(self) -> ResetOffsetBodyForC:
        """The same as a C++ client reads it."""
        return ResetOffsetBodyForC(
            offset_table=[
                QueueOffset(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic, offset=offset)
                for queue, offset in self.offset_table.items()
            ]
        )


class QueueOffset(Body, kw_only=True):
    """A queue and where it goes on."""

    broker_name: str
    offset: Int64
    queue_id: Int32
    topic: str


class ResetOffsetBodyForC(Body, kw_only=True):
    """220 to a C++ client: a list, since it cannot read objects as keys."""

    offset_table: list[QueueOffset] = []


class GetConsumerStatusBody(BodyByQueue, kw_only=True):
    """221: a client's own offsets; 223: those of each client by its id."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = {}
    message_queue_table: dict[MessageQueue, Int64] = {}


class QueueTimeSpan(Body, kw_only=True):
    """The times of a queue's oldest, newest and last consumed message, and how late the consumer is."""

    message_queue: MessageQueue
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0


class QueryConsumeTimeSpanBody(Body, kw_only=True):
    """303."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetBody(Body, kw_only=True):
    """308: offsets by queue id."""

    correction_offsets: dict[Int32, Int64] = {}
