"""Settings over the network: some can be changed, all are shown, and no secret is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, RawClient, ok
from support.loopback import free_port

from penstock.broker.admin.config_change import CHANGEABLE
from penstock.broker.settings import TABLE
from penstock.config.java_properties import parse_properties
from penstock.format.config_tables import TopicConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.store import Settings
from penstock.store.retention.policy import RetentionLimits
from penstock.store.settings import TABLE as STORE_TABLE

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
        ("brokerRole=SLAVE", ResponseCode.NO_PERMISSION),
        ("flushDiskType=SYNC_FLUSH", ResponseCode.NO_PERMISSION),
        ("aclChangeEnable=true", ResponseCode.NO_PERMISSION),
        ("onMaster=touch /tmp/mine", ResponseCode.NO_PERMISSION),
        ("onSlave=touch /tmp/mine", ResponseCode.NO_PERMISSION),
        ("nonsense=1", ResponseCode.SYSTEM_ERROR),
        ("fileReservedTime=1\ndeleteWhen=25", ResponseCode.SYSTEM_ERROR),
        ("fileReservedTime=1\ntraceOn=perhaps", ResponseCode.SYSTEM_ERROR),
        ("traceOn=false\nfileReservedTime=-1", ResponseCode.SYSTEM_ERROR),
        ("traceOn=false\nmaxMessageSize=1073741824", ResponseCode.SYSTEM_ERROR),
        ("maxMessageSize=many", ResponseCode.SYSTEM_ERROR),
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
            before = broker.state.settings.now, broker.store.settings
            reply = await (await broker.client()).ask(RequestCode.UPDATE_BROKER_CONFIG, text.encode())
            assert reply.code == code
            assert (broker.state.settings.now, broker.store.settings) == before

    run(check())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fileReservdTime=1", "unknown setting 'fileReservdTime'; did you mean 'fileReservedTime'?"),
        ("q" * 9000 + "=1", f"unknown setting '{'q' * 127}'; no known setting has a similar name"),
        ("flushDiskType=SYNC_FLUSH", "flushDiskType cannot be changed while the broker runs; change broker.conf and"),
        ("waitTimeMillsInSendQueue=9", "waitTimeMillsInSendQueue cannot be changed while the broker runs"),
        ("deleteWhen=25", "setting deleteWhen is '25'; it must be hours of the day"),
        ("maxMessageSize=16000000", "while the broker runs it must be at most 15728640; restart the broker for more"),
    ],
)
def test_the_answer_says_what_is_wrong_with_a_setting(home: BrokerHome, run: Run, text: str, why: str) -> None:
    async def check() -> None:
        async with home.running() as broker:
            reply = await (await broker.client()).ask(RequestCode.UPDATE_BROKER_CONFIG, text.encode())
            assert why in (reply.remark or "")

    run(check())


def test_nothing_that_can_be_changed_is_a_path_an_address_or_a_name() -> None:
    settings = {name: TABLE.by_name.get(name) or STORE_TABLE.by_name[name] for name in CHANGEABLE}
    assert {name for name, setting in settings.items() if setting.kind not in (bool, int)} == {"deleteWhen"}


def test_retention_follows_a_change_at_once(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, CHANGES))
            retention = broker.store.retention
            assert retention is not None
            assert retention.limits == RetentionLimits.of(Settings.dev(**WANTED))
            shown = await settings_shown(client)
            assert (shown["fileReservedTime"], shown["deleteWhen"], shown["diskMaxUsedSpaceRatio"]) == (
                "5",
                "03;15",
                "60",
            )

    run(check())


CHANGES = b"fileReservedTime=5\ndeleteWhen=03;15\ndiskMaxUsedSpaceRatio=60\n"
WANTED = {"file_reserved_time": 5, "delete_when": "03;15", "disk_max_used_space_ratio": 60}


def test_the_largest_message_can_be_changed(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            body, batch = bytes(2000), [(bytes(2000), "")]
            ok(await client.send("orders", body))
            ok(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=1000"))
            assert (await client.send("orders", body)).code == ResponseCode.MESSAGE_ILLEGAL
            assert (await client.send_batch("orders", batch)).code == ResponseCode.MESSAGE_ILLEGAL
            ok(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=3000"))
            ok(await client.send("orders", body))
            ok(await client.send_batch("orders", batch))

    run(check())


def test_topics_follow_a_change(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, topics = await broker.client(), broker.state.topics
            assert topics.find("RMQ_SYS_TRACE_TOPIC") is None
            ok(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"defaultTopicQueueNums=3\ntraceTopicEnable=true"))
            assert topics.find("RMQ_SYS_TRACE_TOPIC") is not None
            ok(await client.send("orders"))
            made = topics.find("orders")
            assert made is not None
            assert (made.read_queue_nums, made.write_queue_nums) == (3, 3)
            template = TopicConfig(name="TBW102", read_queue_nums=5, write_queue_nums=5, perm=7)
            topics.update(template)
            ok(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"traceTopicEnable=false"))
            assert topics.find("RMQ_SYS_TRACE_TOPIC") is not None, "no messages are lost with it"
            assert topics.find("TBW102") == template, "another change leaves what an administrator has set"

    run(check())


def test_sends_create_topics_once_that_is_enabled(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(auto_create_topic_enable=False) as broker:
            client = await broker.client()
            assert (await client.send("orders")).code == ResponseCode.TOPIC_NOT_EXIST
            ok(
                await client.ask(
                    RequestCode.UPDATE_BROKER_CONFIG, b"autoCreateTopicEnable=true\ndefaultTopicQueueNums=3"
                )
            )
            ok(await client.send("orders"))
            made = broker.state.topics.find("orders")
            assert made is not None
            assert made.write_queue_nums == 3

    run(check())


def test_consumers_far_behind_are_sent_to_a_slave_once_that_is_enabled(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store={"access_message_in_memory_max_ratio": 0}) as broker:
            client = await broker.client()
            for _ in range(3):
                ok(await client.send("orders"))
            for change, suggested in ((b"", "0"), (b"slaveReadEnable=true", "1"), (b"slaveReadEnable=false", "0")):
                if change:
                    ok(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, change))
                page = ok(await client.pull("orders", maxMsgNums=1))
                assert page.ext["suggestWhichBrokerId"] == suggested

    run(check())


async def settings_shown(client: RawClient) -> dict[str, str]:
    reply = ok(await client.ask(RequestCode.GET_BROKER_CONFIG))
    return {entry.name: entry.value for entry in parse_properties(bytes(reply.body))}


EXPORTED = """
    autoCreateSubscriptionGroup autoCreateTopicEnable brokerClusterName brokerId brokerName brokerRole
    clientCallbackExecutorThreads fileReservedTime filterServerNums flushDiskType maxMessageSize messageDelayLevel
    msgTraceTopicName slaveReadEnable traceOn traceTopicEnable useTLS
