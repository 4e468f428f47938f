"""A broker's link to the supervisor that started it: a socket, on which both send lines of JSON.

The socket is the process's standard input. The broker says that it serves, shows its tables, and from then on reports
their changes; the supervisor sends orders (`cli.brokers.common_topics_and_groups` has the rules). No order goes over
the network, so it needs no account, and works whatever TLS and access control say. The end of the link ends the broker
as SIGTERM does: the supervisor has stopped it, or has died.

Use it from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from penstock.broker.admin.topics import delete_topic
from penstock.broker.consumers import is_legal_group
from penstock.broker.table_persistence import BrokerState
from penstock.broker.topics import is_system_group, is_topic_of_broker, system_groups
from penstock.cli.brokers.common_topics_and_groups import (
    KINDS,
    FromBroker,
    Greeted,
    GreetingEnd,
    Json,
    Key,
    Kind,
    Order,
    Report,
)
from penstock.errors import PenstockError
from penstock.format.config_tables import SubscriptionGroup, TopicConfig
from penstock.format.msgspec_warm_up import prepared
from penstock.format.topics import is_legal_topic
from penstock.rate_limited_log import RateLimitedLog
from penstock.task_supervision import OnDeath

log = logging.getLogger("penstock.serve")
NAMES_IN_LINE: Final = 500
MAX_EXTRA: Final = 16 << 10
"""Bytes of an entry's fields that Penstock does not know. The others take some hundred."""
MAX_LINE: Final = 16 << 20
"""Bytes; more than NAMES_IN_LINE of the largest entries."""
_GATHER_S: Final = 0.05
"""Seconds. Changes within this time are reported together."""
DELETE_AGAIN_S: Final = 10.0
_DELETE: Final = "deletions of topics that failed"
_READ: Final = "orders of the supervisor"
_WRITE: Final = "reports to the supervisor"
_SYSTEM_GROUPS: Final = frozenset(group.name for group in system_groups())

Config = TopicConfig | SubscriptionGroup


def inherited_link() -> socket.socket:
    """Returns the socket that the supervisor gave this process as standard input, which is then empty."""
    link = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return link


