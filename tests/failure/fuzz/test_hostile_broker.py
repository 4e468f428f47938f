"""Hostile peers of a real `penstock serve`: they get an error or are closed, memory stays bounded, others are served.

One process serves all tests here, with its name server; each test runs beside a client that sends and consumes all the
while. When all are done, the process ends cleanly, and its log tells of no failure that nobody foresaw.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
import zlib
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from failure.fuzz.neighbour import DECOY, Memory, Neighbour, both, broker_of, names_of, with_client
from support.brokers import RawClient, Served, bodies, ok, pull_arguments, send_arguments
from support.loopback import SOON_S, Raw

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.frame import MAX_FRAME, encode
from penstock.remoting.connection import Address
from penstock.remoting.event_loop import run

pytestmark = pytest.mark.usefixtures("neighbour")

MIB = 1 << 20
LONG = "x" * 300
ESCAPES = ["../escape", "a/escape", "/escape", "..", ".", "escape\x00", LONG, "", "esc ape", "escape\n", "\uff45scape"]


def question() -> bytes:
    """A request that both servers answer, each in its way: with a code, and without a body."""
    return encode(Command(RequestCode.GET_KV_CONFIG, {"namespace": "n", "key": "k"}, opaque=1))


# -- frames ---------------------------------------------------------------------------------------------------


def test_what_is_no_frame_closes_its_connection(served: Served) -> None:
    header = b'{"code":105,"opaque":1,"extFields":{"topic":"x"}}'
    cut = struct.pack(">II", 4 + len(header), len(header)) + header[:20]
    rubbish = [
        bytes(64),
        struct.pack(">II", 0x7FFFFFFF, 0),
        struct.pack(">II", MAX_FRAME + MIB, 10) + b"{" * 1000,
        struct.pack(">II", 10, 0xFFFFFF) + bytes(20),
        struct.pack(">II", 14, 10 | 9 << 24) + bytes(10),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
        bytes(range(256)) * 64,
    ]

    async def attack(address: Address) -> None:
        for data in rubbish:
            for before in (b"", question()):
                async with await Raw.open(address) as raw:
                    if before:
                        raw.send(before)
                        await raw.replies(1)
                    raw.send(data)
                    assert await raw.until_closed() == b"", data[:20]
        async with await Raw.open(address) as raw:
            raw.send(cut)
            raw.end_sending()
            assert await raw.until_closed() == b""

    for address in both(served):
        run(attack(address))


def test_unknown_codes_are_said_to_be_unknown(served: Served) -> None:
    async def ask(client: RawClient) -> None:
        for code in (-1, 0, 5, 999, 32767, 200_050, 2**31 - 1):
            reply = await client.ask(code, b"\xff" * 1000, topic="x")
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert str(code) in (reply.remark or "")

    for address in both(served):
        with_client(address, ask)


def test_the_largest_frame_is_answered_and_its_message_refused(served: Served) -> None:
    async def send(client: RawClient) -> None:
        reply = await client.send("orders", bytes(MAX_FRAME - 64 * 1024))
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        ok(await client.send("orders", b"small"))

    with_client(broker_of(served), send)


def test_frames_that_do_not_end_have_a_limit_together(served: Served) -> None:
    """32 peers announce and send 12 MiB each, and stop before the end: 384 MiB, of which 256 are taken."""
    memory = Memory(served.pid)

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(await Raw.open(broker_of(served))) for _ in range(32)]
            piece = struct.pack(">II", 13 * MIB, 100) + bytes(12 * MIB)
            closed = [asyncio.ensure_future(raw.until_closed()) for raw in peers]
            for raw in peers:
                raw.send(piece)
            done, others = await asyncio.wait(closed, timeout=SOON_S, return_when="FIRST_COMPLETED")
            assert done
            for task in others:
                task.cancel()

    run(attack())
    assert memory.peak < 256 + 300


# -- names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ESCAPES, ids=lambda name: ascii(name[:20]))
def test_a_name_that_is_none_is_refused_and_makes_no_file(served: Served, name: str) -> None:
    heartbeat = {
        "clientID": "c",
        "consumerDataSet": [
            {"groupName": name, "consumeType": 1, "messageModel": 1, "consumeFromWhere": 0, "subscriptionDataSet": []}
        ],
    }
    template = {"defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    new_topic = {**template, "topicFilterType": "SINGLE_TAG", "order": False}
    a_group = {"topic": "neighbour", "queueId": 0, "commitOffset": 1}

    async def ask(client: RawClient) -> None:
        replies = [
            await client.ask(RequestCode.SEND_MESSAGE, b"x", **send_arguments(name)),
            await client.send(name),
            await client.send(f"%RETRY%{name}"),
            await client.send_batch(name, [(b"x", "")]),
            await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic=name, **new_topic),
            await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **a_group, consumerGroup=name),
            await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **{**a_group, "topic": name}, consumerGroup="g"),
            await client.ask(RequestCode.HEART_BEAT, json.dumps(heartbeat).encode()),
            await client.pull(name),
            await client.pull("neighbour", consumerGroup=name),
            await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group=name, delayLevel=0),
            await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps({"groupName": name}).encode()),
        ]
        for number, reply in enumerate(replies):
            assert reply.code != ResponseCode.SUCCESS, number
            assert reply.remark, number
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)
        await client.ask(RequestCode.CLEAN_UNUSED_TOPIC)

    before = outside(served)
    with_client(broker_of(served), ask)
    assert outside(served) == before
    assert (served.folder / DECOY).read_text() == "not a queue"
    made = {path for path in home_of(served).rglob("*") if "scape" in path.name or LONG[:128] in path.name}
    assert made == {(served.folder / DECOY).parent}


def home_of(served: Served) -> Path:
    return served.folder.parent.parent


def outside(served: Served) -> list[Path]:
    """All files near the store that are not in it, and the folders of the store itself."""
    return sorted([*home_of(served).glob("*"), *served.folder.parent.glob("*"), *served.folder.glob("*")])


# -- compressed bombs -----------------------------------------------------------------------------------------


def bomb() -> bytes:
    """480 MiB of zeros in less than half a one, made of one piece that is repeated."""
    packer = zlib.compressobj(9, wbits=-15)
    piece = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    check = struct.pack(">HH", 480 * MIB % 65521, 1)
    return b"\x78\xda" + piece * 480 + packer.flush() + check


def test_a_compressed_bomb_is_stored_and_served_as_it_came(served: Served) -> None:
    """Nobody here may inflate it, whatever it says it is."""
    body, memory = bomb(), Memory(served.pid)
    peak = memory.peak

    async def attack(client: RawClient) -> None:
        for offset, flag in enumerate((0x1, 0x101, 0x201, 0x301, 0x701)):
            sent = ok(await client.send("bombs", body, sysFlag=flag, properties={"KEYS": "bomb"}))
            assert bodies(await client.hold("bombs", offset)) == [body]
            seen = ok(
                await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=int(sent.ext["msgId"][16:], 16), topic="bombs")
            )
            assert len(seen.body) < len(body) + 1000
        arguments = {"topic": "bombs", "key": "bomb", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**62}
        found = ok(await client.ask(RequestCode.QUERY_MESSAGE, **arguments))
        assert len(found.body) < 5 * (len(body) + 1000)

    with_client(broker_of(served), attack)
    assert memory.peak - peak < 128


def test_a_registration_that_inflates_without_end_is_refused(served: Served) -> None:
    body, memory = bomb(), Memory(served.pid)
    peak = memory.peak
    broker = {"brokerName": "bomb", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": "", "brokerId": 0}

    async def attack(client: RawClient) -> None:
        reply = await client.ask(RequestCode.REGISTER_BROKER, body, **broker, compressed=True, bodyCrc32=0)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "inflates to more than" in (reply.remark or "")
        clusters = ok(await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO))
        assert b"bomb" not in bytes(clusters.body)

    with_client(names_of(served), attack)
    assert memory.peak - peak < 200


# -- connections ----------------------------------------------------------------------------------------------


def test_two_thousand_clients_are_served_at_once(served: Served, neighbour: Neighbour) -> None:
    many = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < many + 512:
        pytest.skip(f"the system allows {hard} open files only")
    if soft < many + 512:
        resource.setrlimit(resource.RLIMIT_NOFILE, (many + 512, hard))
    memory = Memory(served.pid)
    before = memory.own

    async def attack() -> None:
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(await Raw.open(broker_of(served))) for _ in range(many)]
            for raw in peers:
                raw.send(encode(Command(RequestCode.GET_MAX_OFFSET, {"topic": "neighbour", "queueId": "0"}, opaque=3)))
            for raw in peers:
                [reply] = await raw.replies(1)
                assert reply.code == ResponseCode.SUCCESS
            await asyncio.to_thread(neighbour.rounds, 3)
            assert memory.own - before < 100

    run(attack())


def test_peers_that_vanish_in_the_middle_of_a_request_leave_nothing(served: Served, neighbour: Neighbour) -> None:
    """Reset, or closed for writing, with half a frame sent or a pull held."""
    held = pull_arguments("neighbour", 0) | {"queueId": 1, "sysFlag": 6, "suspendTimeoutMillis": 30_000}
    whole = encode(Command(RequestCode.PULL_MESSAGE, {name: str(value) for name, value in held.items()}, opaque=4))
    reset_at_once = struct.pack("ii", 1, 0)
    for number in range(300):
        with socket.create_connection(broker_of(served), SOON_S) as peer:
            peer.sendall((whole, whole[:9], whole[:-1], whole * 20)[number % 4])
            if number % 3 == 0:
                peer.shutdown(socket.SHUT_WR)
            else:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_at_once)
    neighbour.rounds(5)
    descriptors = Path(f"/proc/{served.pid}/fd")
    for _ in range(3000):
        if len([each for each in descriptors.iterdir() if each.readlink().name.startswith("socket:")]) < 20:
            return
        neighbour.rounds(1)
    pytest.fail("connections of peers that are gone are still open")


def test_peers_that_are_silent_or_slow_are_closed_in_the_end(tmp_path: Path) -> None:
    """Half-open connections look like this: no byte comes any more, and no end."""
    with Served(tmp_path / "store", "serverChannelMaxIdleTimeSeconds=1") as impatient:

        async def attack() -> None:
            halves = [b"", question()[:3], question()[:20], question(), question() + question()[:10]]
            async with AsyncExitStack() as stack:
                peers = [await stack.enter_async_context(await Raw.open(broker_of(impatient))) for _ in halves]
                for raw, data in zip(peers, halves, strict=True):
                    raw.send(data)
                for raw in peers:
                    await raw.until_closed()

        with Neighbour(impatient):
            run(attack())
        assert "it sent nothing for 1" in impatient.said
