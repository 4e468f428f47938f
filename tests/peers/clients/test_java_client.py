"""Apache RocketMQ's Java client 4.9.8, unchanged, against `penstock serve`."""

from __future__ import annotations

import random
import time

import pytest
from peers.clients.conftest import Connect, bodies, message, wait_for, wait_for_count
from support.brokers import Served

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]


def test_what_is_sent_in_every_way_is_consumed(served: Served, java: Connect) -> None:
    client = java(served.namesrv)
    large = "".join(random.Random(7).choices("abcdefgh ", k=300_000))
    plain = client.ask("send", group="p", how="sync", messages=[message("orders", f"sync {i}") for i in range(10)])
    assert {each["status"] for each in plain} == {"SEND_OK"}
    client.ask("send", group="p", how="async", messages=[message("orders", f"async {i}") for i in range(10)])
    client.ask("send", group="p", how="oneway", messages=[message("orders", f"oneway {i}") for i in range(10)])
    client.ask("send", group="p", how="batch", messages=[message("orders", f"batch {i}") for i in range(10)])
    client.ask("send", group="p", how="sync", messages=[message("orders", large, keys="big", tags="large")])
    client.ask("consume", name="c", group="g", topic="orders")
    found = wait_for_count(client, "c", 41)
    wanted = [f"{how} {i}" for how in ("sync", "async", "oneway", "batch") for i in range(10)] + [large]
    assert sorted(bodies(found)) == sorted(wanted)
    (big,) = [each for each in found if each.get("keys") == "big"]
    assert big["tags"] == "large"


def test_two_consumers_share_the_queues_and_a_broadcast_reaches_both(served: Served, java: Connect) -> None:
    first, second = java(served.namesrv), java(served.namesrv)
    first.ask("send", group="p", how="sync", messages=[message("shared", "before")])
    for client, name in ((first, "one"), (second, "two")):
        client.ask("consume", name=name, group="sharing", topic="shared")
        client.ask("consume", name=f"b-{name}", group="everyone", topic="shared", broadcast=True)
    time.sleep(3)  # clients share their queues anew when they hear of each other
    sent = [f"m{i}" for i in range(60)]
    first.ask("send", group="p", how="sync", messages=[message("shared", body) for body in sent])
    for client, name in ((first, "one"), (second, "two")):
        got = bodies(wait_for(client, f"b-{name}", lambda found: set(bodies(found)) >= set(sent)))
        assert set(sent) <= set(got)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        one, two = (set(bodies(c.ask("consumed", name=n))) for c, n in ((first, "one"), (second, "two")))
        if one | two >= set(sent):
            break
        time.sleep(0.2)
    assert one | two >= set(sent)
    assert one & set(sent)
    assert two & set(sent)


def test_tags_and_sql_select(served: Served, java: Connect) -> None:
    client = java(served.namesrv)
    sent = [
        message("events", f"{tag} {price}", tags=tag, properties={"price": str(price)})
        for tag in ("paid", "open", "void")
        for price in (5, 50)
    ]
    client.ask("send", group="p", how="sync", messages=sent)
    client.ask("consume", name="tags", group="by-tag", topic="events", tags="paid || void")
    client.ask("consume", name="sql", group="by-sql", topic="events", sql="price > 10 AND TAGS <> 'void'")
    assert sorted(bodies(wait_for_count(client, "tags", 4))) == ["paid 5", "paid 50", "void 5", "void 50"]
    assert sorted(bodies(wait_for_count(client, "sql", 2))) == ["open 50", "paid 50"]


def test_ordered_messages_arrive_in_order(served: Served, java: Connect) -> None:
    client = java(served.namesrv)
    sent = [message("steps", f"{key} {step}", keys=key) for step in range(20) for key in ("a", "b", "c")]
    client.ask("send", group="p", how="orderly", messages=sent)
    client.ask("consume", name="c", group="ordered", topic="steps", orderly=True)
    found = bodies(wait_for_count(client, "c", 60))
    for key in ("a", "b", "c"):
        assert [body for body in found if body.startswith(key)] == [f"{key} {step}" for step in range(20)]


