"""Locks for ordered consumption: one client of a group holds a queue, for a minute at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.brokers import BrokerHome, RawClient, ok
from support.core_clients import PlainClient

from penstock.broker.queue_locks import LOCK_SECONDS, QueueLocks
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode

if TYPE_CHECKING:
    from broker.conftest import Run


def queues(*numbers: int) -> list[dict[str, object]]:
    return [{"brokerName": "broker-a", "queueId": number, "topic": "T"} for number in numbers]


async def lock(client: RawClient, client_id: str, *numbers: int, group: str = "CID") -> set[int]:
    body = {"consumerGroup": group, "clientId": client_id, "mqSet": queues(*numbers)}
    reply = ok(await client.ask(RequestCode.LOCK_BATCH_MQ, json.dumps(body).encode()))
    held = json.loads(bytes(reply.body))["lockOKMQSet"]
    assert all(queue in queues(*numbers) for queue in held)
    return {queue["queueId"] for queue in held}


async def unlock(client: RawClient, client_id: str, *numbers: int) -> None:
    body = {"consumerGroup": "CID", "clientId": client_id, "mqSet": queues(*numbers)}
    ok(await client.ask(RequestCode.UNLOCK_BATCH_MQ, json.dumps(body).encode()))


def test_a_queue_belongs_to_the_client_that_locked_it_first(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            assert await lock(client, "one", 0, 1) == {0, 1}
            assert await lock(client, "two", 0, 1, 2) == {2}
            assert await lock(client, "one", 0, 1) == {0, 1}
            assert await lock(client, "two", 0, group="CID_other") == {0}
            await unlock(client, "two", 0)
            assert await lock(client, "two", 0) == set()
            await unlock(client, "one", 0, 1)
            assert await lock(client, "two", 0, 1) == {0, 1}

    run(check())


def test_a_lock_that_is_not_renewed_ends_after_a_minute() -> None:
    now = 0.0
    locks, client = QueueLocks(lambda: now), PlainClient()
    queue = MessageQueue(broker_name="broker-a", queue_id=0, topic="T")
    assert locks.lock(client, "CID", "one", [queue]) == [queue]
    now = LOCK_SECONDS - 1
    assert locks.lock(client, "CID", "two", [queue]) == []
    assert locks.lock(client, "CID", "one", [queue]) == [queue]
    now = 2 * LOCK_SECONDS - 2
    assert locks.owner("CID", queue) == "one"
    now = 2 * LOCK_SECONDS
    assert locks.owner("CID", queue) is None
    locks.drop_expired()
    assert locks.lock(client, "CID", "two", [queue]) == [queue]


def test_a_lock_outlives_its_connection(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, other = await broker.client(), await broker.client()
            assert await lock(client, "one", 0) == {0}
            client.close()
            assert await lock(other, "two", 0) == set()
            assert await lock(await broker.client(), "one", 0) == {0}

    run(check())
