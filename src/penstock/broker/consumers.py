"""Consumer groups, connected clients, and heartbeats.

`GroupTable` is subscriptionGroup.json in memory. Every change increments the data version and calls `on_change`. A
crash before the file is written leaves the previous file, and the next heartbeat creates a lost group again.

`ClientTable` holds the producers and consumers by group, as heartbeats report them. It is not on disk. A client is
identified by its connection. It is removed when it unregisters, when the connection closes, or after 120 seconds
without a heartbeat.

`Clients` answers request codes 34, 35, 38 and 46. A heartbeat creates the client's groups and retry topics where that
is allowed. When the members or topics of a group change, the broker notifies all its consumers (request code 40), so
that they rebalance. Several changes in one turn of the loop cause one notification per group. Use everything here from
the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from penstock.broker.filters import SqlCompiler
from penstock.broker.settings import SettingsInForce
from penstock.broker.topics import UNIT_SUBSCRIPTION, BrokerTopics, is_system_group, retry_topic, system_groups
from penstock.errors import BadRequest
from penstock.format.config_tables import DataVersion, SubscriptionGroup, SubscriptionGroups
from penstock.format.topics import is_legal_topic
from penstock.protocol.bodies.admin import ConsumerList
from penstock.protocol.bodies.clients import (
    CheckClientRequestBody,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
)
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.groups import ConsumerGroupRequest as GroupHeader
from penstock.protocol.headers.groups import UnregisterClient
from penstock.protocol.subscription import TAG, SubscriptionData
from penstock.protocol.versions import Language
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler

log = logging.getLogger("penstock.broker")


def is_legal_group(group: str) -> bool:
    """Whether this is a legal group name. The group's retry topic, which contains the name, must be legal, too."""
    return bool(group) and is_legal_topic(retry_topic(group))


# -- groups --------------------------------------------------------------------------------------------------


class GroupTable:
    """The consumer groups of this broker and their settings."""

    def __init__(self, loaded: SubscriptionGroups, settings: SettingsInForce, clock: Callable[[], int]) -> None:
        self._settings = settings
        self._clock = clock
        self._extra = loaded.extra
        self._version = loaded.version
        self._groups = {**{group.name: group for group in system_groups()}, **loaded.groups}
        self.on_change: list[Callable[[], object]] = []

    def find(self, group: str) -> SubscriptionGroup | None:
        return self._groups.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroup | None:
        """Returns the group, created if it is new; None if it may not be created."""
        known = self._groups.get(group)
        if known is not None:
            return known
        if not (self._settings.now.auto_create_subscription_group or is_system_group(group)):
            return None
        if not is_legal_group(group):
            return None
        if len(self._groups) >= self._settings.now.max_groups:
            log.warning("consumer group %s not created: there are %d already (maxGroups)", group, len(self._groups))
            return None
        created = SubscriptionGroup(name=group)
        log.info("created consumer group %s", group)
        self.update(created)
        return created

    def all(self) -> Mapping[str, SubscriptionGroup]:
        return self._groups

    @property
    def data_version(self) -> DataVersion:
        return self._version

    def snapshot(self) -> SubscriptionGroups:
        """Returns the current contents of subscriptionGroup.json."""
        return SubscriptionGroups(groups=dict(self._groups), version=self._version, extra=self._extra)

    def update(self, group: SubscriptionGroup) -> None:
        """Creates or replaces a group. Keeps the old group's fields that this version of Penstock does not know."""
        known = self._groups.get(group.name)
        if known is not None and not group.extra:
            group = msgspec.structs.replace(group, extra=known.extra)
        self._groups[group.name] = group
        self._changed()

    def delete(self, group: str) -> bool:
        """Removes a group; returns whether it existed."""
        if self._groups.pop(group, None) is None:
            return False
        log.info("deleted consumer group %s", group)
        self._changed()
        return True

    def replace(self, groups: SubscriptionGroups) -> None:
        """Replaces the table and its version by the master's table. For slaves."""
        if groups.version != self._version or groups.groups != self._groups:
            self._groups, self._version = dict(groups.groups), groups.version
            self._notify()

    def _changed(self) -> None:
        self._version = self._version.next(self._clock())
        self._notify()

    def _notify(self) -> None:
        for changed in self.on_change:
            changed()


