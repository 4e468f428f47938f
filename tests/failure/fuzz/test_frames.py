"""Frames, headers and bodies under mutation: only BadFrame and BadRequest ever come out, and memory stays bounded.

Two sources of input: hypothesis, which shrinks what it finds, and a mutator with a printed seed, which is fast enough
for a million inputs (`make torture`). To repeat a run: PENSTOCK_SEED=<seed>.
"""

from __future__ import annotations

import json
import os
import random
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.effort import TWINS, chosen_seed, tell_progress

from penstock.errors import BadFrame, BadRequest
from penstock.format.batch import encode_batch_body
from penstock.format.config_tables import SubscriptionGroup, TopicConfigs
from penstock.protocol import Command, FrameReader, RequestCode, encode, write
from penstock.protocol.bodies.admin import decode_config
from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.clients import CheckClientRequestBody, HeartbeatData
from penstock.protocol.bodies.queues import LockBatchRequestBody
from penstock.protocol.bodies.routes import RegisterBrokerBody
from penstock.protocol.bodies.stats import ConsumeStats, ResetOffsetBody
from penstock.protocol.compression import inflate
from penstock.protocol.headers import REPLIES, REQUESTS
from penstock.protocol.headers.send import SendMessage, SendMessageV2
from penstock.protocol.signing import is_signed_with, sign

LIMIT = 4096
BODIES: dict[int, type[Body]] = {
    RequestCode.HEART_BEAT: HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: LockBatchRequestBody,
    RequestCode.CHECK_CLIENT_CONFIG: CheckClientRequestBody,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetBody,
    RequestCode.GET_CONSUME_STATS: ConsumeStats,
}
SEND = SendMessageV2(
    producer_group="PID_x",
    topic="T",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=0,
    sys_flag=0,
    born_timestamp=1794765215418,
    flag=0,
    properties="TAGS\x01A\x02KEYS\x01k",
)
LONG_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(SendMessage) if field.required}
HEARTBEAT = b"""{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":1,"subscriptionDataSet":
[{"topic":"T","subString":"A || B","subVersion":"17"}]}]}"""
OFFSETS = b"""{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,
{"brokerName":"b","queueId":1,"topic":"T"}:{"x":1}}}"""


def seeds() -> list[bytes]:
    """Good frames of every kind, in both serialisations."""
    commands = [
        Command(310, write(SEND), b"body" * 20),
        Command(34, {}, HEARTBEAT),
        Command(220, {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}, OFFSETS),
        Command(208, {"consumerGroup": "g"}, OFFSETS),
        Command(41, {}, b'{"consumerGroup":"g","clientId":"c","mqSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}'),
        Command(103, {"brokerName": "b", "brokerAddr": "x:1", "clusterName": "c", "brokerId": "0", "haServerAddr": ""}),
        Command(103, {"compressed": "true"}, RegisterBrokerBody().to_bytes(compressed=True)),
        Command(200, {}, b'{"groupName":"g","retryQueueNums":1}'),
        Command(17, remark="no such topic", flag=1),
        *[Command(code, dict.fromkeys(kind.__struct_encode_fields__, "1")) for code, kind in REQUESTS.items()],
    ]
    sign(commands[0], "ak", "sk")
    frames = []
    for number, command in enumerate(commands):
        command.opaque, command.binary = number, False
        frames.append(encode(command))
        command.binary = True
        frames.append(encode(command))
    mixed = b'{"code":11,"opaque":1,"extFields":{"queueId":0,"topic":"T","subVersion":1.50,"x":null,"y":{"z":[true]}}}'
    return [*frames, (len(mixed) + 4).to_bytes(4, "big") + len(mixed).to_bytes(4, "big") + mixed]


def take_in(pieces: list[bytes]) -> int:
    """Does with bytes from the network what a broker does. Returns how many commands were among them."""
    reader, commands = FrameReader(limit=LIMIT), []
    try:
        for piece in pieces:
            commands += reader.feed(piece)
    except BadFrame:
        return 0
    for command in commands:
        look_at(command)
    return len(commands)


