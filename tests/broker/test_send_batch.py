"""Batches: several messages in one body, stored together or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, ok, records, send_arguments

from penstock.broker.remoting import compiled_requests
from penstock.format.batch import encode_batch_body
from penstock.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from broker.conftest import Run

EMPTY = encode_batch_body([(0, b"", b"")])
ITEMS = [(b"one", "TAGS\x01a"), (b"two", "TAGS\x01b\x02KEYS\x01k"), (b"three", "")]


def test_each_message_of_a_batch_is_a_record_of_its_own(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders", b"zero"))
            reply = ok(await client.send_batch("orders", ITEMS, properties="WAIT\x01true\x02colour\x01blue"))
            found = records(await client.pull("orders"))
            assert [record.body for record in found] == [b"zero", b"one", b"two", b"three"]
            assert [record.queue_offset for record in found] == [0, 1, 2, 3]
            common = {"colour": "blue", "CLUSTER": "DefaultCluster"}
            assert [record.properties for record in found[1:]] == [
                {"TAGS": "a", **common},
                {"TAGS": "b", "KEYS": "k", **common},
                common,
            ]
            assert reply.ext["queueOffset"] == "1"
            assert reply.ext["msgId"].split(",") == [record.msg_id for record in found[1:]]

    run(check())


@pytest.mark.parametrize("flag", ["1", "true", "TRUE"])
def test_the_flag_and_not_the_code_says_that_it_is_a_batch(home: BrokerHome, run: Run, flag: str) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            body = encode_batch_body([(0, b"one", b""), (5, b"two", b"")])
            arguments = send_arguments("orders", batch=flag)
            ok(await client.ask(RequestCode.SEND_MESSAGE, body, **arguments))
            assert [(record.body, record.flag) for record in records(await client.pull("orders"))] == [
                (b"one", 0),
                (b"two", 5),
            ]

    run(check())


def test_a_batch_code_without_the_flag_is_one_message(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send_batch("orders", ITEMS, batch=False))
            (record,) = records(await client.pull("orders"))
            assert b"three" in record.body

    run(check())


@pytest.mark.parametrize(
    ("body", "changes", "words"),
    [
        (b"", {}, "empty"),
        (b"\0\0\0\x05ab", {}, "middle of a message"),
        (encode_batch_body([(0, b"x", b"")])[:-1] + b"\x09", {}, "does not fit"),
        (encode_batch_body([(0, b"x", b"DELAY\x013")]), {}, "neither transactional nor delayed"),
        (encode_batch_body([(0, b"x", b"TRAN_MSG\x01true")]), {}, "neither transactional nor delayed"),
        (encode_batch_body([(0, b"x", b"")]), {"properties": "DELAY\x013"}, "delayed"),
        (encode_batch_body([(0, b"x", b"")]), {"topic": "%RETRY%CID"}, "retry"),
        (encode_batch_body([(0, bytes(300_000), b"")] * 2), {}, "maxMessageSize"),
    ],
)
def test_a_batch_that_may_not_be_stored_is_refused_whole(
    home: BrokerHome, run: Run, body: bytes, changes: dict[str, str], words: str
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            arguments = {**send_arguments("orders", batch=True), **changes}
            reply = await client.ask(RequestCode.SEND_MESSAGE, body, **arguments)
            assert reply.code == ResponseCode.MESSAGE_ILLEGAL
            assert words in (reply.remark or "")
            assert reply.ext["MSG_REGION"] == "DefaultRegion"
            assert broker.store.log.max_offset == 0

    run(check())


LARGE = {"max_message_size": 4 << 20, "mapped_file_size_commit_log": 64 << 20}


@pytest.mark.parametrize("requests", ["compiled", "general"])
@pytest.mark.parametrize(("host", "most"), [("127.0.0.1", 31_278), ("::1", 18_108)])
def test_a_batch_whose_acknowledgement_would_not_fit_a_frame_is_refused_before_it_is_stored(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch, requests: str, host: str, most: int
) -> None:
    monkeypatch.setenv(compiled_requests.VARIABLE, requests)

    async def check() -> None:
        async with home.running(store={**LARGE, "broker_ip1": host}) as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            for properties in ("", "DELAY\x010"):
                reply = await client.send_batch("orders", [(b"", properties)] * (most + 1))
                assert reply.code == ResponseCode.MESSAGE_ILLEGAL
                assert reply.remark == f"a batch has more than {most} messages, whose ids do not fit into one reply"
            client.tell(RequestCode.SEND_MESSAGE, EMPTY * (most + 1), **send_arguments("orders", batch=True))
            reply = ok(await client.send_batch("orders", [(b"", "")] * most))
            assert reply.ext["queueOffset"] == "1"
            assert reply.ext["msgId"].count(",") == most - 1

    run(check())


def test_a_one_way_batch_is_stored(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            body = encode_batch_body([(0, b"one", b""), (0, b"two", b"")])
            client.tell(RequestCode.SEND_MESSAGE, body, **send_arguments("orders", batch=True))
            assert ok(await client.send("orders")).ext["queueOffset"] == "2"

    run(check())
