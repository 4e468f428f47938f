"""A compiled request path on a log of its own, whose every step is compared with the general path's reading of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.broker.remoting.reply_frames import BARE_PIECES, PULL_PIECES, QUERY_PIECES, SendReplyFrames
from penstock.broker.send import plain_text
from penstock.format.batch import decode_batch_body
from penstock.format.kernels import _compiled
from penstock.format.properties import join_properties
from penstock.format.record import decode_record
from penstock.protocol.command import Command
from penstock.protocol.frame import FrameReader, encode
from penstock.protocol.headers.offsets import QueryConsumerOffset, UpdateConsumerOffset
from penstock.protocol.headers.pull import PullMessage
from penstock.protocol.headers.send import SendMessage, SendMessageV2
from penstock.store.message import Message, PutResult, PutStatus

HOST = bytes([10, 0, 0, 7, 0, 0, 4, 1])
STORE_HOST = "127.0.0.1:10911"
SUFFIX = "CLUSTER\x01c"
TOPICS = {"T": 4, "orders": 2}
NOW = 1_794_765_215_418
LOG_BYTES = 256 << 10
FOUND = b"records" * 3
SEND_KINDS: dict[int, type[SendMessage]] = {10: SendMessage, 310: SendMessageV2, 320: SendMessageV2}


def batch_items(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """The messages of a batch, each with the properties to store."""
    return [
        (item.flag, item.body, join_properties(item.properties, SUFFIX.encode())) for item in decode_batch_body(body)
    ]


class FoundPage(NamedTuple):
    data: bytes = FOUND
    next_begin_offset: int = 33
    min_offset: int = 0
    max_offset: int = 2**40


class RecordedCalls:
    """Answers every pull, commit and query, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.sent: list[tuple[str, int, int]] = []
        self.stored: list[tuple[str, int]] = []

    def on_stored(self, topic: str, queue_id: int) -> None:
        self.stored.append((topic, queue_id))

    def count_sent(self, topic: str, messages: int, size: int) -> None:
        self.sent.append((topic, messages, size))

    def pull(self, client: object, *arguments: Any) -> FoundPage:
        self.asked.append(("pull", *arguments))
        return FoundPage()

    def commit(self, client: object, *arguments: Any) -> bool:
        self.asked.append(("commit", *arguments))
        return True

    def query(self, *arguments: Any) -> int:
        self.asked.append(("query", *arguments))
        return 77


