"""Who is connected, and questions that the broker passes on to a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, RawClient, ok

from penstock.broker.admin import clients as clients_module
from penstock.format.record import decode_record
from penstock.protocol.bodies.clients import ConsumerConnection, ProducerConnection, ProducerTableInfo
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import GetConsumerStatusBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from broker.conftest import Run

RUNNING = RequestCode.GET_CONSUMER_RUNNING_INFO
STATUS = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT


async def asked(client: RawClient) -> Command:
    while (command := await client.notice()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        pass
    return command


def test_the_consumers_of_a_group_and_what_they_subscribe_to(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            await client.heartbeat("one", consumes={"CID": {"orders": "A"}})
            reply = ok(await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CID"))
            found = ConsumerConnection.from_bytes(reply.body)
            (shown,) = found.connection_set
            assert (shown.client_id, shown.language, shown.version) == ("one", "JAVA", 409)
            host, port = client.connection.local
            assert shown.client_addr == f"{host}:{port}"
            assert found.subscription_table["orders"].tags_set == ["A"]
            reply = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CID_off")
            assert reply.code == ResponseCode.CONSUMER_NOT_ONLINE

    run(check())


def test_the_producers_of_a_group_and_of_all(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            await client.heartbeat("one", produces=("PID", "PID_2"))
            reply = ok(await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="PID"))
            assert [each.client_id for each in ProducerConnection.from_bytes(reply.body).connection_set] == ["one"]
            reply = await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="PID_off")
            assert reply.code == ResponseCode.SYSTEM_ERROR
            reply = ok(await client.ask(RequestCode.GET_ALL_PRODUCER_INFO))
            data = ProducerTableInfo.from_bytes(reply.body).data
            assert data.keys() == {"PID", "PID_2"}
            host, port = client.connection.local
            assert data["PID"][0].remote_ip == f"/{host}:{port}"
            assert abs(broker.state.clock() - data["PID"][0].last_update_timestamp) < 60_000

    run(check())


def test_a_question_is_passed_on_to_the_client_that_it_names(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            tool = await broker.client()
            one = await broker.client(bodies={RUNNING: b"one runs"})
            two = await broker.client(bodies={RUNNING: b"two runs"})
            for client_id, client in (("one", one), ("two", two)):
                await client.heartbeat(client_id, consumes={"CID": {"orders": "*"}})
            arguments = {"consumerGroup": "CID", "clientId": "two", "jstackEnable": True}
            reply = ok(await tool.ask(RUNNING, **arguments))
            assert bytes(reply.body) == b"two runs"
            question = await asked(two)
            assert question.ext == {"consumerGroup": "CID", "clientId": "two", "jstackEnable": "true"}

    run(check())


def test_a_clients_refusal_is_passed_back(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client(answers={RUNNING: ResponseCode.SYSTEM_ERROR})
            await client.heartbeat("one", consumes={"CID": {"orders": "*"}})
            reply = await client.ask(RUNNING, consumerGroup="CID", clientId="one")
            assert reply.code == ResponseCode.SYSTEM_ERROR

    run(check())


def test_a_client_that_is_away_old_or_late(home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "_CLIENT_S", 0.05)

    async def check() -> None:
        async with home.running() as broker:
            tool = await broker.client()
            reply = await tool.ask(RUNNING, consumerGroup="CID", clientId="one")
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "not online" in (reply.remark or "")
            body = b'{"clientID":"old","consumerDataSet":[{"groupName":"CID"}]}'
            ok(await tool.ask(RequestCode.HEART_BEAT, body, version=40))
            reply = await tool.ask(RUNNING, consumerGroup="CID", clientId="old")
            assert "too old" in (reply.remark or "")
            silent = await broker.client()
            await silent.heartbeat("late", consumes={"CID": {"orders": "*"}})
            silent.connection._transport.pause_reading()
            reply = await tool.ask(RUNNING, consumerGroup="CID", clientId="late")
            assert reply.code == ResponseCode.CONSUME_MSG_TIMEOUT

    run(check())


@pytest.mark.parametrize("named", [True, False])
def test_a_message_is_consumed_directly(home: BrokerHome, run: Run, named: bool) -> None:
    async def check() -> None:
        async with home.running() as broker:
            tool, client = await broker.client(), await broker.client()
            await client.heartbeat("one", consumes={"CID": {"orders": "*"}})
            sent = ok(await tool.send("orders", b"again"))
            arguments = {"consumerGroup": "CID", "msgId": sent.ext["msgId"]} | ({"clientId": "one"} if named else {})
            ok(await tool.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **arguments))
            question = await asked(client)
            assert decode_record(question.body).body == b"again"
            assert (question.ext["brokerName"], question.ext["clientId"]) == ("broker-a", "one")
            for wrong in ("", "00", sent.ext["msgId"][:-1] + "1"):
                reply = await tool.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **{**arguments, "msgId": wrong})
                assert reply.code == ResponseCode.SYSTEM_ERROR

    run(check())


def test_where_the_clients_of_a_group_say_they_are(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            queue = MessageQueue(broker_name="broker-a", queue_id=0, topic="orders")
            answer = GetConsumerStatusBody(message_queue_table={queue: 5}).to_bytes()
            tool, one = await broker.client(), await broker.client(bodies={STATUS: answer})
            two = await broker.client(answers={STATUS: ResponseCode.SYSTEM_ERROR})
            await one.heartbeat("one", consumes={"CID": {"orders": "*"}})
            await two.heartbeat("two", consumes={"CID": {"orders": "*"}})
            arguments = {"topic": "orders", "group": "CID"}
            reply = ok(await tool.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **arguments))
            assert GetConsumerStatusBody.from_bytes(reply.body).consumer_table == {"one": {queue: 5}}
            arguments["clientAddr"] = "nobody"
            reply = await tool.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **arguments)
            assert reply.code == ResponseCode.SYSTEM_ERROR

    run(check())