def look_at(command: Command) -> None:
    kinds = [kind for kind in (REQUESTS.get(command.code), REPLIES.get(command.code)) if kind is not None]
    for kind in kinds:
        attempt(command.read, kind)  # straight from JSON, where it is JSON
    attempt(getattr, command, "ext")
    for kind in kinds:
        attempt(command.read, kind)
    attempt(is_signed_with, command, "sk")
    attempt(lambda: encode(command.reply(0, command.remark, command.ext)))
    if command.body:
        attempt(lambda: BODIES.get(command.code, HeartbeatData).from_bytes(command.body).to_bytes())
        attempt(decode_config, TopicConfigs, command.body)
        attempt(decode_config, SubscriptionGroup, command.body)
        attempt(RegisterBrokerBody.from_bytes, command.body, command.code == RequestCode.REGISTER_BROKER)
        attempt(inflate, command.body, "zlib", LIMIT)
    repr(command)


def attempt(do: Callable[..., object], *arguments: object) -> None:
    """Whatever comes out but BadRequest fails the test."""
    with suppress(BadRequest):
        do(*arguments)


def hot_seeds() -> list[bytes]:
    """Good frames of what touches every message, in both serialisations and as JSON of other kinds."""
    place: dict[str, str] = {"consumerGroup": "g", "topic": "T", "queueId": "1"}
    pull = {"queueOffset": "7", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "3", "suspendTimeoutMillis": "1"}
    commands = [
        Command(310, write(SEND), b"body" * 20),
        Command(310, {**write(SEND), "i": "WAIT\x01true\x02KEYS\x01\u20ac", "m": "false"}, b"", flag=2),
        Command(10, {name: str(getattr(SEND, field)) for field, name in LONG_NAMES.items()}, b"x"),
        Command(
            320, {**write(SEND), "m": "true", "i": ""}, encode_batch_body([(0, b"x", b"TAGS\x01A"), (1, b"y" * 9, b"")])
        ),
        Command(11, {**place, **pull, "subVersion": "1", "subscription": "*", "expressionType": "TAG"}),
        Command(361, {**place, **pull, "subVersion": "1", "sysFlag": "1"}),
        Command(15, {**place, "commitOffset": "12"}),
        Command(14, {**place, "setZeroIfNotFound": "true"}),
    ]
    frames = []
    for number, command in enumerate(commands):
        for binary in (False, True):
            command.opaque, command.binary = number, binary
            frames.append(encode(command))
    numbers = {**write(SEND), "d": 4, "e": 0, "f": 0, "g": 1, "h": -5, "k": True, "zz": None}
    for document in ({"code": 310, "opaque": 5, "extFields": numbers}, {"code": 310, "flag": 0, "extFields": numbers}):
        head = json.dumps(document, indent=1 if "flag" in document else None).encode()
        frames.append((len(head) + 4).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head)
    return frames


GOOD = seeds()
HOT = hot_seeds()
TOKENS = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b'"',
        b"\\",
        b"\\ud83d",
        b"\\u0000",
        b"null",
        b"true",
        b"NaN",
        b"-",
        b"1e999",
    ),
    *(b"\x00", b"\xff", b"\xc3", b"\x78\x9c", b"[" * 300, b'{"a":' * 100, b"9" * 400, b"-9223372036854775809", b"0x10"),
    *(b'"code":', b'"extFields":', b'"flag":3', b'"opaque":', b'{"queueId":0}:', b"0:", b"\x7f\xff\xff\xff"),
]


def mutated(chance: random.Random) -> list[bytes]:
    """A good frame or two, hurt in a few places, in a few pieces."""
    return mutated_of(chance, GOOD)


