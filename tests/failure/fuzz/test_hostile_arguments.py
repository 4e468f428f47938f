"""Arguments and bodies that no client should send, to every request of a real `penstock serve`: an answer each time.

Whatever is asked, the connection stays usable, and a client beside it is served all the while.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator

import msgspec
import pytest
from failure.fuzz.neighbour import both, broker_of, names_of, raw_peers, with_client
from support.brokers import RawClient, Served, ok

from penstock.format.constants import Int32
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import REQUESTS
from penstock.remoting.connection import Address, connect
from penstock.remoting.event_loop import run

pytestmark = pytest.mark.usefixtures("neighbour")

TO_CLIENTS = {39, 40, 220, 221, 326}
NOT_SPOKEN = {50, 51, 53}


def sound(field: msgspec.structs.FieldInfo) -> str:
    return "nowhere" if is_text(field) else "0"


def is_text(field: msgspec.structs.FieldInfo) -> bool:
    return field.type is str or field.type == (str | None)


def is_flag(field: msgspec.structs.FieldInfo) -> bool:
    return field.type is bool or field.type == (bool | None)


def bounds(field: msgspec.structs.FieldInfo) -> tuple[int, int]:
    size = 31 if field.type in (Int32, Int32 | None) else 63
    return -(2**size), 2**size - 1


def spoken(served: Served) -> Iterator[tuple[Address, RequestCode, list[msgspec.structs.FieldInfo]]]:
    """(where, code, arguments) of every request with arguments that one of the two servers answers."""
    for code, kind in sorted(REQUESTS.items()):
        if code in TO_CLIENTS | NOT_SPOKEN:
            continue
        names = kind.__module__.endswith(".namesrv")
        yield (names_of(served) if names else broker_of(served)), code, list(msgspec.structs.fields(kind))


def spoilt(fields: list[msgspec.structs.FieldInfo]) -> Iterator[tuple[str, dict[str, str]]]:
    """(name, arguments) with one argument missing, or no number where one belongs."""
    whole = {field.encode_name: sound(field) for field in fields}
    for field in fields:
        name = field.encode_name
        if field.required:
            yield name, {other: value for other, value in whole.items() if other != name}
        if not is_text(field):
            for wrong in ("many", "1.5", "0x10", "9" * 30, "[]", "1\x00", "\u0663"):
                yield name, whole | {name: wrong}


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_arguments_that_are_missing_or_of_a_wrong_type_are_named(served: Served, binary: bool) -> None:
    checked = 0

    async def attack() -> None:
        nonlocal checked
        async with raw_peers(served) as peers:
            for address, code, fields in spoken(served):
                for name, ext in spoilt(fields):
                    checked += 1
                    reply = await peers[address].ask(Command(code, ext, opaque=checked, binary=binary))
                    assert (reply.code, reply.opaque) == (ResponseCode.SYSTEM_ERROR, checked), (code, ext, reply.remark)
                    assert f"'{name}'" in (reply.remark or ""), (code, ext, reply.remark)

    run(attack())
    assert checked > 500


def test_json_within_an_argument_is_its_text_and_names_nothing(served: Served) -> None:
    async def attack() -> None:
        async with raw_peers(served) as peers:
            for address, code, fields in spoken(served):
                for field in fields:
                    for value in ([1], {"a": "b"}, [[]] * 500):
                        ext = {each.encode_name: sound(each) for each in fields} | {field.encode_name: value}
                        header = json.dumps({"code": code, "opaque": 7, "extFields": ext}).encode()
                        peers[address].send(struct.pack(">II", 4 + len(header), len(header)) + header)
                        [reply] = await peers[address].replies(1)
                        assert reply.opaque == 7
                        assert "unexpectedly" not in (reply.remark or ""), (code, ext)
                        if not is_text(field):
                            assert reply.code == ResponseCode.SYSTEM_ERROR, (code, ext)
            for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
                tables = json.loads(bytes((await peers[broker_of(served)].ask(Command(code))).body))
                names = {name for table in tables.values() for name in table}
                assert not [name for name in names if name.startswith(("[", "{"))]

    run(attack())


def test_numbers_at_their_ends_are_answered(served: Served) -> None:
    """For a topic and a group that there are: none may count to the end, or wait for it."""

    async def attack() -> None:
        clients = {address: RawClient(await connect(address), asyncio.Queue()) for address in both(served)}
        ok(await clients[broker_of(served)].send("known", properties={"KEYS": "known"}))
        ok(await clients[broker_of(served)].heartbeat("known", consumes={"known": {"known": "*"}}))
        for address, code, fields in spoken(served):
            usual = {each.encode_name: "known" if is_text(each) else "1" for each in fields}
            for field in fields:
                if is_text(field) or is_flag(field) or code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                    continue
                low, high = bounds(field)
                for number in (low, low + 1, -1, 0, high - 1, high):
                    reply = await clients[address].ask(code, b"body", **usual | {field.encode_name: number})
                    assert "unexpectedly" not in (reply.remark or ""), (code, field.encode_name, number)
                    assert len(reply.body) < 64 * 1024, (code, field.encode_name, number)
        for client in clients.values():
            client.close()

    run(attack())


def test_bodies_that_make_no_sense_are_refused(served: Served) -> None:
    garbage = [
        b"",
        b"\xff" * 500,
        b"[" * 50_000,
        b'{"consumerDataSet":' * 5000,
        b"{}",
        b"null",
        b"0" * 5000,
        bytes(5000),
    ]

    async def ask(client: RawClient) -> None:
        for code in RequestCode:
            kind = REQUESTS.get(code)
            ext = {} if kind is None else {each.encode_name: sound(each) for each in msgspec.structs.fields(kind)}
            for body in garbage:
                reply = await client.ask(code, body, **ext)
                assert "unexpectedly" not in (reply.remark or ""), (code, body[:20])

    for address in both(served):
        with_client(address, ask)
