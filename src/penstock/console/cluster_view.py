"""Answers that are kept for a moment, so that many who look cost as much as one.

What is being asked already is not asked again: who comes meanwhile waits for the same answer. Errors are kept as
briefly as answers are. Belongs to the loop's thread; nothing is refreshed unless somebody asks.


What a cluster says, asked of its name servers and brokers as an administrator's client does.

All pages and the API read through this. Whatever is asked is kept for a moment (`Cache`), so that ten people who look
cost the cluster as much as one. What would be thousands of requests is asked for a page of rows at a time. An error of
one broker is a row that says so; an error of the name servers is raised, as one of the client's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, Final, TypeVar

from penstock.client.admin import Admin
from penstock.client.admin.groups import GroupProgress
from penstock.console import replication
from penstock.console.figures import (
    BrokerAvailability,
    BrokerFigures,
    ClientRow,
    GroupFigures,
    GroupQueue,
    GroupRow,
    QueueRow,
    TopicFigures,
    TopicKind,
    TopicRow,
    is_system_group,
)
from penstock.console.replication import BrokerReplication
from penstock.errors import PenstockError, Refused
from penstock.format.config_tables import TopicConfig
from penstock.format.constants import RETRY_PREFIX
from penstock.protocol.bodies.routes import ClusterInfo
from penstock.protocol.versions import version_name

T = TypeVar("T")
_MOST: Final = 4096


class Cache:
    """By key: the answer, and until when it holds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]], seconds: float = 1.0) -> T:
        """What `ask` answers, or answered within the last `seconds`."""
        now = self._clock()
        kept = self._kept.get(key)
        if kept is None or (kept[1].done() and kept[0] <= now):
            if len(self._kept) >= _MOST:
                self._forget_old(now)
            task: asyncio.Future[T] = asyncio.ensure_future(ask())
            task.add_done_callback(lambda done: self._done(key, done, seconds))
            kept = self._kept[key] = (now, task)
        answer: T = await asyncio.shield(kept[1])
        return answer

    def forget(self) -> None:
        """After a change: whoever looks next sees it."""
        self._kept = {key: kept for key, kept in self._kept.items() if not kept[1].done()}

    def _done(self, key: Hashable, done: asyncio.Future[Any], seconds: float) -> None:
        if not done.cancelled():
            done.exception()  # it is told to whoever waits; nobody may be left who does
        kept = self._kept.get(key)
        if kept is not None and kept[1] is done:
            self._kept[key] = (self._clock() + seconds, done)

    def _forget_old(self, now: float) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if not kept[1].done() or kept[0] > now}


_MOMENT_S: Final = 1.0
_TABLE_S: Final = 4.0
"""For tables of everything, which cost more, and change more slowly."""
_AT_ONCE: Final = 16
"""Requests under way at the same time, so that a broker's other clients get their turn."""


