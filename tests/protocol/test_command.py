from __future__ import annotations

import pytest

from penstock.errors import BadRequest
from penstock.protocol import Command, FrameReader, Language, encode
from penstock.protocol.headers.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullMessage
from penstock.protocol.versions import V4_9_2


def received(ext: str) -> Command:
    """A command as it comes from a client whose extFields are the given JSON."""
    header = f'{{"code":11,"opaque":7,"extFields":{ext}}}'.encode("utf-8", "surrogateescape")
    prefix = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big")
    (command,) = FrameReader().feed(prefix + header)
    return command


@pytest.mark.parametrize("binary", [False, True])
def test_a_reply_echoes_the_id_and_the_serialisation(binary: bool) -> None:
    request = Command(105, {"topic": "T"}, opaque=77, flag=0, language=Language.CPP, version=63, binary=binary)
    reply = request.reply(17, "no route", {"a": "b"}, b"body")
    assert (reply.opaque, reply.binary, reply.code, reply.remark) == (77, binary, 17, "no route")
    assert (reply.ext, reply.body, reply.language) == ({"a": "b"}, b"body", Language.PYTHON)
    assert reply.is_response
    assert not reply.is_oneway
    assert reply.version >= V4_9_2  # Java asks for no SQL filter below 4.1.0


def test_the_bits_of_the_flag() -> None:
    assert [Command(1, flag=flag).is_response for flag in range(4)] == [False, True, False, True]
    assert [Command(1, flag=flag).is_oneway for flag in range(4)] == [False, False, True, True]


def test_a_reply_always_has_its_arguments_since_java_takes_them_for_granted() -> None:
    assert b'"extFields":{}' in encode(Command(1).reply(0))


def test_replies_do_not_share_their_arguments() -> None:
    request, shared = Command(1), {"a": "b"}
    first, second = request.reply(0, ext=shared), request.reply(0, ext=shared)
    first.ext["a"] = "changed"
    assert (second.ext, shared) == ({"a": "b"}, {"a": "b"})
    request.reply(0).ext["x"] = "y"
    assert request.reply(0).ext == {}


@pytest.mark.parametrize(
    ("ext", "expected"),
    [
        ('{"a":"x","b":""}', {"a": "x", "b": ""}),
        ('{"queueId":0,"queueOffset":"0"}', {"queueId": "0", "queueOffset": "0"}),
        ('{"batch":true,"unitMode":false}', {"batch": "true", "unitMode": "false"}),
        ('{"a":null,"b":"x"}', {"b": "x"}),
        ('{"a":1.50,"b":-9223372036854775808}', {"a": "1.50", "b": "-9223372036854775808"}),
        ('{"a":{"x":[1]},"b":[ ]}', {"a": '{"x":[1]}', "b": "[ ]"}),
        ('{"a":"1","a":2}', {"a": "2"}),
        ('{"a":"\\u0001\\u4e2d\\ud83d\\ude00","b":1}', {"a": "\x01中😀", "b": "1"}),
        ('{"a":"cut \\ud83d","b":1}', {"a": "cut ?", "b": "1"}),
        ("{}", {}),
        ("null", {}),
    ],
)
def test_arguments_of_any_type_become_text_as_java_would_have_sent_it(ext: str, expected: dict[str, str]) -> None:
    assert received(ext).ext == expected


@pytest.mark.parametrize("ext", ["5", '"x"', "[]", '{"a":"\udcff"}', '{"a":1,"\udcff":"b"}'])
def test_arguments_that_are_none_are_a_bad_request(ext: str) -> None:
    command = received(ext)
    assert command.opaque == 7  # so that it can be answered
    with pytest.raises(BadRequest, match="extFields cannot be read"):
        _ = command.ext
    with pytest.raises(BadRequest, match="extFields cannot be read"):
        command.read(PullMessage)


PULL = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "1",
    "queueOffset": "5",
    "maxMsgNums": "32",
    "sysFlag": "7",
    "commitOffset": "-1",
    "suspendTimeoutMillis": "15000",
    "subVersion": "1794765215418",
}


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_typed_header_is_the_same_read_early_or_late(looked_at: bool) -> None:
    (command,) = FrameReader().feed(encode(Command(11, dict(PULL))))
    if looked_at:
        assert command.ext == PULL
    pull = command.read(PullMessage)
    assert (pull.consumer_group, pull.queue_id, pull.queue_offset, pull.commit_offset) == ("g", 1, 5, -1)
    assert pull.sys_flag == COMMIT_OFFSET | SUSPEND | SUBSCRIPTION


def test_arguments_can_be_changed_and_replaced() -> None:
    command = received('{"a":"x"}')
    command.ext["b"] = "y"
    assert command.ext == {"a": "x", "b": "y"}
    command.ext = {"c": "z"}
    assert command.ext == {"c": "z"}


def test_commands_are_equal_whether_or_not_their_arguments_were_looked_at() -> None:
    command = Command(11, {"a": "x"}, opaque=3)
    (first,) = FrameReader().feed(encode(command))
    assert first == command
    assert first != Command(12, {"a": "x"}, opaque=3)
    assert first != "something else"


def test_a_printed_command_shows_neither_secrets_nor_bodies() -> None:
    shown = repr(Command(310, {"Signature": "s3cret"}, b"private", opaque=9, remark="r3mark"))
    assert shown == "<request 310 #9, 7 bytes>"
    assert repr(Command(0, flag=1)) == "<reply 0 #0, 0 bytes>"
    assert repr(Command(15, flag=2)) == "<one-way request 15 #0, 0 bytes>"


def test_a_request_that_is_kept_has_neither_the_rest_of_its_header_nor_a_remark() -> None:
    header = b'{"code":11,"opaque":7,"junk":"%s","remark":"%s","extFields":{"topic":"t"}}' % (b"x" * 9000, b"y" * 9000)
    body = b"z" * 100
    frame = (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body
    (request,) = FrameReader().feed(frame)
    assert 100 < request.keep() < 5000
    assert request.remark is None
    assert request.ext == {"topic": "t"}
    assert request.keep() > 100


def test_a_stub_is_enough_for_a_reply() -> None:
    request = Command(11, {"topic": "t"}, b"body", 7, binary=True)
    stub = request.stub()
    assert (stub.ext, stub.body) == ({}, b"")
    assert stub.reply(0) == request.reply(0)
