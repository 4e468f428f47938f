"""The JSON API: what it tells of a live cluster, what it changes, and what it refuses."""

from __future__ import annotations

import base64
import time
from typing import Any

import httpx
import pytest
from support.clients import MARKUP, ORDERS

from penstock.testing import LocalBroker


def get(client: httpx.Client, path: str, status: int = 200, **query: Any) -> Any:
    answer = client.get(f"/api/{path}", params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


def now() -> int:
    return time.time_ns() // 1_000_000


def test_brokers_and_health_are_told(client: httpx.Client, cluster: LocalBroker) -> None:
    [broker] = get(client, "brokers")
    assert (broker["name"], broker["address"], broker["state"]) == ("broker-a", cluster.address, "serving")
    assert broker["put_total"] >= ORDERS
    assert get(client, "health")["ready"] is True


def test_topics_are_listed_with_their_kind(client: httpx.Client) -> None:
    normal = get(client, "topics", kind="normal")
    assert {row["name"] for row in normal["topics"]} >= {"orders", "oddities", "empty"}
    kinds = {row["name"]: row["kind"] for row in get(client, "topics")["topics"]}
    assert kinds["%DLQ%returns"] == "dead letters"
    assert kinds["TBW102"] == "system"
    page = get(client, "topics", contains="ORD", kind="normal", first=0, most=1)
    assert page["total"] == 1
    assert get(client, "topics", first=10_000)["topics"] == []


def test_a_topic_has_queues_with_min_and_max(client: httpx.Client) -> None:
    found = get(client, "topics/orders")
    assert found["messages"] == ORDERS
    assert sum(queue["max_offset"] - queue["min_offset"] for queue in found["queues"]) == ORDERS
    assert len(found["queues"]) == 4
    assert "topic" in get(client, "topics/no_such_topic", 404)["detail"]


def test_a_group_has_its_lag_by_queue(client: httpx.Client) -> None:
    rows = {row["name"]: row for row in get(client, "groups")["groups"]}
    assert rows["warehouse"]["topics"] == ["orders"]
    group = get(client, "groups/warehouse")
    assert group["lag"] == 0
    assert sum(queue["consumer_offset"] for queue in group["queues"] if queue["topic"] == "orders") == ORDERS
    get(client, "groups/unknown", 404)


def test_messages_are_found_by_key_id_time_and_offset(client: httpx.Client) -> None:
    [found] = get(client, "messages/by-key", topic="orders", key="order_7")
    assert base64.b64decode(found["body"]) == b'{"order": 7, "price": "7.50"}'
    assert (found["tags"], found["keys"]) == ("paid", ["order_7"])
    assert [each["msg_id"] for each in get(client, "messages/by-id", id=found["offset_msg_id"])] == [found["msg_id"]]
    assert get(client, "messages/by-id", id=found["msg_id"], topic="orders") == [found]
    place = {"topic": "orders", "broker": "broker-a", "queue_id": found["queue_id"], "offset": found["queue_offset"]}
    assert get(client, "messages/by-offset", **place, most=1) == [found]
    at = found["stored_ms"]
    assert found in get(client, "messages/by-time", topic="orders", begin=at, end=at, most=200)
    assert len(get(client, "messages/by-time", topic="orders", begin=0, end=now(), most=200)) == ORDERS
    assert get(client, "messages/by-key", topic="orders", key="order_700") == []


def test_an_id_with_a_foreign_address_contacts_no_broker(client: httpx.Client) -> None:
    reply = get(client, "messages/by-id", 404, id="0A000001000000500000000000000000")
    assert "10.0.0.1:80" in reply["detail"]
    get(client, "messages/by-id", 400, id="no id at all")
    assert get(client, "messages/by-id", id="no id at all", topic="orders") == []


def test_a_body_that_is_no_text_comes_through(client: httpx.Client) -> None:
    [found] = get(client, "messages/by-key", topic="oddities", key="binary")
    assert base64.b64decode(found["body"]) == bytes(range(256))
    [odd] = get(client, "messages/by-key", topic="oddities", key="odd")
    assert odd["properties"]["note"] == MARKUP


def test_a_topic_is_made_changed_used_and_deleted(client: httpx.Client) -> None:
    made = client.put("/api/topics/brand_new", json={"queues": 2})
    assert made.json()["did"] == "Created topic brand_new at 1 broker: 2 queues each, read and write."
    changed = client.put("/api/topics/brand_new", json={"queues": 3, "perm": 4})
    assert changed.json()["did"] == "Changed topic brand_new at 1 broker: 3 queues each, read only."
    client.put("/api/topics/brand_new", json={"queues": 3})
    sent = client.post("/api/topics/brand_new/messages", json={"body": "hello", "keys": "greeting"})
    assert "to brand_new, queue" in sent.json()["did"]
    assert get(client, "topics/brand_new")["messages"] == 1
    assert client.delete("/api/topics/brand_new").json()["did"].startswith("Deleted topic brand_new")
    get(client, "topics/brand_new", 404)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "topics/TBW102", {"queues": 1}),
        ("PUT", "topics/bad%20name", {"queues": 1}),
        ("PUT", "topics/orders", {"queues": 0}),
        ("PUT", "topics/orders", {"queues": 4, "perm": 3}),
        ("PUT", "topics/orders", {"queues": 4, "colour": "red"}),
        ("DELETE", "topics/SELF_TEST_TOPIC", None),
        ("POST", "topics/no_such_topic/messages", {"body": "x"}),
        ("POST", "jobs", {"verb": "rm"}),
        ("POST", "jobs", {"verb": "search", "fields": {"store": "elsewhere"}}),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    client: httpx.Client, method: str, path: str, body: dict[str, Any] | None
) -> None:
    answer = client.request(method, f"/api/{path}", json=body)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["detail"]


