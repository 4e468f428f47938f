"""Topics, groups and offsets: what is there from the start, what changes them, and what survives a restart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.brokers import BrokerHome, bodies, ok
from support.loopback import until

from penstock.broker.consumers import GroupTable
from penstock.broker.offsets import OffsetTable
from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.broker.topics import BrokerTopics
from penstock.format.config_tables import (
    ConsumerOffsets,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicConfig,
    TopicConfigs,
)
from penstock.store import Message, MessageStore, Settings

if TYPE_CHECKING:
    from broker.conftest import Run


def topic_table(loaded: TopicConfigs | None = None, **settings: Any) -> BrokerTopics:
    return BrokerTopics(loaded or TopicConfigs(), SettingsInForce(BrokerSettings(**settings)), lambda: 7)


def shape(table: BrokerTopics) -> dict[str, tuple[int, int, int]]:
    return {name: (t.read_queue_nums, t.write_queue_nums, t.perm) for name, t in table.all().items()}


def test_a_new_broker_has_rocketmqs_system_topics() -> None:
    assert shape(topic_table()) == {
        "TBW102": (8, 8, 7),
        "SELF_TEST_TOPIC": (1, 1, 6),
        "BenchmarkTest": (1024, 1024, 6),
        "DefaultCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6),
    }


def test_the_system_topics_follow_the_settings() -> None:
    found = shape(
        topic_table(
            auto_create_topic_enable=False,
            cluster_topic_enable=False,
            broker_topic_enable=False,
            trace_topic_enable=True,
            broker_name="b",
            broker_cluster_name="c",
        )
    )
    assert "TBW102" not in found
    assert found["RMQ_SYS_TRACE_TOPIC"] == (1, 1, 6)
    assert (found["b"], found["c"]) == ((1, 1, 1), (16, 16, 1))
    assert shape(topic_table(default_topic_queue_nums=3))["TBW102"] == (3, 3, 7)


def test_what_a_file_says_wins_over_the_system_topics() -> None:
    loaded = TopicConfigs(topics={"TBW102": TopicConfig(name="TBW102", write_queue_nums=2, perm=7)})
    table = topic_table(loaded)
    made = table.create_on_send("orders", "TBW102", 4)
    assert made is not None
    assert made.write_queue_nums == 2


def test_every_change_moves_the_version_and_is_told() -> None:
    table, told = topic_table(), []
    table.on_change.append(lambda: told.append(table.data_version.counter))
    before = table.data_version.counter
    table.create_on_send("orders", "TBW102", 4)
    table.create_on_send("orders", "TBW102", 4)
    table.create_for_send_back("%RETRY%g", 1)
    table.update(TopicConfig(name="orders", perm=4))
    assert table.delete("orders")
    assert not table.delete("orders")
    assert told == [before + 1, before + 2, before + 3, before + 4]
    assert table.data_version.timestamp == 7


def test_fields_of_other_versions_survive_a_change() -> None:
    loaded = TopicConfigs(topics={"T": TopicConfig(name="T", extra={"attributes": {"a": "b"}})}, extra={"more": 1})
    table = topic_table(loaded)
    table.update(TopicConfig(name="T", perm=4))
    assert table.snapshot().topics["T"].extra == {"attributes": {"a": "b"}}
    assert table.snapshot().extra == {"more": 1}
    groups = GroupTable(
        SubscriptionGroups(groups={"g": SubscriptionGroup(name="g", extra={"x": 1})}),
        SettingsInForce(BrokerSettings()),
        lambda: 7,
    )
    groups.update(SubscriptionGroup(name="g", consume_enable=False))
    assert groups.snapshot().groups["g"].extra == {"x": 1}


def test_groups_are_made_where_that_is_allowed() -> None:
    settings = SettingsInForce(BrokerSettings(max_groups=9))
    groups = GroupTable(SubscriptionGroups(), settings, lambda: 7)
    assert groups.find_or_create("CID") == SubscriptionGroup(name="CID")
    assert groups.find_or_create("not legal") is None
    assert groups.find_or_create("x" * 121) is None
    assert groups.find_or_create("CID_2") is not None
    assert groups.find_or_create("CID_3") is None, "there are as many as there may be"
    assert groups.delete("CID_2")
    settings.change(auto_create_subscription_group=False)
    assert groups.find_or_create("CID_3") is None
    assert groups.find_or_create("CID_RMQ_SYS_TRANS") is not None


def test_offsets_by_group_and_by_topic() -> None:
    table = OffsetTable(ConsumerOffsets(offsets={("T", "g"): {0: 5, 1: 6}, ("U", "g"): {0: 1}, ("T", "h"): {0: 9}}))
    assert table.of_group("g") == {"T": {0: 5, 1: 6}, "U": {0: 1}}
    assert table.of_queue("h", "T") == {0: 9}
    assert table.groups_of("T") == ["g", "h"]
    table.clone("g", "new", "T")
    table.reset("g", "T", {0: 2})
    assert table.of_queue("new", "T") == {0: 5, 1: 6}
    assert table.of_queue("g", "T") == {0: 2, 1: 6}
    changes = table.changes
    table.commit("g", "T", 0, 2)
    assert table.changes == changes, "nothing new"
    table.remove_group("g")
    table.remove_topic("T")
    assert table.snapshot().offsets == {}


def test_topics_groups_and_offsets_survive_a_restart(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            await client.heartbeat("me", consumes={"CID": {"orders": "*"}})
            ok(await client.pull("orders", sysFlag=5, commitOffset=1, consumerGroup="CID"))
            topics = dict(broker.state.topics.all())
            groups = dict(broker.state.groups.all())
            version = broker.state.topics.data_version
        async with home.running() as broker:
            assert dict(broker.state.topics.all()) == topics
            assert dict(broker.state.groups.all()) == groups
            assert broker.state.topics.data_version == version
            assert broker.state.offsets.query("CID", "orders", 0) == 1

    run(check())


def test_a_topic_is_on_disk_soon_after_it_is_made(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            await client.heartbeat("me", consumes={"CID": {"orders": "*"}})
            topics, groups = (home.path / "config" / name for name in ("topics.json", "subscriptionGroup.json"))
            await until(lambda: topics.exists() and "orders" in json.loads(topics.read_text())["topicConfigTable"])
            await until(lambda: groups.exists() and "CID" in json.loads(groups.read_text())["subscriptionGroupTable"])

    run(check())


def test_topics_whose_messages_are_in_the_store_are_known(home: BrokerHome, run: Run) -> None:
    """As after a crash before the file was written, or in a store that had no broker so far."""

    async def check() -> None:
        with MessageStore.open(home.path, Settings.dev()) as store:
            for topic, queue_id in (("orders", 2), ("many", 11), ("%RETRY%CID", 0), ("%DLQ%CID", 0)):
                assert store.put(Message(topic, b"x", queue_id=queue_id)).ok
        async with home.running() as broker:
            found = shape(broker.state.topics)
            assert found["orders"] == (8, 8, 6)
            assert found["many"] == (12, 12, 6)
            assert found["%RETRY%CID"] == found["%DLQ%CID"] == (1, 1, 6)
            client = await broker.client()
            assert bodies(await client.pull("orders", queueId=2)) == [b"x"]
            ok(await client.send("orders", queueId=7))

    run(check())
