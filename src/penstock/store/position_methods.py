"""What MessageStore knows about places: what lies at one, offsets and times of queues, the topics that have one."""

from __future__ import annotations

from penstock.format.message_id import decode_message_id
from penstock.format.record import Record
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.query import Boundary, TimeSearch
from penstock.store.records import Records


class PositionMethods:
    """The part of MessageStore that goes by offsets and times."""

    log: CommitLog
    queues: ConsumeQueues
    records: Records
    _times: TimeSearch

    def catch_up(self) -> None:
        raise NotImplementedError("the store says how far it is")

    def _check_open(self) -> None:
        raise NotImplementedError("the store knows whether it is open")

    def look_up(self, physical_offset: int) -> Record | None:
        """The record that begins at a physical offset."""
        self._check_open()
        return self.records.at(physical_offset)

    def look_up_id(self, msg_id: str) -> Record | None:
        """The record with an offset message id. Raises BadMessage if it is no such id."""
        record = self.look_up(decode_message_id(msg_id)[1])
        return record if record is not None and record.msg_id == msg_id.upper() else None

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.NEAREST) -> int:
        """Queue offset of the message stored at a time; 0 if there is no such queue."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else self._times.find(queue, timestamp, boundary)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the oldest message, -1 if there is no such queue."""
        queue = self._queue(topic, queue_id)
        return -1 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message will get, 0 if there is no such queue."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of one message, -1 if it is not there."""
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return -1
        return self.records.store_timestamp(queue.unit(offset)[0])

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the oldest message of the log or of a queue, -1 if there is none."""
        self._check_open()
        if topic is not None:
            return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))
        return self.records.store_timestamp(self.log.min_offset) if self.log.max_offset else -1

    def topics(self) -> list[str]:
        """The topics that have a queue, sorted."""
        self.catch_up()
        return self.queues.topics()

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        self.catch_up()
        return self.queues.find(topic, queue_id)