class SupervisorLink:
    """The broker's side of the link."""

    def __init__(self, state: BrokerState, stop: Callable[[], object]) -> None:
        """`stop` is called when the link has ended."""
        self._state = state
        self._stop = stop
        self._told: dict[Key, Config] = {}
        """The entries that the supervisor knows."""
        self._undeleted: set[str] = set()
        """Topics that the table has lost, and whose queues the disk did not delete."""
        self._seen = 0
        self._changed = asyncio.Event()
        self._decoder = msgspec.json.Decoder(prepared(Order))
        self._refusals = RateLimitedLog(log)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def start(self, link: socket.socket, addresses: Mapping[str, str]) -> None:
        """Greets the supervisor. From now on changes are reported, and orders applied. `addresses` are the broker's."""
        state = self._state
        self._reader, self._writer = await asyncio.open_unix_connection(sock=link, limit=MAX_LINE)
        saved_at: dict[Kind, int] = {"topics": state.topics.saved_at, "groups": state.groups.saved_at}
        self._send(Greeted(dict(addresses), saved_at))
        self._report()
        self._send(GreetingEnd())
        for table in (state.topics, state.groups):
            table.on_change.append(self._changed.set)
        state.tasks.run(_WRITE, self._write, OnDeath.LEAVE)
        state.tasks.run(_READ, self._read, OnDeath.LEAVE)
        state.tasks.run(_DELETE, self._delete_again, OnDeath.LEAVE)

    def close(self) -> None:
        self._writer.close()

    # -- reports ---------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._report()
            try:
                await self._writer.drain()
            except ConnectionError:
                return  # `_read` sees the end of the link, and stops the broker
            await asyncio.sleep(_GATHER_S)

    def _report(self) -> None:
        """Sends what has changed since the last report."""
        for kind in KINDS:
            shared = dict(self._shared(kind))
            told = [name for told_kind, name in self._told if told_kind == kind]
            changes: dict[str, Config | None] = {
                name: config for name, config in shared.items() if self._told.get((kind, name)) != config
            }
            changes |= {name: None for name in told if name not in shared}
            entries = {name: _json(config) for name, config in changes.items() if self._is_small(name, config)}
            for part in _parts(entries):
                self._send(Report(kind, part, self._seen))
            for name, config in changes.items():
                self._remember((kind, name), config)

    def _is_small(self, name: str, config: Config | None) -> bool:
        """Whether an entry may be shared. Only fields that Penstock does not know make one large."""
        if config is None or not config.extra or len(msgspec.json.encode(config.extra)) <= MAX_EXTRA:
            return True
        self._refusals.warn(f"{name} has more than {MAX_EXTRA} bytes of attributes, and is not told to other brokers")
        return False

    def _shared(self, kind: Kind) -> Iterator[tuple[str, Config]]:
        """Yields the entries of a table that all brokers have in common."""
        if kind == "topics":
            settings = self._state.settings.now
            for name, topic in self._state.topics.all().items():
                if not is_topic_of_broker(name, settings):
                    yield name, topic
        else:
            for name, group in self._state.groups.all().items():
                if not _is_own_group(name):
                    yield name, group

    def _remember(self, key: Key, config: Config | None) -> None:
        if config is None:
            self._told.pop(key, None)
        else:
            self._told[key] = config

    def _send(self, message: FromBroker) -> None:
        self._writer.write(msgspec.json.encode(message) + b"\n")

    # -- orders ----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while line := await self._line():
            order = self._decoder.decode(line)
            self._report()  # first what has changed here, so that it is not lost, and the supervisor decides
            for name, value in order.topics.items():
                await self._apply_topic(name, value)
            for name, value in order.groups.items():
                self._apply_group(name, value)
            self._seen = order.number
        log.info("the supervisor has ended the link: stopping")
        self._stop()

    async def _line(self) -> bytes:
        """Returns the next line; empty at the end of the link."""
        try:
            return await self._reader.readline()
        except ConnectionError:
            return b""

    async def _apply_topic(self, name: str, value: Json | None) -> None:
        state = self._state
        if is_topic_of_broker(name, state.settings.now) or not is_legal_topic(name):
            return
        if value is None:
            if state.topics.find(name) is not None:
                log.info("topic %s was deleted at another broker", name)
                self._told.pop(("topics", name), None)
                await self._delete_topic(name)
            return
        topic = TopicConfig.from_json(value)
        if state.topics.find(name) == topic:
            return
        if state.topics.find(name) is None and len(state.topics.all()) >= state.settings.now.max_topics:
            self._refusals.warn(f"topic {name} of another broker is not created: there are maxTopics already")
            return
        log.info("topic %s was created or changed at another broker", name)
        state.topics.update(topic)
        self._told["topics", name] = state.topics.all()[name]

    async def _delete_topic(self, name: str) -> None:
        """Deletes a topic. If the disk refuses, notes it for `_delete_again`: the broker serves its other topics on."""
        self._undeleted.discard(name)
        try:
            await delete_topic(self._state, name)
        except PenstockError as error:
            self._undeleted.add(name)
            self._refusals.warn(f"topic {name}, deleted at another broker, keeps its messages here for now: {error}")

    async def _delete_again(self) -> None:
        while True:
            await asyncio.sleep(DELETE_AGAIN_S)
            for name in sorted(self._undeleted):
                if self._state.topics.find(name) is None:
                    await self._delete_topic(name)
                else:  # somebody has made it again
                    self._undeleted.discard(name)

    def _apply_group(self, name: str, value: Json | None) -> None:
        groups = self._state.groups
        if _is_own_group(name) or not is_legal_group(name):
            return
        if value is None:
            self._told.pop(("groups", name), None)
            groups.delete(name)
            self._state.counters.forget_group(name)
            return
        group = SubscriptionGroup.from_json(value)
        if groups.find(name) == group:
            return
        if groups.find(name) is None and len(groups.all()) >= self._state.settings.now.max_groups:
            self._refusals.warn(f"consumer group {name} of another broker is not created: there are maxGroups already")
            return
        log.info("consumer group %s was created or changed at another broker", name)
        groups.update(group)
        self._told["groups", name] = groups.all()[name]


def _is_own_group(name: str) -> bool:
    return name in _SYSTEM_GROUPS or is_system_group(name)


def _json(config: Config | None) -> Json | None:
    return None if config is None else config.to_json()


def _parts(entries: Mapping[str, Json | None]) -> Iterable[dict[str, Json | None]]:
    items = iter(entries.items())
    while part := dict(islice(items, NAMES_IN_LINE)):
        yield part