class CheckedPath:
    """A `RequestPath` with its appender. `serve` compares what it did with the same frames as commands."""

    def __init__(self, frame_bytes: int = 16 << 20, reply_bytes: int = 256 << 10) -> None:
        self.calls = RecordedCalls()
        self.held: dict[tuple[str, int], object] = {("T", 3): "a pull waits here"}
        self._replies = SendReplyFrames({"MSG_REGION": "here", "TRACE_ON": "true"})
        self._frame_bytes, self._reply_bytes = frame_bytes, reply_bytes
        self.renew()

    def renew(self) -> None:
        """Begins with an empty log."""
        self.log, self._marks = bytearray(LOG_BYTES), array("q", [0, 0])
        self.appender = _compiled.Appender(
            Message, PutResult, PutStatus.PUT_OK, lambda: NOW, STORE_HOST, bytes(8), 4 << 20, 5 << 20, False
        )
        self.appender.queues = {topic: {} for topic in TOPICS}
        self.appender.attach(self.log, self._marks, 0)
        self.appender.is_open = True
        self.path = _compiled.RequestPath(
            self.appender, TOPICS, self.held, self.calls, self._frame_bytes, 1 << 20, self._reply_bytes
        )
        self.path.answer_sends(
            SUFFIX.encode(), b"7F", self._replies.pieces, self._replies.binary_head, self._replies.binary_tail
        )
        self.path.answer_pulls(PULL_PIECES)
        self.path.answer_offsets(QUERY_PIECES, BARE_PIECES)

    def serve(self, data: bytes, at: int = 0) -> tuple[int, int, bytes]:
        """Serves frames; what was served must be what the general path would have read from them."""
        if self._marks[0] > LOG_BYTES * 3 // 4:
            self.renew()
        before, asked = self._marks[0], len(self.calls.asked)
        served, stop, replies = self.path.serve(self, data, at, HOST, True)
        assert at <= served <= stop <= len(data)
        records = self._records(before)
        questions = iter(self.calls.asked[asked:])
        commands = FrameReader().feed(data[at:served])
        expected = [frame for command in commands for frame in self._check(command, records, questions)]
        assert b"".join(replies) == b"".join(expected)
        assert next(records, None) is None
        assert next(questions, None) is None
        if stop > served:
            assert served + 4 + int.from_bytes(data[served : served + 4], "big") == stop
        return served, stop, b"".join(replies)

    def _records(self, at: int) -> Iterator[tuple[int, Any]]:
        while at < self._marks[0]:
            record = decode_record(self.log, at)
            yield at, record
            at += record.size

    def _check_batch(
        self, command: Command, request: SendMessage, records: Iterator[tuple[int, Any]]
    ) -> Iterator[bytes]:
        assert request.properties in ("", "WAIT\x01true", "WAIT\x01true\x02")
        ids, first = [], None
        for flag, body, text in batch_items(bytes(command.body)):
            at, record = next(records)
            first = record.queue_offset if first is None else first
            ids.append("7F" + at.to_bytes(8).hex().upper())
            assert (record.topic, record.queue_id, record.flag) == (request.topic, request.queue_id, flag)
            assert record.body == body
            assert self.log[at : at + record.size].endswith(len(text).to_bytes(2, "big") + text)
        place = {"queueId": str(request.queue_id), "queueOffset": str(first)}
        ext = {"msgId": ",".join(ids), **place, "MSG_REGION": "here", "TRACE_ON": "true"}
        if not command.is_oneway:
            yield encode(command.reply(0, None, ext))

    def _check(self, command: Command, records: Iterator[tuple[int, Any]], asked: Iterator[Any]) -> Iterator[bytes]:
        kind = SEND_KINDS.get(command.code)
        ext: dict[str, str] = {}
        body, remark = b"", None
        if kind is not None:
            request = command.read(kind)
            if request.batch:
                yield from self._check_batch(command, request, records)
                return
            at, record = next(records)
            assert (record.topic, record.queue_id, record.flag) == (request.topic, request.queue_id, request.flag)
            assert 0 <= request.queue_id < TOPICS[request.topic]
            assert record.body == command.body
            text = (plain_text(request.properties, SUFFIX) or "").encode()
            assert self.log[at : at + record.size].endswith(len(text).to_bytes(2, "big") + text)
            assert int.from_bytes(self.log[at + 36 : at + 40], "big", signed=True) == request.sys_flag & ~0x30
            assert record.born_timestamp == (request.born_timestamp or NOW)
            assert record.reconsume_times == request.reconsume_times
            assert (record.born_host, record.store_timestamp) == ("10.0.0.7:1025", NOW)
            place = {"queueId": str(record.queue_id), "queueOffset": str(record.queue_offset)}
            ext = {"msgId": "7F" + at.to_bytes(8).hex().upper(), **place, "MSG_REGION": "here", "TRACE_ON": "true"}
        elif command.code in (11, 361):
            pull = command.read(PullMessage)
            if pull.sys_flag & 4:
                assert (pull.subscription, pull.expression_type or "TAG") == ("*", "TAG")
            place_of = (pull.consumer_group, pull.topic, pull.queue_id, pull.queue_offset, pull.max_msg_nums)
            assert next(asked) == ("pull", *place_of, pull.sys_flag, pull.commit_offset, pull.sub_version)
            page = FoundPage()
            bounds = (page.next_begin_offset, page.min_offset, page.max_offset)
            names = ("nextBeginOffset", "minOffset", "maxOffset")
            ext = {"suggestWhichBrokerId": "0", **dict(zip(names, map(str, bounds), strict=True))}
            body, remark = FOUND, "FOUND"
        elif command.code == 15:
            update = command.read(UpdateConsumerOffset)
            place_of_commit = (update.consumer_group, update.topic, update.queue_id, update.commit_offset)
            assert next(asked) == ("commit", *place_of_commit)
        else:
            query = command.read(QueryConsumerOffset)
            assert command.code == 14
            assert next(asked) == ("query", query.consumer_group, query.topic, query.queue_id)
            ext = {"offset": "77"}
        if not command.is_oneway:
            yield encode(command.reply(0, remark, ext, body))
