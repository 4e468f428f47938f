"""A broker's link to its supervisor: what it reports, which orders it applies, and what the end of the link does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.brokers import BrokerHome, RunningBroker, ok

from penstock.cli.brokers import link_from_broker_to_supervisor as link_module
from penstock.cli.brokers.common_topics_and_groups import FromBroker, Greeted, GreetingEnd, Order, Report
from penstock.cli.brokers.link_from_broker_to_supervisor import SupervisorLink
from penstock.errors import StoreFailed
from penstock.format.config_tables import SubscriptionGroup, TopicConfig
from penstock.protocol.codes import RequestCode
from penstock.remoting.event_loop import run
from penstock.store import deleted_topics_file

ORDERS = TopicConfig(name="orders", read_queue_nums=2, write_queue_nums=2)
DECODER: msgspec.json.Decoder[FromBroker] = msgspec.json.Decoder(FromBroker)


def in_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Runs a test on the broker's event loop."""

    def run_test(tmp_path: Path) -> None:
        run(test(tmp_path))

    run_test.__name__ = test.__name__
    return run_test


class Linked:
    """A broker, and the supervisor's side of its link."""

    def __init__(self, broker: RunningBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.broker = broker
        self.state = broker.state
        self.stopped = asyncio.Event()
        self.reader = reader
        self.writer = writer
        self.number = 0

    async def message(self) -> FromBroker:
        return DECODER.decode(await asyncio.wait_for(self.reader.readline(), 60))

    async def report(self) -> Report:
        message = await self.message()
        assert isinstance(message, Report)
        return message

    async def greeting(self) -> dict[str, Any]:
        """The entries of the greeting, of both tables."""
        assert isinstance(await self.message(), Greeted)
        found: dict[str, Any] = {}
        while not isinstance(message := await self.message(), GreetingEnd):
            assert isinstance(message, Report)
            found |= message.entries
        return found

    def order(self, topics: dict[str, Any] | None = None, groups: dict[str, Any] | None = None) -> None:
        self.number += 1
        self.writer.write(msgspec.json.encode(Order(self.number, topics or {}, groups or {})) + b"\n")

    async def applied(self) -> None:
        """Returns when all orders so far are applied: a change behind them is reported with their number."""
        seen = -1
        while seen != self.number:
            if not self.state.groups.delete("changes"):
                self.state.groups.find_or_create("changes")
            seen = (await self.report()).seen


@asynccontextmanager
async def linked(home: Path, **settings: Any) -> AsyncIterator[Linked]:
    async with BrokerHome(home).running(**settings) as broker:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        both = Linked(broker, reader, writer)
        link = SupervisorLink(broker.state, both.stopped.set)
        broker.state.topics.update(ORDERS)
        await link.start(theirs, {"broker": "127.0.0.1:1"})
        try:
            yield both
        finally:
            link.close()
            writer.close()


@in_loop
async def test_it_greets_with_its_own_topics_and_groups_and_reports_each_change(tmp_path: Path) -> None:
    async with linked(tmp_path) as broker:
        assert await broker.greeting() == {"orders": ORDERS.to_json()}, "system topics and groups are each broker's own"
        client = await broker.broker.client()
        ok(await client.send("bills"))
        report = await broker.report()
        assert (report.kind, list(report.entries), report.seen) == ("topics", ["bills"], 0)
        broker.state.groups.find_or_create("readers")
        report = await broker.report()
        assert (report.kind, report.entries) == ("groups", {"readers": SubscriptionGroup(name="readers").to_json()})
        ok(await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="bills"))
        assert (await broker.report()).entries == {"bills": None}


@in_loop
async def test_it_applies_orders_and_does_not_report_them(tmp_path: Path) -> None:
    changed = msgspec.structs.replace(ORDERS, write_queue_nums=5)
    new = TopicConfig(name="new")
    async with linked(tmp_path) as broker:
        await broker.greeting()
        client = await broker.broker.client()
        ok(await client.send("orders", b"x"))
        broker.order({"orders": changed.to_json(), "new": new.to_json()}, {"g": SubscriptionGroup(name="g").to_json()})
        await broker.applied()
        assert broker.state.topics.find("orders") == changed
        assert broker.state.topics.find("new") == new
        assert broker.state.groups.find("g") == SubscriptionGroup(name="g")
        broker.order({"orders": None, "no such topic": None, "TBW102": None}, {"g": None, "TOOLS_CONSUMER": None})
        await broker.applied()
        assert broker.state.topics.find("orders") is None
        assert broker.state.groups.find("g") is None
        assert broker.state.topics.find("TBW102") is not None
        assert broker.state.groups.find("TOOLS_CONSUMER") is not None
        assert broker.broker.store.max_offset("orders", 0) == 0, "its queues are deleted, too"


def test_a_deletion_that_the_disk_refuses_is_made_later_and_the_broker_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "DELETE_AGAIN_S", 0.01)
    tried = []

    def refuse(*arguments: object) -> None:
        tried.append(arguments)
        raise StoreFailed("no space left on the disk", path=tmp_path)

    async def main() -> None:
        async with linked(tmp_path) as broker:
            await broker.greeting()
            client = await broker.broker.client()
            ok(await client.send("orders", b"x"))
            with monkeypatch.context() as full:
                full.setattr(deleted_topics_file, "write_checksummed", refuse)
                broker.order({"orders": None})
                while len(tried) < 3:
                    await asyncio.sleep(0.01)
                await broker.applied()
                assert broker.broker.store.max_offset("orders", 0) == 1
            while broker.broker.store.max_offset("orders", 0):
                await asyncio.sleep(0.01)
            assert broker.state.topics.find("orders") is None
            assert not broker.state.tasks.has_left

    run(main())


@in_loop
async def test_an_order_beyond_max_topics_is_not_applied(tmp_path: Path) -> None:
    async with linked(tmp_path, max_topics=1, max_groups=1) as broker:
        await broker.greeting()
        broker.order({"new": TopicConfig(name="new").to_json()}, {"g": SubscriptionGroup(name="g").to_json()})
        broker.order({"orders": None})
        while broker.state.topics.find("orders") is not None:
            await asyncio.sleep(0.01)
        assert broker.state.topics.find("new") is None
        assert broker.state.groups.find("g") is None


@in_loop
async def test_an_entry_of_any_size_leaves_the_link_as_it_is(tmp_path: Path) -> None:
    async with linked(tmp_path) as broker:
        await broker.greeting()
        large = TopicConfig(name="large", extra={"attributes": {"x": "y" * 20_000}})
        broker.state.topics.update(large)
        broker.state.topics.update(TopicConfig(name="usual", extra={"attributes": {"x": "y"}}))
        assert list((await broker.report()).entries) == ["usual"]


@in_loop
async def test_the_end_of_the_link_stops_the_broker(tmp_path: Path) -> None:
    async with linked(tmp_path) as broker:
        broker.writer.close()
        await asyncio.wait_for(broker.stopped.wait(), 60)
        assert not broker.state.tasks.has_left, "that is a clean stop"


@in_loop
async def test_a_broker_whose_link_breaks_leaves(tmp_path: Path) -> None:
    async with linked(tmp_path) as broker:
        left = asyncio.Event()
        broker.state.tasks.on_leave.append(left.set)
        broker.writer.write(b"not an order\n")
        await asyncio.wait_for(left.wait(), 60)
        assert broker.state.tasks.has_left