"""
"""The settings that `mqadmin exportConfigs` and `exportMetrics` of 4.9.8 read; both fail if one is missing."""


def test_the_settings_that_rocketmqs_tools_read_are_shown(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        given = {"filterServerNums": "2", "sendMessageThreadPoolNums": "4"}
        async with home.running(store={"broker": given}) as broker:
            shown = await settings_shown(await broker.client())
            assert set(EXPORTED.split()) <= shown.keys()
            assert int(shown["clientCallbackExecutorThreads"]) >= 1
            assert shown["useTLS"] == "false"
            assert (shown["filterServerNums"], shown["sendMessageThreadPoolNums"]) == ("2", "4"), "as they were given"

    run(check())


def test_what_follows_from_other_settings_is_shown_as_it_is(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            shown = await settings_shown(await broker.client())
            assert shown["storePathCommitLog"] == str(broker.store.settings.commit_log_dir)
            assert (shown["brokerIP2"], shown["haListenPort"]) == ("127.0.0.1", "0"), "it does not listen for slaves"
        port = free_port()
        async with home.running(store={"ha_listen_port": port}) as broker:
            assert (await settings_shown(await broker.client()))["haListenPort"] == str(port)

    run(check())


def test_all_settings_are_shown_and_no_secret(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        given = {"tls.server.keyPassword": "opensesame"}
        async with home.running(store={"broker": given}, on_master="move --token opensesame") as broker:
            client = await broker.client()
            ok(await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"maxTopics=77"))
            reply = ok(await client.ask(RequestCode.GET_BROKER_CONFIG))
            shown = await settings_shown(client)
            assert (shown["maxTopics"], shown["brokerName"]) == ("77", "broker-a")
            assert shown["flushDiskType"] == "ASYNC_FLUSH"
            assert shown["tls.server.keyPassword"] == "******"
            assert b"opensesame" not in bytes(reply.body)
            assert json.loads(reply.ext["version"])["counter"] == 1

    run(check())
