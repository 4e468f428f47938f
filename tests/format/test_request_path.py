"""The compiled request path: what it serves and what it leaves. Whatever it serves is compared by `CheckedPath`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.request_paths import FOUND, HOST, LOG_BYTES, TOPICS, CheckedPath

from penstock.format.batch import encode_batch_body
from penstock.format.kernels import plain
from penstock.protocol.command import ONE_WAY, RESPONSE, Command
from penstock.protocol.frame import FrameReader, encode

SEND = dict(zip("abcdefghi", ["g", "T", "TBW102", "4", "1", "0", "17", "5", "TAGS\x01A\x02"], strict=True))
LONG = "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties"
SEND_V1 = dict(zip(LONG.split(), SEND.values(), strict=True))
PLACE = {"consumerGroup": "g", "topic": "T", "queueId": "1"}
PULL = PLACE | {
    "queueOffset": "3",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subVersion": "1",
    "subscription": "*",
}
SEND_BATCH = {**SEND, "m": "true", "i": ""}
ONE_MESSAGE = encode_batch_body([(5, b"body", b"TAGS\x01A\x02")])
BATCH = ONE_MESSAGE + encode_batch_body([(-1, b"", b"KEYS\x01\xe2\x82\xac")])
ORDINARY: dict[str, Command] = {
    "a send": Command(310, SEND, b"body", 7),
    "a send, version 1": Command(10, SEND_V1, b"body", 7),
    "a send without properties": Command(310, {k: v for k, v in SEND.items() if k != "i"}, b"", 7),
    "a send with all fields": Command(310, {**SEND, "j": "2", "k": "false", "l": "16", "m": "false", "n": "b"}, b"x"),
    "a send by code 320 that is no batch": Command(320, SEND, b"body", 7),
    "a batch": Command(320, SEND_BATCH, BATCH, 7),
    "a batch of one, version 1": Command(10, {**SEND_V1, "properties": "", "batch": "true"}, ONE_MESSAGE),
    "a one-way batch": Command(320, {**SEND_BATCH, "i": "WAIT\x01true\x02"}, BATCH, 7, ONE_WAY),
    "a one-way send": Command(310, SEND, b"body", 7, ONE_WAY),
    "a send with unknown fields": Command(310, {**SEND, "zz": "1", "topic": "other"}, b"x"),
    "a send whose properties wait": Command(310, {**SEND, "i": "WAIT\x01true\x02KEYS\x01k"}, b"x"),
    "a send whose properties are not ASCII": Command(310, {**SEND, "i": 'KEYS\x01ключ"\\/\b\f\n\r\t\x02'}, b"x"),
    "a send with a negative opaque": Command(310, SEND, b"x", -(2**31)),
    "a pull": Command(11, PULL, b"", 9),
    "a lite pull": Command(361, PULL, b"", 9),
    "a pull of the group's subscription": Command(11, {**PULL, "sysFlag": "1", "subscription": "anything"}),
    "a pull by tag type": Command(11, {**PULL, "expressionType": "TAG", "maxMsgBytes": "1", "requestSource": "2"}),
    "a commit": Command(15, {**PLACE, "commitOffset": "9223372036854775807"}, b"", 3),
    "a one-way commit": Command(15, {**PLACE, "commitOffset": "-1"}, b"", 3, ONE_WAY),
    "a query": Command(14, {**PLACE, "setZeroIfNotFound": "true"}, b"", 4),
}
LEFT: dict[str, Command] = {
    "an unknown code": Command(9_999, SEND),
    "a response": Command(310, SEND, b"", 1, RESPONSE),
    "an unknown topic": Command(310, {**SEND, "b": "other"}),
    "a queue that the topic has not": Command(310, {**SEND, "e": "4"}),
    "a queue to be chosen": Command(310, {**SEND, "e": "-1"}),
    "a missing field": Command(310, {k: v for k, v in SEND.items() if k != "h"}),
    "a number with a plus sign": Command(310, {**SEND, "h": "+1"}),
    "a number with leading zeros": Command(310, {**SEND, "h": "01"}),
    "an empty number": Command(310, {**SEND, "h": ""}),
    "a flag of 33 bits": Command(310, {**SEND, "h": "2147483648"}),
    "a time of 65 bits": Command(310, {**SEND, "g": "9223372036854775808"}),
    "a time before 1970": Command(310, {**SEND, "g": "-1"}),
    "a delayed message": Command(310, {**SEND, "i": "DELAY\x013"}),
    "a half message": Command(310, {**SEND, "i": "TRAN_MSG\x01true", "f": "4"}),
    "a prepared message": Command(310, {**SEND, "f": "4"}),
    "properties that set the cluster": Command(310, {**SEND, "i": "CLUSTER\x01c"}),
    "properties that do not wait": Command(310, {**SEND, "i": "WAIT\x01false"}),
    "properties that wait twice": Command(310, {**SEND, "i": "WAIT\x01true\x02WAIT\x01true\x02"}),
    "a name that ends with WAIT": Command(310, {**SEND, "i": "AWAIT\x01true\x02"}),
    "properties with a record's CRC": Command(310, {**SEND, "i": "__CRC32#\x011"}),
    "properties that are too long": Command(310, {**SEND, "i": "a\x01" + "b" * 32_767}),
    "properties longer than the scratch": Command(310, {**SEND, "i": "a\x01" + "b" * 70_000}),
    "a batch with properties of its own": Command(320, {**SEND, "m": "true"}, BATCH),
    "an empty batch": Command(320, SEND_BATCH),
    "a batch that is cut off": Command(320, SEND_BATCH, BATCH[:-1]),
    "a batch with a delay": Command(320, SEND_BATCH, BATCH + encode_batch_body([(0, b"x", b"DELAY\x011")])),
    "a batch whose properties are not UTF-8": Command(320, SEND_BATCH, encode_batch_body([(0, b"", b"\xff")])),
    "a batch whose last message is not ordinary": Command(
        320, SEND_BATCH, BATCH + encode_batch_body([(0, b"", b"__CRC32#\x011")])
    ),
    "a batch of a transaction": Command(320, {**SEND_BATCH, "f": "8"}, BATCH),
    "a batch of too many messages": Command(320, SEND_BATCH, encode_batch_body([(0, b"", b"")] * 10_001)),
    "a boolean of another kind": Command(310, {**SEND, "k": "TRUE"}),
    "a message larger than the log": Command(310, SEND, bytes(LOG_BYTES)),
    "a pull with tags of its own": Command(11, {**PULL, "subscription": "A || B"}),
    "a pull with a filter": Command(11, {**PULL, "expressionType": "SQL92"}),
    "a pull with a body": Command(11, PULL, b"x"),
    "a one-way pull": Command(11, PULL, b"", 1, ONE_WAY),
    "a group that is not ASCII": Command(15, {**PLACE, "consumerGroup": "группа", "commitOffset": "1"}),
    "a heartbeat": Command(34, {}, b"{}"),
}


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_request_is_served_as_the_general_path_would(name: str, binary: bool) -> None:
    command = ORDINARY[name]
    command.binary = binary
    frame = encode(command)
    at, stop, replies = CheckedPath().serve(frame)
    assert (at, stop) == (len(frame), len(frame))
    assert bool(replies) is not command.is_oneway


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("name", LEFT)
def test_any_other_request_is_left_untouched(name: str, binary: bool) -> None:
    command = LEFT[name]
    command.binary = binary
    path = CheckedPath()
    frame = encode(command)
    assert path.serve(frame) == (0, len(frame), b"")
    assert path.appender.count == 0
    assert not any(path.log)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def header_of(**changes: Any) -> dict[str, Any]:
    return {"code": 310, "flag": 0, "language": "JAVA", "opaque": 1, "version": 409, "extFields": SEND, **changes}


@pytest.mark.parametrize(
    "header",
    [
        json.dumps(header_of(), indent=3),
        json.dumps(header_of(extFields={**SEND, "d": 4, "e": 0, "k": True, "zz": -3, "yy": None})),
        json.dumps(header_of(remark=None, serializeTypeCurrentRPC="JSON", more=1, most=False)),
        json.dumps(header_of(extFields={**SEND, "i": "a\x01\u20ac\x02"}), ensure_ascii=False),
        json.dumps(header_of(extFields={**SEND, "i": "a\x01\u00e9\u20ac\x00b\x02"})),
        json.dumps(header_of()).replace("\\u0001", "\\u0001\\/"),
    ],
)
def test_a_header_as_other_clients_write_it_is_served(header: str) -> None:
    frame = framed(header.encode())
    assert CheckedPath().serve(frame)[0] == len(frame)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"[]",
        b'{"code":310',
        json.dumps(header_of(code="310")).encode(),
        json.dumps({"extFields": SEND, "code": 310}).encode(),
        json.dumps(header_of(code=310.0)).encode(),
        json.dumps(header_of(flag=8)).encode(),
        json.dumps(header_of(extFields=None)).encode(),
        json.dumps(header_of(extFields={**SEND, "i": None})).encode(),
        json.dumps(header_of(extFields={**SEND, "b": 5})).encode(),
        json.dumps(header_of(extFields={**SEND, "zz": [1]})).encode(),
        json.dumps(header_of(extFields={**SEND, "i": "\U0001f600"})).encode(),
        json.dumps(header_of(extFields={**SEND, "i": "a\x01" + "\x00" * 511})).encode(),
        json.dumps(header_of()).replace('"h"', '"g": "1", "h"').encode(),
        json.dumps(header_of()).replace('"opaque"', '"flag": 2, "opaque"').encode(),
        json.dumps(header_of()).replace("\\u0001", "\\u00g1").encode(),
        json.dumps(header_of()).replace("\\u0001", "\\x").encode(),
        json.dumps(header_of()).replace("\\u0001", "\x01").encode(),
        json.dumps(header_of()).replace("TAGS", "TA\udcffGS").encode("utf-8", "surrogateescape"),
        json.dumps(header_of()).replace("TAGS", "TA\udcc0\udc80GS").encode("utf-8", "surrogateescape"),
        json.dumps(header_of()).replace('"T"', '"\\u0054"').encode(),
        json.dumps(header_of()).encode() + b"x",
    ],
)
def test_a_header_that_it_does_not_know_is_left(header: bytes) -> None:
    frame = framed(header, b"body")
    assert CheckedPath().serve(frame) == (0, len(frame), b"")


def test_frames_are_served_in_order_up_to_the_first_that_is_left() -> None:
    path = CheckedPath()
    good, other = encode(ORDINARY["a send"]), encode(LEFT["a heartbeat"])
    data = good + good + other + good
    at, stop, replies = path.serve(data)
    assert (at, stop) == (2 * len(good), 2 * len(good) + len(other))
    assert len(FrameReader().feed(replies)) == 2
    assert path.serve(data, stop)[0] == len(data)
    assert path.calls.sent == [("T", 2, path.calls.sent[0][2]), ("T", 1, path.calls.sent[1][2])]


def test_an_incomplete_frame_and_a_bad_one_are_nobodys_yet() -> None:
    good = encode(ORDINARY["a send"])
    for rest in (
        good[:-1],
        good[:5],
        b"\x7f" * 12,
        b"\x00\x00\x00\x04\x00\x00\xff\xff",
        b"\x00\x00\x00\x04\x02\x00\x00\x00",
    ):
        assert CheckedPath().serve(good + rest)[:2] == (len(good), len(good))


def test_a_frame_above_the_limit_is_not_served() -> None:
    frame = encode(ORDINARY["a send"])
    assert CheckedPath(frame_bytes=len(frame)).serve(frame)[0] == len(frame)
    assert CheckedPath(frame_bytes=len(frame) - 1).serve(frame)[:2] == (0, 0)


def test_it_returns_early_once_there_are_enough_replies() -> None:
    path = CheckedPath(reply_bytes=100)
    good = encode(ORDINARY["a send"])
    assert path.serve(good * 3)[:2] == (len(good), len(good))


def test_records_of_a_pull_are_passed_on_as_they_are() -> None:
    path = CheckedPath()
    frame = encode(ORDINARY["a send"]) + encode(ORDINARY["a pull"]) + encode(ORDINARY["a query"])
    at, _, replies, *_ = path.path.serve(None, frame, 0, HOST, True)
    assert at == len(frame)
    assert [type(piece) for piece in replies] == [bytes, bytes, bytes]
    assert replies[1] == FOUND


def test_pulls_that_wait_hear_of_a_message_to_their_queue_only() -> None:
    path = CheckedPath()
    path.serve(b"".join(encode(Command(310, {**SEND, "e": queue}, b"x")) for queue in ("0", "3", "3")))
    assert path.calls.stored == [("T", 3), ("T", 3)]


def test_nothing_is_appended_while_the_log_is_closed_or_sends_are_not_taken() -> None:
    path = CheckedPath()
    frame = encode(ORDINARY["a send"])
    assert path.path.serve(None, frame, 0, HOST, False) == (0, len(frame), [], None, None)
    assert path.path.serve(None, frame, 0, b"", True) == (0, 0, [], None, None)
    path.appender.is_open = False
    assert path.serve(frame) == (0, len(frame), b"")


# -- sends whose replies wait --------------------------------------------------------------------------------


def test_replies_to_the_sends_of_one_read_wait_together() -> None:
    path, beside = CheckedPath(), CheckedPath()
    sends = [encode(ORDINARY["a send"]), encode(ORDINARY["a one-way send"]), encode(ORDINARY["a batch"])]
    data = b"".join(sends)
    assert path.path.serve(None, data, 0, HOST, True, 5) == (len(data), len(data), [], None, None)
    _, _, at_once, *_ = beside.path.serve(None, data, 0, HOST, True)
    end = int(path.appender.bytes_appended)
    assert path.calls.safe == [(end, 4, 2, b"".join(at_once))], "a batch of two, and one of the others without a reply"
    assert path.log == beside.log


def test_sends_beyond_the_room_for_waiting_replies_are_left() -> None:
    path = CheckedPath()
    send, one_way = encode(ORDINARY["a send"]), encode(ORDINARY["a one-way send"])
    data = send + one_way + send + one_way
    at, stop, replies, *_ = path.path.serve(None, data, 0, HOST, True, 2)
    assert (at, stop, replies) == (len(data) - len(one_way), len(data), [])
    assert [count for _, _, count, _ in path.calls.safe] == [2]
    assert path.path.serve(None, data, at, HOST, True, 0) == (at, len(data), [], None, None)
    assert len(path.calls.safe) == 1


def test_a_batch_takes_as_much_room_as_its_reply_has_bytes() -> None:
    path = CheckedPath()
    batch, send = encode(Command(320, SEND_BATCH, ONE_MESSAGE * 300, 7)), encode(ORDINARY["a send"])
    for room, served in ((1, 1), (3, 1), (4, 2)):  # 300 ids of 19 bytes: as much as three sends
        data = batch + send
        at, *_ = path.path.serve(None, data, 0, HOST, True, room)
        assert at == (len(batch) if served == 1 else len(data))


def test_what_is_answered_at_once_does_not_wait_with_the_sends_around_it() -> None:
    path = CheckedPath()
    send, query = encode(ORDINARY["a send"]), encode(ORDINARY["a query"])
    _, _, replies, *_ = path.path.serve(None, query + send + query + send, 0, HOST, True, 9)
    assert len(FrameReader().feed(b"".join(replies))) == 2
    assert [count for _, _, count, _ in path.calls.safe] == [1, 1]


def test_one_way_sends_are_reported_without_replies() -> None:
    path = CheckedPath()
    path.path.serve(None, encode(ORDINARY["a one-way send"]), 0, HOST, True, 9)
    assert path.calls.safe == [(path.appender.bytes_appended, 1, 0, b"")]


# -- calls that raise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a pull", "a commit"])
def test_a_call_that_raises_fails_its_request_and_no_other(name: str) -> None:
    path = CheckedPath()
    path.calls.failure = RuntimeError("a bug")
    query, failing = encode(ORDINARY["a query"]), encode(ORDINARY[name])
    at, stop, replies, failure, late = path.path.serve(None, query + failing + query, 0, HOST, True)
    assert (at, stop) == (len(query), len(query) + len(failing))
    assert (failure, late) == (path.calls.failure, None)
    assert len(FrameReader().feed(b"".join(replies))) == 1
    assert path.path.serve(None, query + failing + query, stop, HOST, True)[0] == 2 * len(query) + len(failing)


def test_a_call_that_raises_after_a_send_does_not_undo_it() -> None:
    path = CheckedPath()
    path.calls.failure = RuntimeError("a bug")
    woken: list[bool] = []
    path.appender.wake, path.appender.is_follower_asleep = lambda: woken.append(True), True
    frame = encode(Command(310, {**SEND, "e": "3"}, b"x"))
    at, stop, replies, failure, late = path.path.serve(None, frame, 0, HOST, True)
    assert (at, stop, failure, late) == (len(frame), len(frame), None, path.calls.failure)
    assert len(FrameReader().feed(b"".join(replies))) == 1
    assert woken == [True]


def test_a_call_that_raises_after_a_send_does_not_fail_the_frame_behind_it() -> None:
    path = CheckedPath()
    path.calls.failure = RuntimeError("a bug")
    send, left = encode(ORDINARY["a send"]), encode(LEFT["an unknown code"])
    at, stop, replies, failure, late = path.path.serve(None, send + left, 0, HOST, True)
    assert (at, stop, failure, late) == (len(send), len(send) + len(left), None, path.calls.failure)
    assert len(FrameReader().feed(b"".join(replies))) == 1


def test_a_request_behind_sends_that_cannot_wait_is_left_and_has_not_failed() -> None:
    path, failure = CheckedPath(), RuntimeError("a bug")

    def cannot_wait(*arguments: object) -> None:
        raise failure

    path.calls.when_safe = cannot_wait  # type: ignore[method-assign]
    path.renew()
    send, query = encode(ORDINARY["a send"]), encode(ORDINARY["a query"])
    place = len(send), len(send) + len(query)
    assert path.path.serve(None, send + query, 0, HOST, True, 5) == (*place, [], None, failure)
    assert not path.calls.asked


def test_constant_parts_of_replies_are_checked() -> None:
    path = CheckedPath().path
    with pytest.raises(ValueError, match="constant parts"):
        path.answer_pulls((b"",) * 4)
    with pytest.raises(ValueError, match="constant parts"):
        path.answer_offsets((b"", b"", "text"), (b"", b""))
    with pytest.raises(ValueError, match="more than"):
        path.answer_sends(b"x" * 20_000, b"", (b"",) * 5, b"", b"")
    with pytest.raises(ValueError, match="outside"):
        path.serve(None, b"", 1, HOST, True)


def test_the_plain_twin_leaves_everything() -> None:
    appender: Any = None
    path = plain.RequestPath(appender, dict(TOPICS), {}, {}, None, 1 << 20, 1 << 20, 1 << 20)
    path.answer_sends(b"", b"", (b"",) * 5, b"", b"")
    path.answer_pulls((b"",) * 5)
    path.answer_offsets((b"",) * 3, (b"",) * 2)
    assert path.serve(None, encode(ORDINARY["a send"]), 0, HOST, True) == (0, 0, [], None, None)
