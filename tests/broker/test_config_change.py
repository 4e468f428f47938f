"""Settings over the network: some can be changed, all are shown, and no secret is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, ok

from penstock.broker.admin.runtime import CHANGEABLE
from penstock.broker.settings import TABLE
from penstock.config.properties import parse_properties
from penstock.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from broker.conftest import Run


def test_a_change_is_in_force_at_once_and_gone_after_a_restart(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            body = b"brokerPermission=4\nautoCreateTopicEnable=false\n"
            reply = ok(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body))
            assert "until the broker stops" in (reply.remark or "")
            assert (await client.send("orders")).code == ResponseCode.NO_PERMISSION
            assert not broker.state.settings.now.auto_create_topic_enable
        async with home.running() as broker:
            ok(await (await broker.client()).send("orders"))

    run(check())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("aclEnable=false", ResponseCode.NO_PERMISSION),
        ("aclFile=/etc/passwd", ResponseCode.NO_PERMISSION),
        ("storePathRootDir=/elsewhere", ResponseCode.NO_PERMISSION),
        ("messageStorePlugIn=some.Class", ResponseCode.NO_PERMISSION),
        ("namesrvAddr=10.0.0.1:9876", ResponseCode.NO_PERMISSION),
        ("registerBrokerFrom=any", ResponseCode.NO_PERMISSION),
        ("tls.server.keyPath=/key", ResponseCode.NO_PERMISSION),
        ("nonsense=1", ResponseCode.NO_PERMISSION),
        ("traceOn=false\nrocketmqHome=/x", ResponseCode.NO_PERMISSION),
        ("brokerPermission=99", ResponseCode.SYSTEM_ERROR),
        ("traceOn=perhaps", ResponseCode.SYSTEM_ERROR),
        ("traceOn=false\nmaxTopics=many", ResponseCode.SYSTEM_ERROR),
        ("traceOn=\\u00", ResponseCode.SYSTEM_ERROR),
        ("", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_change_that_is_refused_changes_nothing(home: BrokerHome, run: Run, text: str, code: ResponseCode) -> None:
    async def check() -> None:
        async with home.running() as broker:
            before = broker.state.settings.now
            reply = await (await broker.client()).ask(RequestCode.UPDATE_BROKER_CONFIG, text.encode())
            assert reply.code == code
            assert broker.state.settings.now == before

    run(check())


def test_nothing_that_can_be_changed_is_a_text_or_a_path() -> None:
    assert {TABLE.by_name[name].kind for name in CHANGEABLE} == {bool, int}


def test_all_settings_are_shown_and_no_secret(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        given = {"tls.server.keyPassword": "opensesame"}
        async with home.running(store={"broker": given}) as broker:
            client = await broker.client()
            ok(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxTopics=77"))
            reply = ok(await client.ask(RequestCode.GET_BROKER_CONFIG))
            shown = {entry.name: entry.value for entry in parse_properties(bytes(reply.body))}
            assert (shown["maxTopics"], shown["brokerName"]) == ("77", "broker-a")
            assert shown["flushDiskType"] == "ASYNC_FLUSH"
            assert shown["tls.server.keyPassword"] == "******"
            assert b"opensesame" not in bytes(reply.body)
            assert json.loads(reply.ext["version"])["counter"] == 1

    run(check())
