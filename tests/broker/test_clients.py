"""Heartbeats, who is connected, and the notices that make a group share its queues anew."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, RawClient, ok
from support.loopback import until

from penstock.broker.consumers import EXPIRY_S, ClientTable
from penstock.format.config_tables import SubscriptionGroup
from penstock.protocol.bodies.clients import ConsumerData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.versions import Language

if TYPE_CHECKING:
    from broker.conftest import Run


async def members(client: RawClient, group: str = "CID") -> set[str]:
    reply = ok(await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group))
    return set(json.loads(bytes(reply.body))["consumerIdList"])


async def noticed(client: RawClient, group: str = "CID") -> None:
    notice = await client.notice()
    assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert notice.is_oneway
    assert notice.ext == {"consumerGroup": group}


def test_a_heartbeat_makes_the_group_and_its_retry_topic(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.heartbeat("me", consumes={"CID": {"orders": "a || b"}}, produces=("PID",)))
            assert broker.state.groups.find("CID") == SubscriptionGroup(name="CID")
            retry = broker.state.topics.find("%RETRY%CID")
            assert retry is not None
            assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
            assert await members(client) == {"me"}
            subscription = broker.state.clients.subscription("CID", "orders")
            assert subscription is not None
            assert sorted(subscription.tags_set) == ["a", "b"]
            (producer,) = broker.state.clients.producers("PID")
            assert (producer.client_id, producer.language, producer.version) == ("me", Language.JAVA, 409)

    run(check())


def test_what_cpp_clients_send_is_understood(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            beat = (
                b'{"clientID":"99-127.0.0.1@DEFAULT","consumerDataSet":[{"groupName":"CID","consumeType":1,'
                b'"messageModel":1,"consumeFromWhere":0,"subscriptionDataSet":'
                b'[{"topic":"T","subString":"*","subVersion":"1794765285567"}]}]}\n'
            )
            ok(await client.ask(RequestCode.HEART_BEAT, beat))
            assert await members(client) == {"99-127.0.0.1@DEFAULT"}
            ok(await client.ask(RequestCode.HEART_BEAT, b'{"clientID":"p","producerDataSet":[{"groupName":"PID"}]}'))
            assert [client.client_id for client in broker.state.clients.producers("PID")] == ["p"]

    run(check())


def test_a_group_without_consumers_is_an_error(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            reply = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="nobody")
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "nobody" in (reply.remark or "")

    run(check())


@pytest.mark.parametrize("leave", ["unregister", "close"])
def test_the_others_hear_who_comes_and_goes(home: BrokerHome, run: Run, leave: str) -> None:
    async def check() -> None:
        async with home.running() as broker:
            one, two = await broker.client(), await broker.client()
            await one.heartbeat("one", consumes={"CID": {"orders": "*"}})
            await noticed(one)
            await two.heartbeat("two", consumes={"CID": {"orders": "*"}})
            await noticed(one)
            await noticed(two)
            assert await members(one) == {"one", "two"}
            if leave == "close":
                two.close()
            else:
                ok(await two.ask(RequestCode.UNREGISTER_CLIENT, clientID="two", consumerGroup="CID"))
            await noticed(one)
            assert await members(one) == {"one"}

    run(check())


def test_a_heartbeat_that_says_nothing_new_is_no_news(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            await client.heartbeat("one", consumes={"CID": {"orders": "*"}})
            await noticed(client)
            await client.heartbeat("one", consumes={"CID": {"orders": "*"}})
            await client.heartbeat("one", consumes={"CID": {"orders": "newer"}}, version=2)
            assert broker.state.clients.subscription("CID", "orders").sub_string == "newer"  # type: ignore[union-attr]
            await client.heartbeat("one", consumes={"CID": {"orders": "older"}}, version=1)
            assert broker.state.clients.subscription("CID", "orders").sub_string == "newer"  # type: ignore[union-attr]
            assert client.asked.empty()
            await client.heartbeat("one", consumes={"CID": {"payments": "*"}})
            await noticed(client)
            assert broker.state.clients.subscription("CID", "orders") is None

    run(check())


def test_a_group_may_do_without_notices(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            broker.state.groups.update(SubscriptionGroup(name="CID", notify_consumer_ids_changed_enable=False))
            await client.heartbeat("one", consumes={"CID": {"orders": "*"}})
            await client.heartbeat("one", consumes={"CID_2": {"orders": "*"}})
            await noticed(client, "CID_2")
            assert client.asked.empty()

    run(check())


def test_many_that_come_at_once_are_told_together(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            groups = {f"CID_{number}": {"orders": "*"} for number in range(20)}
            await client.heartbeat("one", consumes=groups)
            told = {(await client.notice()).ext["consumerGroup"] for _ in range(20)}
            assert told == set(groups)

    run(check())


def test_a_client_that_falls_silent_is_forgotten_and_cut_off(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            one, two = await broker.client(), await broker.client()
            await until(lambda: len(broker.broker.server.connections) == 2)
            silent, other = broker.broker.server.connections
            now = 0.0
            clients = ClientTable(lambda: now)
            data = ConsumerData(group_name="CID")
            for connection in (silent, other):
                clients.add_consumer(data, str(connection.peer[1]), connection, Language.JAVA, 409)
                clients.add_producer("PID", str(connection.peer[1]), connection, Language.JAVA, 409)
            now = EXPIRY_S
            clients.expire()
            clients.add_consumer(data, "other", other, Language.JAVA, 409)
            clients.add_producer("PID", "other", other, Language.JAVA, 409)
            now = EXPIRY_S + 1
            clients.expire()
            group = clients.consumers("CID")
            assert group is not None
            assert group.client_ids == ["other"]
            assert [client.client_id for client in clients.producers("PID")] == ["other"]
            await until(lambda: one.connection.closed or two.connection.closed)
            assert one.connection.closed is not two.connection.closed

    run(check())


def test_groups_are_not_made_where_that_is_not_allowed(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(auto_create_subscription_group=False) as broker:
            client = await broker.client()
            ok(await client.heartbeat("one", consumes={"CID": {"orders": "*"}}))
            assert broker.state.groups.find("CID") is None
            assert broker.state.topics.find("%RETRY%CID") is None

    run(check())


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"clientID":[]}', b'{"clientID":"a","consumerDataSet":[{"groupName":"../x"}]}'],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(home: BrokerHome, run: Run, body: bytes) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            reply = await client.ask(RequestCode.HEART_BEAT, body)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert broker.state.clients.consumers("../x") is None

    run(check())


def test_one_connection_cannot_speak_for_endless_groups(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            reply = await client.heartbeat("one", produces=tuple(f"PID_{number}" for number in range(5000)))
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "groups" in (reply.remark or "")

    run(check())


@pytest.mark.parametrize(
    ("expression_type", "code"), [("TAG", ResponseCode.SUCCESS), ("SQL92", ResponseCode.SYSTEM_ERROR)]
)
def test_a_consumer_may_ask_whether_its_subscription_will_do(
    home: BrokerHome, run: Run, expression_type: str, code: ResponseCode
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            wanted = {"topic": "T", "subString": "a > 1", "expressionType": expression_type}
            body = {"clientId": "c", "group": "CID", "subscriptionData": wanted}
            reply = await client.ask(RequestCode.CHECK_CLIENT_CONFIG, json.dumps(body).encode())
            assert reply.code == code

    run(check())
