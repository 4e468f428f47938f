"""Every act of an administrator is logged, done or refused, and nothing that only reads."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, ok

from penstock.protocol.codes import RequestCode

if TYPE_CHECKING:
    from broker.conftest import Run

ACTS = {
    "create topic",
    "delete topic",
    "update group",
    "delete group",
    "reset offsets",
    "clone offsets",
    "consume directly",
    "clean queues",
    "clean topics",
    "delete expired",
    "change settings",
    "update account",
    "delete account",
    "white addresses",
    "resume check",
}
READS = (
    "all",
    "show",
    "topic",
    "group",
    "system",
    "consumer",
    "producer",
    "running",
    "runtime",
    "broker",
    "replication",
)
OTHERS = {"accounts version", "correct offsets", "delay offsets", "follow", "queue units", "time span"}


def test_each_operation_of_administrators_acts_or_reads(home: BrokerHome, run: Run) -> None:
    """A new operation has to be put on one side or the other."""

    async def check() -> None:
        async with home.running() as broker:
            operations = [each for each in broker.broker.core.operations if each.is_administration]
            assert {each.name for each in operations if each.changes} == ACTS
            rest = {each.name for each in operations} - ACTS - OTHERS
            assert [name for name in rest if not name.startswith(READS)] == []
            assert not any(each.changes for each in broker.broker.core.operations if not each.is_administration)

    run(check())


def test_what_was_done_and_what_was_refused_is_logged(
    home: BrokerHome, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> str:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            caplog.clear()
            with caplog.at_level(logging.INFO, "penstock.broker"):
                ok(await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO))
                ok(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"longPollingEnable=false\n"))
                await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"noSuchSetting=1\n")
                ok(await client.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE))
                reset = {"topic": "orders", "group": "g", "timestamp": -1, "isForce": True}
                await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
            host, port = client.connection.local
            return f"{host}:{port}"

    who = run(check())
    acts = [line for line in caplog.messages if line.startswith("administration")]
    assert acts[0] == f"administration: change settings longPollingEnable=false by={who}"
    assert acts[1].startswith(f"administration refused: change settings noSuchSetting=1 by={who}: unknown setting")
    assert acts[2] == f"administration: clean queues by={who}"
    assert acts[3].startswith("administration refused: reset offsets topic=orders, group=g, timestamp=-1")
    assert "group 'g' has consumed nothing" in acts[3]
    assert len(acts) == 4