# -- clients -------------------------------------------------------------------------------------------------

EXPIRY_S: Final = 120.0
_MAX_GROUPS: Final = 4096
"""Limit of the groups of one connection, producer and consumer groups together."""


class GroupMember(msgspec.Struct, eq=False):
    """One client of a group."""

    client_id: str
    connection: Connection
    language: Language
    version: int
    seen_at: float
    """When the client's last heartbeat arrived, in seconds of the table's clock."""

    @property
    def address(self) -> str:
        return f"{self.connection.peer[0]}:{self.connection.peer[1]}"


class ConsumerGroup:
    """The connected consumers of one group and their subscriptions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = ConsumeType.CONSUME_PASSIVELY
        self.message_model = MessageModel.CLUSTERING
        self.consume_from_where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        self.subscriptions: dict[str, SubscriptionData] = {}
        """Subscriptions by topic."""
        self.clients: dict[Connection, GroupMember] = {}

    @property
    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.clients.values()]

    def find_client(self, client_id: str) -> GroupMember | None:
        return next((client for client in self.clients.values() if client.client_id == client_id), None)

    def update(self, data: ConsumerData) -> bool:
        """Applies a heartbeat's settings and subscriptions. Returns whether the set of topics changed."""
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
    """Connected producers and consumers, by group."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._producers: dict[str, dict[Connection, GroupMember]] = {}
        self._consumers: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Connection, set[tuple[bool, str]]] = {}
        """The groups of each connection, as pairs: whether it consumes, and the group's name."""
        self.on_change: list[Callable[[ConsumerGroup], None]] = []
        """Called with a group when its consumers or topics have changed."""

    # -- reading ---------------------------------------------------------------------------------------------

    def consumers(self, group: str) -> ConsumerGroup | None:
        """Returns the group if at least one of its consumers is connected; otherwise None."""
        return self._consumers.get(group)

    def producers(self, group: str) -> list[GroupMember]:
        return list(self._producers.get(group, {}).values())

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        consumers = self._consumers.get(group)
        return None if consumers is None else consumers.subscriptions.get(topic)

    def find_producer(self, client_id: str) -> GroupMember | None:
        """Returns the producer with this client id, from any group."""
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
        """Adds a producer, or renews its heartbeat."""
        self._register(connection, False, group)
        clients = self._producers.setdefault(group, {})
        clients[connection] = GroupMember(client_id, connection, language, version, self._clock())

    def add_consumer(
        self, data: ConsumerData, client_id: str, connection: Connection, language: Language, version: int
    ) -> None:
        """Adds a consumer, or renews its heartbeat, and updates its group's subscriptions."""
        self._register(connection, True, data.group_name)
        group = self._consumers.setdefault(data.group_name, ConsumerGroup(data.group_name))
        before = group.clients.get(connection)
        group.clients[connection] = GroupMember(client_id, connection, language, version, self._clock())
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
        """Removes clients that sent no heartbeat for EXPIRY_S seconds, and closes their connections."""
        oldest = self._clock() - EXPIRY_S
        groups = [group.clients for group in self._consumers.values()]
        clients = [client for table in (*self._producers.values(), *groups) for client in table.values()]
        for connection in {client.connection for client in clients if client.seen_at < oldest}:
            log.warning("client %s:%d sent no heartbeat for %g s", *connection.peer, EXPIRY_S)
            self._remove(connection)
            connection.close()

    def _register(self, connection: Connection, consumes: bool, group: str) -> None:
        groups = self._groups_of.get(connection)
        if groups is None:
            groups = self._groups_of[connection] = set()
            connection.on_close.append(self._remove)
        if (consumes, group) not in groups and len(groups) >= _MAX_GROUPS:
            raise BadRequest(f"one connection may belong to at most {_MAX_GROUPS} groups")
        groups.add((consumes, group))

    def _remove(self, connection: Connection) -> None:
        for consumes, group in list(self._groups_of.get(connection, ())):
            if consumes:
                self.remove_consumer(group, connection)
            else:
                self.remove_producer(group, connection)
        self._groups_of.pop(connection, None)

    def _changed(self, group: ConsumerGroup) -> None:
        for changed in self.on_change:
            changed(group)


