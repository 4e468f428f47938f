"""Finding brokers: routes, several name servers, several brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from client.test_push_consumer import send_numbers
from support.clients import FakeCluster, Gathered, until_true
from support.loopback import SOON_S

from penstock.client import Admin, ClientConfig, Message, MessageQueue, Producer, ProducerOptions, PushConsumer
from penstock.client.routes import Route, Routes
from penstock.errors import BadRequest, BadSettings, NoRoute, Refused, Unreachable
from penstock.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.testing import broker

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker


def route(*brokers: tuple[str, int, dict[int, str]], order: str | None = None, queues: int = 2) -> Route:
    """A route over (broker name, perm, addresses)."""
    return Route(
        "T",
        TopicRouteData(
            broker_datas=[BrokerData(broker_name=name, broker_addrs=addresses) for name, _, addresses in brokers],
            queue_datas=[
                QueueData(broker_name=name, perm=perm, read_queue_nums=queues, write_queue_nums=queues)
                for name, perm, _ in brokers
            ],
            order_topic_conf=order,
        ),
    )


def names(queues: object) -> list[tuple[str, int]]:
    return [(queue.broker_name, queue.queue_id) for queue in queues]  # type: ignore[attr-defined]


def test_queues_may_be_written_where_there_is_a_master_and_the_permission() -> None:
    found = route(("b", 6, {0: "b:1"}), ("a", 6, {0: "a:1"}), ("slave", 6, {1: "s:1"}), ("full", 4, {0: "f:1"}))
    assert names(found.publish_queues) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert names(found.subscribe_queues) == [
        (name, queue_id) for name in ("a", "b", "full", "slave") for queue_id in (0, 1)
    ]
    assert found.masters == {"a": "a:1", "b": "b:1", "full": "f:1"}


def test_the_order_of_an_ordered_topic_is_that_of_its_configuration() -> None:
    found = route(("a", 6, {0: "a:1"}), ("b", 6, {0: "b:1"}), order="b:1;a:2")
    assert names(found.publish_queues) == [("b", 0), ("a", 0), ("a", 1)]


@pytest.mark.parametrize("namesrv", ["127.0.0.1:1;{}", "{};127.0.0.1:1"])
def test_a_name_server_that_is_down_is_passed_over(run: Run, b: LocalBroker, namesrv: str) -> None:
    async def main() -> None:
        async with Producer("PID", namesrv.format(b.namesrv)) as producer:
            assert (await producer.send(Message("orders", b"x"))).ok

    run(main())


def test_without_any_name_server_the_error_names_them(run: Run) -> None:
    async def main() -> None:
        async with Producer("PID", "127.0.0.1:1;127.0.0.1:2") as producer:
            with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
                await producer.send(Message("orders", b"x"))

    run(main())


def test_the_environment_names_the_name_servers(b: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert ClientConfig().name_servers == ["127.0.0.1:9876"]
    monkeypatch.setenv("NAMESRV_ADDR", " 10.0.0.1:9876 ; 10.0.0.2:9876;")
    assert ClientConfig().name_servers == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert ClientConfig("h:1").name_servers == ["h:1"]


@pytest.mark.parametrize("text", ["nowhere", "host:x", ";;"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadSettings, match="name server"):
        ClientConfig(text)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_what_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(BadSettings, match=r"setting timeout_s is '.+'; it must be a number of at least 0"):
        ClientConfig(timeout_s=seconds)


def two_brokers(b: LocalBroker) -> LocalBroker:
    """A second broker of the cluster, known to the first one's name server."""
    return broker({"orders": 4}, settings={"brokerName": "broker-b", "namesrvAddr": b.namesrv})


async def until_there_are_two(b: LocalBroker) -> None:
    async with Admin(b.namesrv) as admin:
        async with asyncio.timeout(30):
            while len((await admin.topics.route("orders")).masters) < 2:
                await asyncio.sleep(0.02)


