"""A cached, read-only view of a cluster, queried through the admin client.

All pages and the API read through this view. Answers are cached for one to four seconds, so that ten viewers cost the
cluster as much as one. Tables that would take thousands of requests are fetched one page of rows at a time. An error of
one broker becomes a row that shows the error. An error of the name servers is raised. The view is not thread-safe: use
it from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, Final, TypeVar

from penstock.client.admin import Admin
from penstock.client.admin.groups import GroupProgress
from penstock.console import replication
from penstock.console.cluster_figures import (
    BrokerFigures,
    ClientRow,
    GroupFigures,
    GroupQueue,
    GroupRow,
    QueueRow,
    TopicFigures,
    TopicKind,
    TopicRow,
)
from penstock.console.replication import BrokerReplication
from penstock.errors import PenstockError, Refused
from penstock.format.config_tables import TopicConfig
from penstock.format.constants import RETRY_PREFIX
from penstock.observation.metrics import BrokerAvailability, is_internal_group
from penstock.protocol.bodies.routes import ClusterInfo
from penstock.protocol.bodies.stats import BrokerCounters
from penstock.protocol.versions import version_name

T = TypeVar("T")
_MAX_ENTRIES: Final = 4096
_SHORT_S: Final = 1.0
_TABLE_S: Final = 4.0
"""Seconds to cache whole tables, which cost more requests and change more slowly."""
_MAX_CONCURRENT: Final = 16
"""Limit of concurrent requests, so that the brokers' other clients are not delayed."""