def test_a_message_that_always_fails_is_retried_and_then_a_dead_letter(served: Served, java: Connect) -> None:
    client = java(served.namesrv)
    client.ask("send", group="p", how="sync", messages=[message("jobs", "poison"), message("jobs", "fine")])
    client.ask("consume", name="c", group="workers", topic="jobs", fails="poison", delay_level=1, max_reconsume_times=2)
    tried = wait_for(client, "c", lambda found: bodies(found).count("poison") >= 3)
    assert sorted(each["reconsume_times"] for each in tried if bodies([each]) == ["poison"]) == [0, 1, 2]
    assert {each["topic"] for each in tried} == {"jobs"}
    client.ask("consume", name="dead", group="undertakers", topic="%DLQ%workers")
    assert bodies(wait_for_count(client, "dead", 1)) == ["poison"]
    assert bodies(client.ask("consumed", name="c")).count("fine") == 1


def test_a_delayed_message_comes_late(served: Served, java: Connect) -> None:
    client = java(served.namesrv)
    client.ask("send", group="p", how="sync", messages=[message("warm-up", "x")])
    client.ask("consume", name="c", group="patient", topic="later")
    began = time.time() * 1000
    client.ask("send", group="p", how="sync", messages=[message("later", "now"), message("later", "then", delay=2)])
    found = {bodies([each])[0]: each["at"] for each in wait_for_count(client, "c", 2)}
    assert found["then"] - began >= 2000


def test_transactions_are_committed_rolled_back_and_asked_about(served: Served, java: Connect) -> None:
    client = java(served.namesrv)
    wanted = ["1 commit", "2 rollback", "3 unknown commit", "4 unknown rollback"]
    answer = client.ask(
        "transaction", group="tx", messages=[message("money", body) for body in wanted], checks=2, wait_ms=30_000
    )
    assert answer["checks"] >= 2
    client.ask("consume", name="c", group="cashiers", topic="money")
    assert sorted(bodies(wait_for_count(client, "c", 2))) == ["1 commit", "3 unknown commit"]


def test_pull_and_query(served: Served, java: Connect) -> None:
    client = java(served.namesrv)
    sent = client.ask(
        "send", group="p", how="sync", messages=[message("facts", f"fact {i}", keys=f"k{i}") for i in range(10)]
    )
    assert sorted(bodies(client.ask("pull", group="pullers", topic="facts", count=10))) == sorted(
        f"fact {i}" for i in range(10)
    )
    assert bodies(client.ask("query", group="p", topic="facts", key="k7")) == ["fact 7"]
    by_offset_id = client.ask("query", group="p", topic="facts", id=sent[3]["offset_msg_id"])
    assert bodies(by_offset_id) == ["fact 3"]
    assert bodies(client.ask("query", group="p", topic="facts", id=sent[4]["msg_id"])) == ["fact 4"]


def test_a_broker_killed_and_restarted_loses_and_skips_nothing(served: Served, java: Connect) -> None:
    client = java(served.namesrv)
    client.ask("consume", name="c", group="steadfast", topic="stream")
    sent: list[str] = []

    def send(first: int, count: int) -> None:
        names = [f"n{number}" for number in range(first, first + count)]
        for name in names:
            for _ in range(10):
                try:
                    answers = client.ask("send", group="p", how="sync", messages=[message("stream", name)])
                except Exception:
                    time.sleep(0.5)
                    continue
                if answers[0]["status"] == "SEND_OK":
                    sent.append(name)
                    break

    send(0, 50)
    served.kill()
    served.start()
    send(50, 50)
    assert len(sent) == 100
    got = bodies(wait_for(client, "c", lambda found: set(bodies(found)) >= set(sent)))
    assert set(got) >= set(sent)