def test_messages_go_to_all_brokers_and_come_from_all(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        async with two_brokers(b):
            await until_there_are_two(b)
            async with PushConsumer("CID", gathered, b.namesrv, subscriptions={"orders": "*"}):
                await gathered.until_has(await send_numbers(b.namesrv, 0, 80))
        assert {message.broker_name for message in gathered.messages} == {"broker-a", "broker-b"}
        assert gathered.counts.total() == 80

    run(main())


def test_when_a_broker_fails_its_messages_go_to_another(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with two_brokers(b) as other:
            await until_there_are_two(b)
            async with Producer("PID", b.namesrv, options=ProducerOptions(timeout_s=20)) as producer:
                before = {(await producer.send(Message("orders", b"x"))).queue.broker_name for _ in range(8)}
                assert before == {"broker-a", "broker-b"}
                await asyncio.to_thread(other.stop)
                after = [(await producer.send(Message("orders", b"y"))).queue.broker_name for _ in range(20)]
                assert set(after) == {"broker-a"}

    run(main())


def test_a_broker_that_joins_is_noticed_at_the_next_refresh(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        config = ClientConfig(b.namesrv, route_refresh_s=0.1)
        gathered = Gathered()
        async with PushConsumer("CID", gathered, config, subscriptions={"orders": "*"}) as consumer:
            await until_true(lambda: len(consumer.assigned) == 5)  # one is the retry topic's
            async with two_brokers(b):
                await until_true(lambda: {queue.broker_name for queue in consumer.assigned} == {"broker-a", "broker-b"})

    run(main())


@pytest.mark.parametrize("is_chosen", [False, True], ids=["in turn", "chosen queue"])
def test_a_producer_whose_master_was_gone_finds_it_when_it_is_back(run: Run, is_chosen: bool) -> None:
    """While a slave keeps the route alive, it has no queue that may be written."""

    def stored(connection: Connection, command: Command) -> Command:
        ext = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "7"}
        return command.reply(ResponseCode.SUCCESS, ext=ext)

    queue = MessageQueue(topic="orders", broker_name="fake", queue_id=0) if is_chosen else None

    async def main() -> None:
        cluster = FakeCluster({RequestCode.SEND_MESSAGE_V2: stored}, broker_ids=(1,))
        async with cluster.running(), Producer("PID", ClientConfig(cluster.namesrv, route_refresh_s=1000)) as producer:
            with pytest.raises(NoRoute, match=r"has no writable queue|has no master at the moment"):
                await producer.send(Message("orders", b"x"), queue=queue)
            cluster.broker_ids = (0, 1)

            async def is_sent() -> bool:
                with contextlib.suppress(NoRoute):
                    return (await producer.send(Message("orders", b"x"), queue=queue)).queue_offset == 7
                await asyncio.sleep(0.01)
                return False

            async with asyncio.timeout(SOON_S):
                while not await is_sent():
                    pass

    run(main())


def test_the_first_error_fetches_a_route_at_once_and_further_ones_with_growing_pauses() -> None:
    fetched: list[float] = []

    class Clock(asyncio.SelectorEventLoop):
        now = 100.0

        def time(self) -> float:
            return self.now

    class Counted(Routes):
        async def refresh(self, topics: Iterable[str] | None = None) -> None:
            fetched.append(round(loop.now - 100.0, 2))

    async def fail_for(seconds: float) -> None:
        until = loop.now + seconds
        while loop.now < until:
            routes.refresh_soon("T")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            loop.now += 0.01

    loop = Clock()
    try:
        routes = Counted(None)  # type: ignore[arg-type]
        loop.run_until_complete(fail_for(3.0))
        assert fetched[:4] == pytest.approx([0.0, 0.1, 0.24, 0.41], abs=0.05)
        pauses = [after - before for before, after in pairwise(fetched)]
        assert pauses == pytest.approx(sorted(pauses), abs=0.02)
        assert max(pauses) <= 1.01
        loop.now += 5.0
        fetched.clear()
        loop.run_until_complete(fail_for(0.15))
        assert len(fetched) == 2
        loop.run_until_complete(fail_for(3.0))
        for number in range(2):
            routes._store(Route("T", TopicRouteData(order_topic_conf=str(number))))
        fetched.clear()
        loop.run_until_complete(fail_for(0.15))
        assert len(fetched) == 2, "a route that has changed ends the long pauses"
    finally:
        loop.close()


def test_a_broker_that_is_not_the_master_any_more_has_the_route_fetched_again(run: Run) -> None:
    def refuse(connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark="this broker is a slave")

    async def check() -> None:
        cluster = FakeCluster({RequestCode.SEND_MESSAGE_V2: refuse})
        options = ProducerOptions(retries=0)
        async with cluster.running(), Producer("PID", cluster.namesrv, options=options) as producer:
            with pytest.raises(Refused, match="is a slave"):
                await producer.send(Message("T", b"x"))
            await until_true(lambda: len(cluster.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) >= 2)

    run(check())


def test_an_address_is_that_of_the_route_that_was_fetched_last(run: Run) -> None:
    """Of two topics at one broker, the second is deleted, and another machine becomes the broker's master."""
    master, topics = "127.0.0.1:1", {"kept", "deleted"}

    def route_of(connection: Connection, command: Command) -> Command:
        if command.ext["topic"] not in topics:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST)
        data = TopicRouteData(
            broker_datas=[BrokerData(broker_name="a", broker_addrs={0: master})],
            queue_datas=[QueueData(broker_name="a", perm=6, read_queue_nums=1, write_queue_nums=1)],
        )
        return command.reply(ResponseCode.SUCCESS, body=data.to_bytes())

    async def main() -> None:
        nonlocal master
        handlers = {RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of}
        async with FakeCluster(handlers).running() as fake, Admin(fake.namesrv) as admin:
            routes = admin._instance.routes
            await routes.find("kept")
            await routes.find("deleted")
            topics.remove("deleted")
            master = "127.0.0.1:2"
            await routes.refresh()
            assert routes.address("a") == master

    run(main())


@pytest.mark.parametrize(
    ("queues", "order"), [((2**31 - 1, 1), None), ((1, 2**31 - 1), None), ((1, 1), "a:1;b:" + "9" * 5000)]
)
def test_a_route_with_more_queues_than_can_be_is_refused_before_they_are_listed(
    run: Run, queues: tuple[int, int], order: str | None
) -> None:
    def route_of(connection: Connection, command: Command) -> Command:
        data = TopicRouteData(
            broker_datas=[BrokerData(broker_name="a", broker_addrs={0: "127.0.0.1:1"})],
            queue_datas=[QueueData(broker_name="a", perm=6, read_queue_nums=queues[0], write_queue_nums=queues[1])],
            order_topic_conf=order,
        )
        return command.reply(ResponseCode.SUCCESS, body=data.to_bytes())

    async def main() -> None:
        handlers = {RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of}
        async with FakeCluster(handlers).running() as fake, Producer("PID", fake.namesrv) as producer:
            with pytest.raises(BadRequest, match="too many queues"):
                await producer.send(Message("T", b"x"), timeout_s=5)
            with pytest.raises(BadRequest, match="too many queues"):
                await producer.send(Message("T", b"x"))

    run(main())
