"""Who is connected: the producers and consumers that heartbeats have told of, by group.

A client is known by its connection. It is forgotten when it says so, when its connection closes, and when no heartbeat
came for 120 seconds. Whenever that changes who shares a consumer group, or what the group subscribes to, every client
of the group is told (`on_change`), so that they share its queues anew. Nothing here is on disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.errors import BadRequest
from penstock.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel
from penstock.protocol.languages import Language
from penstock.protocol.subscription import SubscriptionData
from penstock.remoting.connection import Connection

log = logging.getLogger("penstock.broker")

EXPIRY_S: Final = 120.0
_MOST_GROUPS: Final = 4096
"""Groups that one connection may speak for."""


class Client(msgspec.Struct, eq=False):
    """One client of a group."""

    client_id: str
    connection: Connection
    language: Language
    version: int
    seen_at: float
    """On the table's clock: when its last heartbeat came."""

    @property
    def address(self) -> str:
        return f"{self.connection.peer[0]}:{self.connection.peer[1]}"


class ConsumerGroup:
    """The consumers of one group, and what they subscribe to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = ConsumeType.CONSUME_PASSIVELY
        self.message_model = MessageModel.CLUSTERING
        self.consume_from_where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        self.subscriptions: dict[str, SubscriptionData] = {}
        """By topic."""
        self.clients: dict[Connection, Client] = {}

    @property
    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.clients.values()]

    def find_client(self, client_id: str) -> Client | None:
        return next((client for client in self.clients.values() if client.client_id == client_id), None)

    def update(self, data: ConsumerData) -> bool:
        """Takes over what a heartbeat says of the group; says whether it has topics more or less now."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        wanted = {subscription.topic: subscription for subscription in data.subscription_data_set}
        changed = wanted.keys() != self.subscriptions.keys()
        for topic, subscription in wanted.items():
            known = self.subscriptions.get(topic)
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[topic] = subscription
        for topic in self.subscriptions.keys() - wanted.keys():
            del self.subscriptions[topic]
        return changed


class ClientTable:
    """Producers and consumers by group."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._producers: dict[str, dict[Connection, Client]] = {}
        self._consumers: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Connection, set[tuple[bool, str]]] = {}
        """Of each connection: (whether it consumes, group)."""
        self.on_change: list[Callable[[ConsumerGroup], None]] = []
        """Called with the group whose consumers or topics have changed."""

    # -- asking ----------------------------------------------------------------------------------------------

    def consumers(self, group: str) -> ConsumerGroup | None:
        """The group, if anybody consumes for it now."""
        return self._consumers.get(group)

    def producers(self, group: str) -> list[Client]:
        return list(self._producers.get(group, {}).values())

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        found = self._consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def find_producer(self, client_id: str) -> Client | None:
        """The client with this id, whatever groups it produces for."""
        for clients in self._producers.values():
            for client in clients.values():
                if client.client_id == client_id:
                    return client
        return None

    def consumer_groups(self) -> Iterable[ConsumerGroup]:
        return self._consumers.values()

    def producer_groups(self) -> Iterable[str]:
        return self._producers

    # -- changing --------------------------------------------------------------------------------------------

    def add_producer(
        self, group: str, client_id: str, connection: Connection, language: Language, version: int
    ) -> None:
        """Remembers a producer, or that it is still there."""
        self._remember(connection, False, group)
        clients = self._producers.setdefault(group, {})
        clients[connection] = Client(client_id, connection, language, version, self._clock())

    def add_consumer(
        self, data: ConsumerData, client_id: str, connection: Connection, language: Language, version: int
    ) -> None:
        """Remembers a consumer, or that it is still there, and what its group subscribes to."""
        self._remember(connection, True, data.group_name)
        group = self._consumers.setdefault(data.group_name, ConsumerGroup(data.group_name))
        before = group.clients.get(connection)
        group.clients[connection] = Client(client_id, connection, language, version, self._clock())
        changed = group.update(data)
        if changed or before is None or before.client_id != client_id:
            self._changed(group)

    def remove_producer(self, group: str, connection: Connection) -> None:
        clients = self._producers.get(group, {})
        clients.pop(connection, None)
        if not clients:
            self._producers.pop(group, None)
        self._groups_of.get(connection, set()).discard((False, group))

    def remove_consumer(self, name: str, connection: Connection) -> None:
        group = self._consumers.get(name)
        if group is not None and group.clients.pop(connection, None) is not None:
            if not group.clients:
                del self._consumers[name]
            self._changed(group)
        self._groups_of.get(connection, set()).discard((True, name))

    def expire(self) -> None:
        """Forgets clients that have been silent for too long, and closes their connections."""
        oldest = self._clock() - EXPIRY_S
        groups = [group.clients for group in self._consumers.values()]
        clients = [client for table in (*self._producers.values(), *groups) for client in table.values()]
        for connection in {client.connection for client in clients if client.seen_at < oldest}:
            log.warning("client %s:%d sent no heartbeat for %g s", *connection.peer, EXPIRY_S)
            self._forget(connection)
            connection.close()

    def _remember(self, connection: Connection, consumes: bool, group: str) -> None:
        groups = self._groups_of.get(connection)
        if groups is None:
            groups = self._groups_of[connection] = set()
            connection.on_close.append(self._forget)
        if (consumes, group) not in groups and len(groups) >= _MOST_GROUPS:
            raise BadRequest(f"one connection may speak for {_MOST_GROUPS} groups, not for more")
        groups.add((consumes, group))

    def _forget(self, connection: Connection) -> None:
        for consumes, group in list(self._groups_of.get(connection, ())):
            if consumes:
                self.remove_consumer(group, connection)
            else:
                self.remove_producer(group, connection)
        self._groups_of.pop(connection, None)

    def _changed(self, group: ConsumerGroup) -> None:
        for changed in self.on_change:
            changed(group)
