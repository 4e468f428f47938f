"""Wrong arguments are refused where they are given, with a sentence that says what to write instead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import (
    ClientConfig,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    Sql92,
)
from penstock.client.client_instance import ClientInstance
from penstock.errors import BadMessage, BadRequest, BadSettings
from penstock.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.conftest import Run

    from penstock.testing import LocalBroker


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"body": "text"}, r"must be bytes, not str; use text.encode\(\)"),
        ({"body": {"order": 7}}, r"must be bytes, not dict; use json.dumps\(value\).encode\(\)"),
        ({"body": None}, "must be bytes, not NoneType"),
        ({"topic": 7}, "a topic must be text, not int"),
        ({"properties": {"amount": 7}}, r"property 'amount' has the value 7; both must be text, so write str\(...\)"),
        ({"properties": {7: "x"}}, "property 7 has the value 'x'"),
        ({"properties": ["amount"]}, "`properties` must map names to texts, not be list"),
        ({"keys": [7]}, r"`keys` must be texts; found \[7\]"),
        ({"tags": 7}, "`tags` must be text, not int"),
        ({"sharding_key": 7}, "`sharding_key` must be text, not int"),
        ({"delay_level": 77}, r"there is no delay level 77; levels are 0 \(none\) to 18"),
        ({"delay_level": -1}, "there is no delay level -1"),
        ({"delay_level": "3"}, "there is no delay level '3'"),
        ({"flag": 2**31}, "`flag` must be an integer of 32 bits"),
    ],
)
def test_a_message_refuses_what_cannot_be_sent(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadMessage, match=sentence):
        Message(**{"topic": "orders", "body": b"x", **arguments})


def test_a_body_of_another_kind_of_bytes_is_copied() -> None:
    body = bytearray(b"two shirts")
    message = Message("orders", body)
    body[:3] = b"six"
    assert message.body == b"two shirts"
    assert Message("orders", memoryview(b"two shirts")[4:]).body == b"shirts"


def ignore(message: object) -> None:
    """Consumes."""


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Producer(""), "a group must be a name, such as 'warehouse', not ''"),
        (lambda: Producer("my group"), "not a valid group name: 'my group'"),
        (lambda: Producer(7), "a group must be a name"),  # type: ignore[arg-type]
        (lambda: PullConsumer("a.b"), "not a valid group name: 'a.b'"),
        (lambda: PullConsumer("CID", max_messages=0), "`max_messages` of a pull consumer must be at least 1"),
        (lambda: PushConsumer("x" * 121, ignore), "not a valid group name"),
        (lambda: PushConsumer("CID", "handle"), "must be a function, not 'handle'"),  # type: ignore[arg-type]
        (lambda: PushConsumer("CID", ignore, subscriptions={"a b": "*"}), "cannot subscribe: the topic 'a b' holds"),
        (lambda: PushConsumer("CID", ignore, subscriptions={"T": None}), "the filter of topic 'T' is None"),  # type: ignore[dict-item]
        (lambda: PushConsumer("CID", ignore, subscriptions={"T": " || "}), "names no tag"),
        (
            lambda: PushConsumer("CID", ignore, subscriptions={"T": Sql92(" ")}),
            "the SQL92 filter of topic 'T' is empty",
        ),
    ],
)
def test_a_client_refuses_what_no_broker_accepts(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(BadSettings, match=sentence):
        make()


@pytest.mark.parametrize("expression", ["price > 10", "paid | refunded", "paid or refunded", "paid, refunded", "a = 1"])
def test_a_condition_or_a_list_that_is_written_as_tags_is_refused(expression: str) -> None:
    with pytest.raises(BadSettings, match=r"lists no tags; write 'A \|\| B' for several tags, and Sql92\(...\)"):
        PushConsumer("CID", ignore, subscriptions={"T": expression})


@pytest.mark.parametrize(
    "expression", ["*", "paid", "paid||refunded", "a || b || c", "a|b", "for sale", Sql92("a > 1")]
)
def test_tags_and_conditions_are_accepted(expression: str) -> None:
    PushConsumer("CID", ignore, subscriptions={"T": expression})


def test_a_frame_that_cannot_be_written_fails_alone(run: Run, b: LocalBroker) -> None:
    """Beside requests of the same flush: none of the others may notice."""

    async def main() -> None:
        instance = ClientInstance(ClientConfig(b.namesrv))
        body: Any = "not bytes"
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        bad = [instance.request(b.address, code, body=body)]
        good = [instance.request(b.address, code) for _ in range(10)]
        (failed, *answered) = await asyncio.gather(*bad, *good, return_exceptions=True)
        await instance.close()
        assert isinstance(failed, BadRequest)
        assert "the body of a command must be bytes, not str" in str(failed)
        assert all(not isinstance(reply, BaseException) for reply in answered)

    run(main())
