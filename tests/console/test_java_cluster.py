"""The console pointed at a broker of Apache RocketMQ 4.9.8: its topics, groups and messages."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from support.clients import ConsoleProcess
from support.peers import JAVA, JavaServed, PeerError, build

from penstock.client import Message, PushOptions, ReceivedMessage
from penstock.client.sync import Admin, Producer, PushConsumer

pytestmark = pytest.mark.java

SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "mappedFileSizeCommitLog": 10 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
}
FIRST = PushOptions(consume_from="first")


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServed]:
    try:
        jars = build(JAVA / "broker")
    except PeerError as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("java")
    with JavaServed(folder / "home", folder / "store", jars, dict(SETTINGS)) as served:
        with Admin(served.namesrv) as admin:
            until(lambda: "broker-a" in admin.cluster.info().broker_addr_table)
        yield served


@pytest.fixture(scope="module")
def java_client(theirs: JavaServed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        ConsoleProcess(theirs.namesrv, folder=tmp_path_factory.mktemp("console")) as console,
        console.client() as client,
    ):
        yield client


def test_its_topics_groups_and_messages_are_shown(theirs: JavaServed, java_client: httpx.Client) -> None:
    client, found = java_client, list[ReceivedMessage]()
    with Admin(theirs.namesrv) as admin, Producer("PID", theirs.namesrv) as producer:
        made = client.put("/api/topics/orders", json={"queues": 4})
        assert made.status_code == 200, made.text
        until(lambda: "orders" in admin.topics.names())
        for number in range(8):
            producer.send(Message("orders", b"order %d" % number, tags="paid", keys=f"order_{number}"))
        with PushConsumer("CID", found.append, theirs.namesrv, subscriptions={"orders": "*"}, options=FIRST):
            until(lambda: len(found) >= 8)
            until(lambda: client.get("/api/groups/CID").json().get("clients"))
    topics = {row["name"]: row["kind"] for row in client.get("/api/topics").json()["topics"]}
    assert topics["orders"] == "normal"
    assert topics["TBW102"] == "system"
    assert client.get("/api/topics/orders").json()["messages"] == 8
    until(lambda: client.get("/api/groups/CID").json()["lag"] == 0)
    assert "CID" in {row["name"] for row in client.get("/api/groups").json()["groups"]}
    [message] = client.get("/api/messages/by-key", params={"topic": "orders", "key": "order_3"}).json()
    assert base64.b64decode(message["body"]) == b"order 3"
    assert client.get("/api/messages/by-id", params={"id": message["offset_msg_id"]}).json()[0]["keys"] == ["order_3"]
    begin = {"topic": "orders", "timestamp": 0}
    moves = client.post("/api/groups/CID/reset/preview", json=begin).json()
    assert sum(move["repeated"] for move in moves) == 8
    assert client.post("/api/groups/CID/reset", json=begin).status_code == 200
    until(lambda: client.get("/api/groups/CID").json()["lag"] == 8)


def test_its_figures_and_metrics_are_read(java_client: httpx.Client) -> None:
    [broker] = java_client.get("/api/brokers").json()
    assert broker["state"] == "serving"
    assert broker["version"].startswith("V4_9_")
    assert broker["log_max_offset"] > broker["log_min_offset"] >= 0
    assert java_client.get("/readyz").status_code == 200
    lines = java_client.get("/metrics").text.splitlines()
    lags = [line for line in lines if line.startswith('rocketmq_consumer_lag_messages{cluster="DefaultCluster",')]
    assert any('consumer_group="CID"' in line for line in lags)