def mutated_of(chance: random.Random, good: list[bytes]) -> list[bytes]:
    data = bytearray(b"".join(chance.choices(good, k=chance.choice((1, 1, 2)))))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4, 8))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                data[at:at] = chance.choice(TOKENS)
            case 2:
                data[at : at + chance.randrange(1, 9)] = b""
            case 3:
                data[at : at + 1] = chance.choice(TOKENS)
            case 4:
                data[at:at] = data[at : at + chance.randrange(1, 40)]
            case _:
                data[at : at + 4] = chance.choice((0, 1, 3, 2**31 - 1, 2**31, 2**32 - 1, len(data))).to_bytes(4, "big")
    if chance.random() < 0.7:  # lengths that fit again, so that the damage gets past them
        header = min(int.from_bytes(data[5:8], "big"), max(len(data) - 8, 0))
        data[0:4] = max(len(data) - 4, 0).to_bytes(4, "big")
        data[5:8] = header.to_bytes(3, "big")
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 5))))
    return [bytes(data[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def torment(inputs: int) -> None:
    chance, before, commands = random.Random(chosen_seed()), peak_memory(), 0
    for number in range(inputs):
        pieces = mutated(chance)
        try:
            commands += take_in(pieces)
        except BaseException:
            print(f"input {number}: {pieces!r}")
            raise
        tell_progress("mutated frames", number + 1, inputs, 50_000)
    assert commands > inputs // 20  # enough got past the frames for the rest to be tried
    is_sanitized = "libasan" in os.environ.get("LD_PRELOAD", "")  # AddressSanitizer keeps what was freed
    assert is_sanitized or peak_memory() - before < 64 << 20


@pytest.fixture(scope="module", params=[-1, 1 << 40], ids=["at once", "replies wait"])
def path(request: pytest.FixtureRequest) -> Any:
    """The compiled request path, which must read each frame that it serves as the commands above are read."""
    if "compiled" not in TWINS:
        pytest.skip("there are no compiled kernels")
    from support.request_paths import CheckedPath

    return CheckedPath(frame_bytes=LIMIT, room=request.param)


def torment_path(path: Any, inputs: int) -> None:
    """Serves good and mutated frames; goes on behind each one that the path leaves."""
    chance, before, served = random.Random(chosen_seed()), peak_memory(), 0
    for number in range(inputs):
        data, at = b"".join(mutated_of(chance, HOT)), 0
        try:
            while at < len(data):
                at, stop, replies = path.serve(data, at)
                served += bool(replies)
                if stop == at:
                    break
                at = stop
        except BaseException:
            print(f"input {number}: {data!r}")
            raise
        tell_progress("frames for the request path", number + 1, inputs, 50_000)
    assert served > inputs // 10
    assert peak_memory() - before < 64 << 20


def test_the_request_path_serves_mutated_frames_as_they_are_read_or_leaves_them(path: Any) -> None:
    torment_path(path, 10_000)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_a_million_mutated_frames_for_the_request_path(path: Any) -> None:
    torment_path(path, int(os.environ.get("PENSTOCK_FRAMES", "1000000")))


def test_good_frames_are_taken_in() -> None:
    assert [take_in([frame]) for frame in GOOD] == [1] * len(GOOD)


def test_mutated_frames_are_refused_in_a_sentence_or_taken_in() -> None:
    torment(20_000)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_a_million_mutated_frames() -> None:
    torment(int(os.environ.get("PENSTOCK_FRAMES", "1000000")))


@given(st.lists(st.binary(max_size=64), max_size=6))
def test_any_bytes_at_all(pieces: list[bytes]) -> None:
    take_in(pieces)


@given(st.binary(max_size=120), st.binary(max_size=60), st.sampled_from([0, 0, 1]))
def test_any_header_in_a_frame_that_fits(header: bytes, body: bytes, kind: int) -> None:
    total = 4 + len(header) + len(body)
    take_in([total.to_bytes(4, "big") + bytes([kind]) + len(header).to_bytes(3, "big") + header + body])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["code", "opaque", "flag", "language", "version", "remark", "extFields", "more"])


@given(
    st.dictionaries(names, json_values, max_size=7),
    st.sampled_from(sorted(REQUESTS)),
    st.dictionaries(st.sampled_from(["topic", "queueId", "a", "b", "e", "g", "offset", "group"]), json_values),
    json_values,
)
def test_any_json_as_header_arguments_and_body(
    header: dict[str, object], code: RequestCode, ext: dict[str, object], body: object
) -> None:
    usual = {"code": code, "opaque": 1, "extFields": ext}
    for document in ({**usual, **header}, usual):
        head, rest = json.dumps(document).encode(), json.dumps(body).encode()
        total = 4 + len(head) + len(rest)
        take_in([total.to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + rest])
