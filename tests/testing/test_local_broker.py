"""The broker for tests: as a `with`, as an `async with`, and again after a stop."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from penstock.client.message import Message
from penstock.client.sync import Admin, Producer, PullConsumer
from penstock.errors import BadSettings, PenstockError, Refused, Unreachable
from penstock.testing import LocalBroker, broker


def bodies(b: LocalBroker, topic: str) -> list[bytes]:
    b.settle()
    with PullConsumer("look", b.namesrv) as consumer:
        pages = [consumer.pull(queue, 0) for queue in consumer.queues(topic)]
    return sorted(message.body for page in pages for message in page.messages)


def is_served(address: str) -> bool:
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


def test_it_serves_within_the_block_and_leaves_nothing_behind() -> None:
    with broker({"orders": 2}) as b:
        with Producer("PID", b.namesrv) as producer:
            assert len(producer.queues("orders")) == 2
            assert producer.send(Message("orders", b"hello")).ok
        assert bodies(b, "orders") == [b"hello"]
        path = b.store_path
        assert (path / "commitlog").is_dir()
        addresses = b.namesrv, b.address
        assert all(map(is_served, addresses))
    assert not path.exists()
    assert not any(map(is_served, addresses))


def test_it_is_an_asynchronous_block_too() -> None:
    async def main() -> None:
        async with broker(["orders"]) as b:
            with Producer("PID", b.namesrv) as producer:
                assert len(producer.queues("orders")) == 4

    asyncio.run(main())


def test_two_of_them_do_not_meet() -> None:
    with broker(["mine"]) as one, broker(["yours"]) as two:
        assert one.namesrv != two.namesrv
        with one.admin() as first, two.admin() as second:
            assert "mine" in first.topics.names()
            assert "mine" not in second.topics.names()


def test_a_restart_keeps_addresses_and_messages() -> None:
    with broker(["orders"]) as b:
        before = b.namesrv, b.address, b.store_path
        with Producer("PID", b.namesrv) as producer:
            producer.send(Message("orders", b"kept"))
        b.restart()
        assert (b.namesrv, b.address, b.store_path) == before
        assert bodies(b, "orders") == [b"kept"]


def test_a_store_of_ones_own_is_kept(tmp_path: Path) -> None:
    for body in (b"one", b"two"):
        with broker(["orders"], store_path=tmp_path / "store") as b, Producer("PID", b.namesrv) as producer:
            assert b.store_path == tmp_path / "store"
            producer.send(Message("orders", body))
    with broker(store_path=tmp_path / "store") as b:
        assert bodies(b, "orders") == [b"one", b"two"]


def test_settings_are_rocketmqs() -> None:
    settings = {"maxMessageSize": 100, "brokerName": "mine", "autoCreateTopicEnable": False}
    with broker(["orders"], settings=settings) as b, Producer("PID", b.namesrv) as producer:
        assert {queue.broker_name for queue in producer.queues("orders")} == {"mine"}
        with pytest.raises(Refused):
            producer.send(Message("orders", b"x" * 101))


@pytest.mark.parametrize(
    ("topics", "settings", "why"),
    [
        ([], {"maxMesageSize": 1}, "did you mean 'maxMessageSize'"),
        (["no topic"], {}, "not a valid topic name: 'no topic'"),
    ],
)
def test_what_cannot_be_started_says_why_and_leaves_nothing_open(
    topics: list[str], settings: dict[str, object], why: str
) -> None:
    b = broker(topics, settings=settings)
    with pytest.raises(BadSettings, match=why):
        b.start()
    with pytest.raises(PenstockError, match="has not been started"):
        _ = b.store_path
    with pytest.raises(PenstockError, match="is not running"):
        b.settle()


def test_it_shows_what_is_stored() -> None:
    with broker({"orders": 3}, settings={"enabledAppendPropCRC": "true"}) as b:
        with Producer("PID", b.namesrv) as producer:
            for number in range(2500):
                producer.send_oneway(Message("orders", b"%d" % number, tags="paid"))
            producer.send(Message("orders", b"last"))
            while len(b.messages("orders")) < 2501:  # the others have no answer
                pass
        found = b.messages("orders")
        assert sorted(message.body for message in found) == sorted([*(b"%d" % n for n in range(2500)), b"last"])
        assert [message.physical_offset for message in found] == sorted(message.physical_offset for message in found)
        assert {message.queue.broker_name for message in found} == {"broker-a"}
        assert found[0].tags == "paid"
        assert "__CRC32#" not in found[0].properties
        assert b.messages("never-heard-of") == []
        b.stop()
        with pytest.raises(PenstockError, match="is not running"):
            b.messages("orders")


def test_an_administrator_comes_with_it() -> None:
    with broker() as b, b.admin() as admin:
        assert isinstance(admin, Admin)
        assert list(admin.cluster.masters().values()) == [b.address]


def test_a_start_that_fails_leaves_nothing_behind() -> None:
    with broker() as b:
        b.stop()
        host, port = b.address.split(":")
        with socket.create_server((host, int(port))), pytest.raises(Unreachable, match="already in use"):
            b.start()
        assert not is_served(b.namesrv)
        b.start()
        assert is_served(b.namesrv)