# -- requests ------------------------------------------------------------------------------------------------


class Clients:
    """Answers heartbeats and other requests of clients. Notifies a group's consumers when the group changes."""

    def __init__(
        self,
        clients: ClientTable,
        groups: GroupTable,
        topics: BrokerTopics,
        settings: SettingsInForce,
        compile_sql: SqlCompiler | None = None,
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._settings = settings
        self._compile_sql = compile_sql
        self._loop = asyncio.get_running_loop()
        self._to_notify: set[str] = set()
        clients.on_change.append(self._group_changed)

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list_consumers,
            RequestCode.CHECK_CLIENT_CONFIG: self._check_client,
        }

    def _heartbeat(self, connection: Connection, command: Command) -> Command:
        beat = HeartbeatData.from_bytes(command.body)
        for consumer in beat.consumer_data_set:
            self._create_group(consumer)
            self._clients.add_consumer(consumer, beat.client_id, connection, command.language, command.version)
        for producer in beat.producer_data_set:
            self._clients.add_producer(
                producer.group_name, beat.client_id, connection, command.language, command.version
            )
        return command.reply(ResponseCode.SUCCESS)

    def _create_group(self, consumer: ConsumerData) -> None:
        if not is_legal_group(consumer.group_name):
            raise BadRequest(f"{consumer.group_name[:40]!r} is not a legal name for a consumer group")
        group = self._groups.find_or_create(consumer.group_name)
        if group is not None and group.retry_queue_nums > 0:
            flag = UNIT_SUBSCRIPTION if consumer.unit_mode else 0
            self._topics.create_for_send_back(retry_topic(group.name), group.retry_queue_nums, sys_flag=flag)

    def _unregister(self, connection: Connection, command: Command) -> Command:
        header = command.read(UnregisterClient)
        if header.producer_group:
            self._clients.remove_producer(header.producer_group, connection)
        if header.consumer_group:
            self._clients.remove_consumer(header.consumer_group, connection)
        return command.reply(ResponseCode.SUCCESS)

    def _list_consumers(self, connection: Connection, command: Command) -> Command:
        group = command.read(GroupHeader).consumer_group
        consumers = self._clients.consumers(group)
        if consumers is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"no consumer of group '{group}' is connected")
        return command.reply(ResponseCode.SUCCESS, body=ConsumerList(consumer_id_list=consumers.client_ids).to_bytes())

    def _check_client(self, connection: Connection, command: Command) -> Command:
        subscription = CheckClientRequestBody.from_bytes(command.body).subscription_data
        if subscription.expression_type != TAG:
            compile_sql = sql_compiler(self._compile_sql, self._settings)
            try:
                compile_sql(subscription.sub_string)
            except BadRequest as error:
                raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        return command.reply(ResponseCode.SUCCESS)

    # -- notices ---------------------------------------------------------------------------------------------

    def _group_changed(self, group: ConsumerGroup) -> None:
        config = self._groups.find(group.name)
        wanted = config is None or config.notify_consumer_ids_changed_enable
        if wanted and self._settings.now.notify_consumer_ids_changed_enable:
            if not self._to_notify:
                self._loop.call_soon(self._notify)
            self._to_notify.add(group.name)

    def _notify(self) -> None:
        names, self._to_notify = self._to_notify, set()
        for name in names:
            group = self._clients.consumers(name)
            for connection in () if group is None else group.clients:
                connection.request_oneway(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name}))


def sql_compiler(compile_sql: SqlCompiler | None, settings: SettingsInForce) -> SqlCompiler:
    """Returns the compiler of SQL92 expressions. Raises Refusal if there is none, or without enablePropertyFilter."""
    if compile_sql is None or not settings.now.enable_property_filter:
        why = "this broker does not filter by SQL92; start it with enablePropertyFilter=true"
        raise Refusal(ResponseCode.SYSTEM_ERROR, why)
    return compile_sql