class Cache:
    """A cache of answers, which limits the requests of many viewers to those of one.

    Concurrent callers share one request. Errors are cached as long as answers. An answer is fetched again only when a
    caller asks for it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, key: Hashable, fetch: Callable[[], Awaitable[T]], seconds: float = 1.0) -> T:
        """Returns the answer cached under `key`, or calls `fetch` if none was fetched in the last `seconds`."""
        now = self._clock()
        entry = self._entries.get(key)
        if entry is None or (entry[1].done() and entry[0] <= now):
            if len(self._entries) >= _MAX_ENTRIES:
                self._evict(now)
            task: asyncio.Future[T] = asyncio.ensure_future(fetch())
            task.add_done_callback(lambda done: self._done(key, done, seconds))
            entry = self._entries[key] = (now, task)
        answer: T = await asyncio.shield(entry[1])
        return answer

    def clear(self) -> None:
        """Discards all answers except requests still in flight. Call it after a change to the cluster."""
        self._entries = {key: entry for key, entry in self._entries.items() if not entry[1].done()}

    def _done(self, key: Hashable, done: asyncio.Future[Any], seconds: float) -> None:
        if not done.cancelled():
            done.exception()  # marks the exception as retrieved, because all callers may have been cancelled
        entry = self._entries.get(key)
        if entry is not None and entry[1] is done:
            self._entries[key] = (self._clock() + seconds, done)

    def _evict(self, now: float) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if not entry[1].done() or entry[0] > now}


class ClusterView:
    """A cached, read-only view of one cluster."""

    def __init__(self, admin: Admin, cache: Cache | None = None) -> None:
        self.admin = admin
        self.cache = cache or Cache()

    # -- brokers ---------------------------------------------------------------------------------------------

    async def info(self) -> ClusterInfo:
        return await self.cache.get("info", self.admin.cluster.info)

    async def brokers(self) -> list[BrokerFigures]:
        """Returns the figures of all brokers, including slaves. Raises the errors of the name servers."""
        return await self.cache.get("brokers", self._brokers, _SHORT_S)

    async def _brokers(self) -> list[BrokerFigures]:
        info = await self.info()
        brokers = [
            (name, data.cluster, address, broker_id)
            for name, data in sorted(info.broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
        return await gather_limited(self._broker(*broker) for broker in brokers)

    async def _broker(self, name: str, cluster: str, address: str, broker_id: int) -> BrokerFigures:
        try:
            runtime_info = await self.admin.cluster.runtime_info(address)
        except PenstockError as error:
            return BrokerFigures(
                name=name,
                cluster=cluster,
                address=address,
                broker_id=broker_id,
                state=BrokerAvailability.UNREACHABLE,
                why=str(error),
            )
        return BrokerFigures.of(name, cluster, address, broker_id, runtime_info)

    async def replication(self) -> list[BrokerReplication]:
        """Returns masters, slaves and replication lag. Brokers that do not report these are left out."""
        return await self.cache.get("replication", self._replication, _SHORT_S)

    async def _replication(self) -> list[BrokerReplication]:
        answers = await gather_limited(
            replication.fetch_replication(self.admin, broker) for broker in await self.brokers()
        )
        return [each for each in answers if each is not None]

    async def counters(self) -> list[tuple[BrokerFigures, BrokerCounters]]:
        """Returns what each broker has counted since its start. Java's brokers, and those that do not answer, are left
        out.
        """
        brokers = await self.brokers()
        answers = await gather_limited(self._or_none(self.admin.cluster.counters(each.address)) for each in brokers)
        return [(broker, counters) for broker, counters in zip(brokers, answers, strict=True) if counters is not None]

    # -- topics ----------------------------------------------------------------------------------------------

    async def topics(self) -> list[TopicRow]:
        """Returns all topics, sorted by name."""
        return await self.cache.get("topics", self._topics, _TABLE_S)

    async def _topics(self) -> list[TopicRow]:
        info, masters = await self.info(), await self._masters()
        own = frozenset(info.cluster_addr_table) | frozenset(info.broker_addr_table)
        configs: dict[str, dict[str, TopicConfig]] = {}
        tables = await gather_limited(self.admin.topics.configs(address) for address in masters.values())
        for broker, table in zip(masters, tables, strict=True):
            for name, config in table.items():
                configs.setdefault(name, {})[broker] = config
        return [_topic_row(name, by_broker, own) for name, by_broker in sorted(configs.items())]

    async def _masters(self) -> dict[str, str]:
        """Returns the masters' addresses by broker name. Raises NoRoute if there are none."""
        return await self.cache.get("masters", self.admin.cluster.masters)

    async def _brokers_of(self, topic: str) -> list[str] | None:
        """Returns the addresses of the masters that have a topic; None if the cached topics do not contain it."""
        by_topic = await self.cache.get("brokers by topic", self._brokers_by_topic, _TABLE_S)
        return by_topic.get(topic)

    async def _brokers_by_topic(self) -> dict[str, list[str]]:
        masters = await self._masters()
        return {row.name: [masters[each] for each in row.brokers if each in masters] for row in await self.topics()}

    async def topic(self, name: str) -> TopicFigures:
        """Returns the figures of one topic. Raises NoRoute if the topic does not exist."""
        return await self.cache.get(("topic", name), lambda: self._topic(name), _SHORT_S)

    async def topic_page(self, names: Iterable[str]) -> list[TopicFigures | None]:
        """Returns the figures of the given topics, in order. A topic that cannot be queried is None."""
        return await gather_limited(self._or_none(self.topic(name)) for name in names)

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
        """Returns the queues of the given topics, by topic. Topics that cannot be queried are left out."""
        names = list(names)
        answers = await gather_limited(self._or_none(self._queues(name)) for name in names)
        return {name: queues for name, queues in zip(names, answers, strict=True) if queues is not None}

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
        """Returns the incoming messages per second, and the average message size in bytes over the last day.

        The size is None if no message came since the brokers started.
        """
        rate, messages, size = 0.0, 0, 0
        for address in (await self._masters()).values():
            try:
                nums = await self.admin.cluster.broker_stats(address, "TOPIC_PUT_NUMS", name)
                sizes = await self.admin.cluster.broker_stats(address, "TOPIC_PUT_SIZE", name)
            except Refused:  # no message of this topic since the broker's start
                continue
            rate += nums.stats_minute.tps
            messages += nums.stats_day.sum
            size += sizes.stats_day.sum
        return rate, size / messages if messages else None

    async def topic_groups(self, name: str) -> list[str]:
        return await self.cache.get(("topic groups", name), lambda: self.admin.topics.groups(name), _TABLE_S)

    # -- groups ----------------------------------------------------------------------------------------------

    async def progress(self) -> dict[str, GroupProgress]:
        """Returns the progress of all groups by name, without system groups."""
        return await self.cache.get("progress", self._progress, _TABLE_S)

    async def _progress(self) -> dict[str, GroupProgress]:
        progress = await self.admin.groups.all_progress()
        for name in await self.admin.groups.configs():
            progress.setdefault(name, GroupProgress(name, 0.0, []))
        return {name: progress[name] for name in sorted(progress) if not is_internal_group(name)}

    async def groups(self) -> list[GroupRow]:
        """Returns all groups, sorted by name."""
        now = time.time_ns() // 1_000_000
        return [_group_row(progress, now) for progress in (await self.progress()).values()]

    async def group(self, name: str) -> GroupFigures:
        """Returns one group with its connected clients."""
        return await self.cache.get(("group", name), lambda: self._group(name), _SHORT_S)

    async def _group(self, name: str) -> GroupFigures:
        progress = await self.admin.groups.progress(name)
        clients: list[ClientRow] = []
        subscriptions: dict[str, str] = {}
        model = ""
        try:
            connections = await self.admin.groups.connections(name)
        except Refused:  # no client is connected
            pass
        else:
            model = connections.message_model.value
            subscriptions = {topic: each.sub_string for topic, each in sorted(connections.subscription_table.items())}
            clients = [
                ClientRow(
                    client_id=each.client_id,
                    address=each.client_addr,
                    language=each.language,
                    version=version_name(each.version),
                )
                for each in sorted(connections.connection_set, key=lambda each: each.client_id)
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

    async def _or_none(self, query: Awaitable[T]) -> T | None:
        try:
            return await query
        except PenstockError:
            return None


async def gather_limited(queries: Iterable[Awaitable[T]]) -> list[T]:
    """Returns the answers of all queries in order. At most `_MAX_CONCURRENT` queries run at once."""
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def one(each: Awaitable[T]) -> T:
        async with slots:
            return await each

    return await asyncio.gather(*(one(each) for each in queries))


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
