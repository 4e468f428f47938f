"""RocketMQ's C++ client (PyPI `rocketmq`) and npm's `ali-ons`, unchanged, against `penstock serve`.

Both are told the same things, so the tests are the same; what one of them cannot do is left out for it.
"""

from __future__ import annotations

import random
import time

import pytest
from peers.clients.conftest import Connect, bodies, message, wait_for, wait_for_count
from support.brokers import Served
from support.peers import PeerError

pytestmark = pytest.mark.timeout(240)

CPP = pytest.param("cpp", marks=pytest.mark.cpp)
NODE = pytest.param("node", marks=pytest.mark.node)


@pytest.fixture(params=[CPP, NODE])
def connect(request: pytest.FixtureRequest) -> Connect:
    made: Connect = request.getfixturevalue(request.param)
    return made


@pytest.fixture(params=[CPP])
def connect_cpp(request: pytest.FixtureRequest) -> Connect:
    made: Connect = request.getfixturevalue(request.param)
    return made


def test_what_is_sent_is_consumed_with_keys_tags_and_large_bodies(served: Served, connect: Connect) -> None:
    client = connect(served.namesrv)
    large = "".join(random.Random(3).choices("abcdefgh ", k=100_000))
    sent = [message("orders", f"order {i}", keys=f"k{i}", tags="paid") for i in range(20)]
    client.ask("send", group="p", messages=[*sent, message("orders", large, tags="large")])
    client.ask("consume", name="c", group="g", topic="orders")
    found = wait_for_count(client, "c", 21)
    assert sorted(bodies(found)) == sorted([*(f"order {i}" for i in range(20)), large])
    assert {each["tags"] for each in found} == {"paid", "large"}


def test_a_batch_is_taken_apart(served: Served, connect_cpp: Connect) -> None:
    client = connect_cpp(served.namesrv)
    client.ask("send", group="p", messages=[message("many", "first")])
    client.ask("consume", name="c", group="g", topic="many")
    client.ask("send", group="p", how="batch", messages=[message("many", f"b{i}") for i in range(20)])
    found = wait_for(client, "c", lambda found: set(bodies(found)) >= {f"b{i}" for i in range(20)})
    assert sorted(body for body in bodies(found) if body != "first") == sorted(f"b{i}" for i in range(20))


def test_two_consumers_share_the_queues(served: Served, connect: Connect) -> None:
    first, second = connect(served.namesrv), connect(served.namesrv)
    first.ask("send", group="p", messages=[message("shared", "before")])
    first.ask("consume", name="one", group="sharing", topic="shared")
    second.ask("consume", name="two", group="sharing", topic="shared")
    sent: list[str] = []
    deadline = time.monotonic() + 60
    one: set[str] = set()
    two: set[str] = set()
    while time.monotonic() < deadline and not (one and two):  # clients look for each other every 10 or 20 s
        new = [f"m{len(sent) + i}" for i in range(16)]
        first.ask("send", group="p", messages=[message("shared", body) for body in new])
        sent += new
        time.sleep(1)
        one = set(bodies(first.ask("consumed", name="one"))) & set(sent)
        two = set(bodies(second.ask("consumed", name="two"))) & set(sent)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not one | two >= set(sent):
        time.sleep(0.2)
        one, two = (set(bodies(c.ask("consumed", name=n))) for c, n in ((first, "one"), (second, "two")))
    assert one | two >= set(sent)
    assert one
    assert two


def test_a_broadcast_reaches_everybody(served: Served, connect: Connect) -> None:
    first, second = connect(served.namesrv), connect(served.namesrv)
    first.ask("send", group="p", messages=[message("news", "before")])
    first.ask("consume", name="one", group="all", topic="news", broadcast=True)
    second.ask("consume", name="two", group="all", topic="news", broadcast=True)
    time.sleep(2)
    sent = {f"n{i}" for i in range(20)}
    first.ask("send", group="p", messages=[message("news", body) for body in sorted(sent)])
    for client, name in ((first, "one"), (second, "two")):
        assert set(bodies(wait_for(client, name, lambda found: set(bodies(found)) >= sent))) >= sent


def test_tags_select(served: Served, connect: Connect) -> None:
    client = connect(served.namesrv)
    client.ask("send", group="p", messages=[message("events", "before", tags="paid")])
    client.ask("consume", name="c", group="g", topic="events", tags="paid || void")
    time.sleep(1)
    sent = [message("events", f"{tag} {i}", tags=tag) for i in range(4) for tag in ("paid", "open", "void")]
    client.ask("send", group="p", messages=sent)
    wanted = {f"{tag} {i}" for i in range(4) for tag in ("paid", "void")}
    found = set(bodies(wait_for(client, "c", lambda found: set(bodies(found)) >= wanted)))
    assert found - {"before"} == wanted


def test_ordered_messages_arrive_in_order(served: Served, connect_cpp: Connect) -> None:
    client = connect_cpp(served.namesrv)
    client.ask("send", group="p", messages=[message("steps", "before")])
    client.ask("consume", name="c", group="ordered", topic="steps", orderly=True)
    sent = [message("steps", f"{shard} {step}", shard=shard) for step in range(20) for shard in (0, 1, 2)]
    client.ask("send", group="p", how="orderly", messages=sent)
    wanted = [f"{shard} {step}" for shard in (0, 1, 2) for step in range(20)]
    found = bodies(wait_for(client, "c", lambda found: set(bodies(found)) >= set(wanted)))
    for shard in (0, 1, 2):
        steps = [body for body in found if body.startswith(f"{shard} ")]
        assert steps == [f"{shard} {step}" for step in range(20)]


def test_a_message_that_fails_comes_again(served: Served, connect: Connect) -> None:
    client = connect(served.namesrv)
    client.ask("send", group="p", messages=[message("jobs", "before")])
    client.ask("consume", name="c", group="workers", topic="jobs", fails="poison")
    time.sleep(1)
    client.ask("send", group="p", messages=[message("jobs", "poison"), message("jobs", "fine")])
    tried = wait_for(client, "c", lambda found: bodies(found).count("poison") >= 2)
    times = [each["reconsume_times"] for each in tried if bodies([each]) == ["poison"]]
    assert sorted(set(times))[:2] == [0, 1]


def test_a_delayed_message_comes_late(served: Served, connect: Connect) -> None:
    client = connect(served.namesrv)
    client.ask("send", group="p", messages=[message("later", "before")])
    client.ask("consume", name="c", group="patient", topic="later")
    time.sleep(1)
    began = time.monotonic()
    client.ask("send", group="p", messages=[message("later", "then", delay=2)])
    found = wait_for(client, "c", lambda found: "then" in bodies(found))
    assert "then" in bodies(found)
    assert time.monotonic() - began >= 2


def test_a_broker_killed_and_restarted_loses_nothing(served: Served, connect: Connect) -> None:
    client = connect(served.namesrv)
    client.ask("send", group="p", messages=[message("stream", "before")])
    client.ask("consume", name="c", group="steadfast", topic="stream")
    time.sleep(1)
    sent: set[str] = set()

    def send(names: list[str]) -> None:
        for name in names:
            for _ in range(20):
                try:
                    client.ask("send", group="p", messages=[message("stream", name)])
                except PeerError:
                    time.sleep(0.5)
                    continue
                sent.add(name)
                break

    send([f"n{i}" for i in range(30)])
    served.kill()
    served.start()
    send([f"n{i}" for i in range(30, 60)])
    assert len(sent) == 60
    assert set(bodies(wait_for(client, "c", lambda found: set(bodies(found)) >= sent))) >= sent