def test_a_reset_is_shown_before_it_is_made(client: httpx.Client) -> None:
    begin = {"topic": "orders", "timestamp": 0}
    moves = client.post("/api/groups/warehouse/reset/preview", json=begin).json()
    assert sum(move["repeated"] for move in moves) == ORDERS
    assert get(client, "groups/warehouse")["lag"] == 0, "a preview changes nothing"
    reply = client.post("/api/groups/warehouse/reset", json=begin).json()["did"]
    assert reply == (
        f"Reset offsets of group warehouse in 4 queues of orders: {ORDERS} messages will be delivered again, 0 skipped."
    )
    assert get(client, "groups/warehouse")["lag"] == ORDERS
    skipped = client.post("/api/groups/warehouse/reset/preview", json={"topic": "orders", "timestamp": -1}).json()
    assert sum(move["skipped"] for move in skipped) == ORDERS
    client.post("/api/groups/warehouse/reset", json={"topic": "orders", "timestamp": -1})
    assert get(client, "groups/warehouse")["lag"] == 0


def test_dead_letters_are_listed_and_go_back_to_their_group_only(client: httpx.Client) -> None:
    assert get(client, "dead-letters")["returns"] == 2
    letters = get(client, "dead-letters/returns")
    assert {base64.b64decode(each["body"]) for each in letters} == {b"broken refund", b"another broken refund"}
    before = get(client, "topics/refunds")["messages"]
    reply = client.post("/api/dead-letters/returns/resend", json={"ids": [letters[0]["offset_msg_id"]]})
    assert reply.json()["did"] == "Resent 1 dead letter to group returns; the originals stay in place."
    [again] = get(client, "messages/by-time", topic="%RETRY%returns", begin=0, end=now())
    assert again["body"] == letters[0]["body"]
    assert again["properties"]["RETRY_TOPIC"] == "refunds"
    assert again["reconsume_times"] == 0
    assert get(client, "topics/refunds")["messages"] == before


def test_what_is_no_dead_letter_is_not_sent_again(client: httpx.Client) -> None:
    [order] = get(client, "messages/by-key", topic="orders", key="order_1")
    answer = client.post("/api/dead-letters/returns/resend", json={"ids": [order["offset_msg_id"]]})
    assert answer.status_code == 409
    assert "resent 0 of 1" in answer.json()["detail"]


def test_the_store_on_this_machine_is_described(client: httpx.Client, cluster: LocalBroker) -> None:
    found = get(client, "store")
    assert found["path"] == str(cluster.store_path)
    assert "orders" in {topic["topic"] for topic in found["topics"]}


def test_history_is_kept(client: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while not (samples := get(client, "history")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert samples[-1]["in_per_second"] >= 0