class ClusterView:
    """One cluster. Belongs to the loop's thread."""

    def __init__(self, admin: Admin, cache: Cache | None = None) -> None:
        self.admin = admin
        self.cache = cache or Cache()

    # -- brokers ---------------------------------------------------------------------------------------------

    async def info(self) -> ClusterInfo:
        return await self.cache.get("info", self.admin.cluster.info)

    async def brokers(self) -> list[BrokerFigures]:
        """How all brokers run, slaves too. Raises what the name servers raise."""
        return await self.cache.get("brokers", self._brokers, _MOMENT_S)

    async def _brokers(self) -> list[BrokerFigures]:
        info = await self.info()
        places = [
            (name, data.cluster, address, broker_id)
            for name, data in sorted(info.broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
        return await together(self._broker(*place) for place in places)

    async def _broker(self, name: str, cluster: str, address: str, broker_id: int) -> BrokerFigures:
        try:
            told = await self.admin.cluster.runtime_info(address)
        except PenstockError as error:
            why = str(error)
            return BrokerFigures(
                name=name,
                cluster=cluster,
                address=address,
                broker_id=broker_id,
                state=BrokerAvailability.UNREACHABLE,
                why=why,
            )
        return BrokerFigures.of(name, cluster, address, broker_id, told)

    async def replication(self) -> list[BrokerReplication]:
        """Who follows whom; brokers that do not tell are left out."""
        return await self.cache.get("replication", self._replication, _MOMENT_S)

    async def _replication(self) -> list[BrokerReplication]:
        found = await together(replication.ask(self.admin, broker) for broker in await self.brokers())
        return [each for each in found if each is not None]

    # -- topics ----------------------------------------------------------------------------------------------

    async def topics(self) -> list[TopicRow]:
        """All topics, by name."""
        return await self.cache.get("topics", self._topics, _TABLE_S)

    async def _topics(self) -> list[TopicRow]:
        info, masters = await self.info(), await self._masters()
        own = frozenset(info.cluster_addr_table) | frozenset(info.broker_addr_table)
        found: dict[str, dict[str, TopicConfig]] = {}
        tables = await together(self.admin.topics.configs(address) for address in masters.values())
        for broker, table in zip(masters, tables, strict=True):
            for name, config in table.items():
                found.setdefault(name, {})[broker] = config
        return [_topic_row(name, configs, own) for name, configs in sorted(found.items())]

    async def _masters(self) -> dict[str, str]:
        """The masters' addresses by broker name. Raises NoRoute if there is none."""
        return await self.cache.get("masters", self.admin.cluster.masters)

    async def _brokers_of(self, topic: str) -> list[str] | None:
        """The addresses of the masters that have a topic; None if it may be too new to be known here."""
        places = await self.cache.get("places", self._places, _TABLE_S)
        return places.get(topic)

    async def _places(self) -> dict[str, list[str]]:
        masters = await self._masters()
        return {row.name: [masters[each] for each in row.brokers if each in masters] for row in await self.topics()}

    async def topic(self, name: str) -> TopicFigures:
        """How one topic stands. Raises NoRoute if there is none."""
        return await self.cache.get(("topic", name), lambda: self._topic(name), _MOMENT_S)

    async def topic_page(self, names: Iterable[str]) -> list[TopicFigures | None]:
        """How some topics stand; None for one that cannot be asked about."""
        return await together(self._or_none(self.topic(name)) for name in names)

    async def _topic(self, name: str) -> TopicFigures:
        queues, (rate, size) = await asyncio.gather(self._queues(name), self._rate_and_size(name))
        return TopicFigures(
            name=name,
            queues=queues,
            messages=sum(queue.messages for queue in queues),
            last_update_ms=max((queue.last_update_ms for queue in queues), default=0),
            in_per_second=rate,
            average_size=size,
        )

    async def queues(self, names: Iterable[str]) -> dict[str, list[QueueRow]]:
        """What the queues of topics hold, by topic; those that cannot be asked about are left out."""
        names = list(names)
        found = await together(self._or_none(self._queues(name)) for name in names)
        return {name: queues for name, queues in zip(names, found, strict=True) if queues is not None}

    async def _queues(self, name: str) -> list[QueueRow]:
        stats = await self.admin.topics.stats(name, await self._brokers_of(name))
        return [
            QueueRow(
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                min_offset=at.min_offset,
                max_offset=at.max_offset,
                last_update_ms=max(0, at.last_update_timestamp),
            )
            for queue, at in stats.items()
        ]

    async def _rate_and_size(self, name: str) -> tuple[float, float | None]:
        """Messages that come in a second, and the average size of one; None if none came since the start."""
        rate, messages, size = 0.0, 0, 0
        for address in (await self._masters()).values():
            try:
                nums = await self.admin.cluster.broker_stats(address, "TOPIC_PUT_NUMS", name)
                sizes = await self.admin.cluster.broker_stats(address, "TOPIC_PUT_SIZE", name)
            except Refused:  # nothing came in since its start
                continue
            rate += nums.stats_minute.tps
            messages += nums.stats_day.sum
            size += sizes.stats_day.sum
        return rate, size / messages if messages else None

    async def topic_groups(self, name: str) -> list[str]:
        return await self.cache.get(("topic groups", name), lambda: self.admin.topics.groups(name), _TABLE_S)

    # -- groups ----------------------------------------------------------------------------------------------

    async def progress(self) -> dict[str, GroupProgress]:
        """How far all groups are, by name; those of brokers and tools are left out."""
        return await self.cache.get("progress", self._progress, _TABLE_S)

    async def _progress(self) -> dict[str, GroupProgress]:
        found = await self.admin.groups.all_progress()
        for name in await self.admin.groups.configs():
            found.setdefault(name, GroupProgress(name, 0.0, []))
        return {name: found[name] for name in sorted(found) if not is_system_group(name)}

    async def groups(self) -> list[GroupRow]:
        """All groups, by name."""
        now = time.time_ns() // 1_000_000
        return [_group_row(progress, now) for progress in (await self.progress()).values()]

    async def group(self, name: str) -> GroupFigures:
        """One group, with its clients where it has any."""
        return await self.cache.get(("group", name), lambda: self._group(name), _MOMENT_S)

    async def _group(self, name: str) -> GroupFigures:
        progress = await self.admin.groups.progress(name)
        clients: list[ClientRow] = []
        subscriptions: dict[str, str] = {}
        model = ""
        try:
            found = await self.admin.groups.connections(name)
        except Refused:  # nobody is connected
            pass
        else:
            model = found.message_model.value
            subscriptions = {topic: each.sub_string for topic, each in sorted(found.subscription_table.items())}
            clients = [
                ClientRow(
                    client_id=each.client_id,
                    address=each.client_addr,
                    language=each.language,
                    version=version_name(each.version),
                )
                for each in sorted(found.connection_set, key=lambda each: each.client_id)
            ]
        queues = [
            GroupQueue(
                topic=each.queue.topic,
                broker=each.queue.broker_name,
                queue_id=each.queue.queue_id,
                broker_offset=each.broker_offset,
                consumer_offset=each.consumer_offset,
                lag=each.lag,
                last_consumed_ms=max(0, each.last_timestamp),
            )
            for each in progress.queues
        ]
        return GroupFigures(
            name=name,
            lag=progress.lag,
            consume_per_second=progress.consume_tps,
            queues=queues,
            clients=clients,
            subscriptions=subscriptions,
            model=model,
        )

    async def _or_none(self, asked: Awaitable[T]) -> T | None:
        try:
            return await asked
        except PenstockError:
            return None


async def together(asked: Iterable[Awaitable[T]]) -> list[T]:
    """All answers in order, a few asked for at a time."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(each: Awaitable[T]) -> T:
        async with places:
            return await each

    return await asyncio.gather(*(one(each) for each in asked))


def _topic_row(name: str, configs: dict[str, TopicConfig], own: frozenset[str]) -> TopicRow:
    perm = 0
    for config in configs.values():
        perm |= config.perm
    return TopicRow(
        name=name,
        kind=TopicKind.of(name, own),
        read_queues=sum(config.read_queue_nums for config in configs.values()),
        write_queues=sum(config.write_queue_nums for config in configs.values()),
        perm=perm,
        order=any(config.order for config in configs.values()),
        brokers=sorted(configs),
    )


def _group_row(progress: GroupProgress, now: int) -> GroupRow:
    waiting = [each for each in progress.queues if each.lag]
    oldest = min((each.last_timestamp for each in waiting if each.last_timestamp > 0), default=0)
    return GroupRow(
        name=progress.group,
        topics=sorted({each.queue.topic for each in progress.queues if not each.queue.topic.startswith(RETRY_PREFIX)}),
        lag=progress.lag,
        consume_per_second=progress.consume_tps,
        last_consumed_ms=max((each.last_timestamp for each in progress.queues), default=0),
        behind_ms=max(0, now - oldest) if oldest else 0,
    )
