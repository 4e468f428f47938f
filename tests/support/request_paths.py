"""A compiled request path on a log of its own, whose every step is compared with the general path's reading of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from penstock.broker.remoting.reply_frames import BARE_PIECES, PULL_PIECES, QUERY_PIECES, SendReplyFrames
from penstock.broker.send import plain_text
from penstock.format.batch import decode_batch_body
from penstock.format.kernels import _compiled
from penstock.format.properties import join_properties
from penstock.format.queue_unit import pack_unit
from penstock.format.record import decode_record
from penstock.protocol.command import Command
from penstock.protocol.frame import FrameReader, encode
from penstock.protocol.headers.offsets import QueryConsumerOffset, UpdateConsumerOffset
from penstock.protocol.headers.pull import PullMessage
from penstock.protocol.headers.send import SendMessage, SendMessageV2
from penstock.store.message import Message, PutResult, PutStatus
from support.messages import make_record

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


def known_pages() -> Any:
    """Pages of a queue in memory: T, number 1, with five messages."""
    log, units = bytearray(), bytearray()
    for number in range(5):
        record = make_record(len(log), b"%d" % number, queue_id=1, queue_offset=number)
        units += pack_unit(len(log), len(record), 0)
        log += record

    def file(data: bytearray) -> SimpleNamespace:
        marks = array("q", [len(data), 0])
        return SimpleNamespace(window=_compiled.FileWindow(data, 0, marks, _compiled.ReaderCount(), None))

    files = SimpleNamespace(files=(file(units),))
    queue = SimpleNamespace(topic="T", queue_id=1, topic_bytes=b"T", min_offset=0, files=files)
    place = SimpleNamespace(files=(file(log),), file_size=len(log), written_from=0, flushed_where=0)
    reader = _compiled.PageReader(1 << 30, 32, 1 << 22, 8, 1 << 16, True)
    return _compiled.QueuePages(reader, {("T", 1): queue}, queue, place, False)


class RecordedCalls:
    """Answers every pull, commit and query, and keeps what it was asked. Keeps the pages of one queue for pulls."""

    def __init__(self, pulled: dict[bytes, Any]) -> None:
        self._pulled = pulled
        self.pages = known_pages()
        self.counts = [0, 0]
        self.consume_hooks: list[object] = []
        self.safe: list[tuple[int, int, int, bytes]] = []
        self.committed: list[tuple[Any, ...]] = []
        self.got: list[tuple[int, int, int]] = []
        self.failure: Exception | None = None
        """Raised by every call but `when_safe`."""
        self.asked: list[tuple[Any, ...]] = []
        self.sent: list[tuple[str, int, int]] = []
        self.stored: list[tuple[str, int]] = []

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    def when_safe(
        self, client: object, end_offset: int, messages: int, seconds: float, count: int, replies: bytes
    ) -> None:
        self.safe.append((end_offset, messages, count, replies))

    def on_stored(self, topic: str, queue_id: int) -> None:
        self._fail()
        self.stored.append((topic, queue_id))

    def count_sent(self, topic: str, messages: int, size: int) -> None:
        self._fail()
        self.sent.append((topic, messages, size))

    def pull(self, client: object, key: bytes | None, *arguments: Any) -> FoundPage:
        self._fail()
        self.asked.append(("pull", *arguments))
        if arguments[1:3] == ("T", 1) and key is not None:
            self._pulled[key] = self.pages, self.counts
        return FoundPage()

    def commit_pulled(self, client: object, *arguments: Any) -> None:
        self.committed.append(arguments)

    def count_got(self, pages: int, messages: int, size: int, seconds: float) -> None:
        self.got.append((pages, messages, size))

    def commit(self, client: object, *arguments: Any) -> bool:
        self._fail()
        self.asked.append(("commit", *arguments))
        return True

    def query(self, *arguments: Any) -> int:
        self.asked.append(("query", *arguments))
        return 77


class CheckedPath:
    """A `RequestPath` with its appender. `serve` compares what it did with the same frames as commands."""

    def __init__(self, frame_bytes: int = 16 << 20, reply_bytes: int = 256 << 10, room: int = -1) -> None:
        """`room`: see `RequestPath.serve`."""
        self.pulled: dict[bytes, Any] = {}
        self.calls = RecordedCalls(self.pulled)
        self.held: dict[tuple[str, int], object] = {("T", 3): "a pull waits here"}
        self._known: set[tuple[object, ...]] = set()
        """The pulls that are served from pages, by what decides it."""
        self._room = room
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
            self.appender, TOPICS, self.held, self.pulled, self.calls, self._frame_bytes, 1 << 20, self._reply_bytes
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
        safe, committed = len(self.calls.safe), len(self.calls.committed)
        served, stop, replies, failure, late = self.path.serve(self, data, at, HOST, True, self._room)
        assert failure is None
        assert late is None
        assert at <= served <= stop <= len(data)
        records = self._records(before)
        questions = iter(self.calls.asked[asked:])
        commits = iter(self.calls.committed[committed:])
        expected, waiting = [], []
        for command in FrameReader().feed(data[at:served]):
            waits = self._room >= 0 and command.code in SEND_KINDS
            (waiting if waits else expected).extend(self._check(command, records, questions, commits))
        assert b"".join(replies) == b"".join(expected)
        assert b"".join(frames for *_, frames in self.calls.safe[safe:]) == b"".join(waiting)
        assert sum(count for _, _, count, _ in self.calls.safe[safe:]) == len(waiting)
        assert next(records, None) is None
        assert next(questions, None) is None
        assert next(commits, None) is None
        if stop > served:
            assert served + 4 + int.from_bytes(data[served : served + 4], "big") == stop
        return served, stop, b"".join((*replies, *waiting))

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

    def _check(
        self, command: Command, records: Iterator[tuple[int, Any]], asked: Iterator[Any], commits: Iterator[Any]
    ) -> Iterator[bytes]:
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
            queue = pull.consumer_group, pull.topic, pull.queue_id
            page = self._known_page(pull)
            if page is None:
                rest = pull.queue_offset, pull.max_msg_nums, pull.sys_flag, pull.commit_offset, pull.sub_version
                assert next(asked) == ("pull", *queue, *rest)
                page = FoundPage()
            elif pull.sys_flag & 1:
                assert next(commits) == (*queue, pull.commit_offset)
            bounds = (page.next_begin_offset, page.min_offset, page.max_offset)
            names = ("nextBeginOffset", "minOffset", "maxOffset")
            ext = {"suggestWhichBrokerId": "0", **dict(zip(names, map(str, bounds), strict=True))}
            body, remark = page.data, "FOUND"
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

    def _known_page(self, pull: PullMessage) -> FoundPage | None:
        """The page of a pull like an earlier one; None if the kernel has to ask for it."""
        is_own = bool(pull.sys_flag & 4)
        known = pull.consumer_group, pull.topic, pull.queue_id, is_own, 0 if is_own else pull.sub_version
        if known not in self._known:
            if (pull.topic, pull.queue_id) == ("T", 1):
                self._known.add(known)
            return None
        found = self.calls.pages.read(pull.queue_offset, max(pull.max_msg_nums, 1))
        return None if found is None else FoundPage(*found[:4])
