"""Without access control, administration is for callers on this machine, and everything else is for everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, ok

from penstock.broker.access import NEEDS
from penstock.broker.operations_as_plain_calls import Client
from penstock.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from broker.conftest import Run

ELSEWHERE = "127.0.0.2"
ADMINISTRATION = {
    *(
        17,
        21,
        25,
        26,
        28,
        43,
        45,
        50,
        51,
        52,
        53,
        54,
        200,
        201,
        202,
        203,
        204,
        207,
        208,
        215,
        222,
        223,
        300,
        303,
        305,
        306,
        307,
        308,
        309,
    ),
    *(314, 315, 316, 317, 321, 323, 328, 329, 343, 345, 351, 352, 907, 30_901),
}
CLIENTS_OWN = {10, 11, 12, 14, 15, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41, 42, 46, 310, 320, 324, 325, 361}


def only_the_first_address(client: Client) -> bool:
    return client.peer[0] == "127.0.0.1"


def test_an_operation_has_a_rule_or_is_administration(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            own = {operation.name for operation in broker.broker.core.operations if not operation.is_administration}
            assert own == NEEDS.keys()

    run(check())


def test_every_administrative_request_is_refused_from_another_address(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(options={"local": only_the_first_address}) as broker:
            stranger = await broker.client(host=ELSEWHERE)
            before = dict(broker.state.topics.all()), dict(broker.state.groups.all()), broker.state.settings.now
            assert broker.broker.handlers.keys() == CLIENTS_OWN | ADMINISTRATION
            for code in sorted(ADMINISTRATION):
                reply = await stranger.ask(code, b'{"groupName":"g"}', topic="orders", group="g", msgId="")
                assert reply.code == ResponseCode.NO_PERMISSION, code
                assert ELSEWHERE in (reply.remark or "")
                assert reply.body == b""
            assert before == (
                dict(broker.state.topics.all()),
                dict(broker.state.groups.all()),
                broker.state.settings.now,
            )

    run(check())


def test_a_stranger_may_send_and_consume(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(options={"local": only_the_first_address}) as broker:
            stranger = await broker.client(host=ELSEWHERE)
            ok(await stranger.send("orders"))
            broker.store.catch_up()
            ok(await stranger.pull("orders"))
            ok(await stranger.heartbeat("me", consumes={"CID": {"orders": "*"}}))
            for code in sorted(CLIENTS_OWN):
                assert (await stranger.ask(code)).code != ResponseCode.NO_PERMISSION, code

    run(check())


@pytest.mark.parametrize("code", [RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_ALL_TOPIC_CONFIG])
def test_a_caller_on_this_machine_may_administer(home: BrokerHome, run: Run, code: RequestCode) -> None:
    async def check() -> None:
        async with home.running() as broker:
            ok(await (await broker.client()).ask(code))

    run(check())
