"""The consumer groups of this broker: subscriptionGroup.json in memory.

As with topics, every change moves the data version on and calls `on_change`; a crash before the file is written leaves
the older one, and the group is made again by its next heartbeat.


Who is connected: the producers and consumers that heartbeats have told of, by group.

A client is known by its connection. It is forgotten when it says so, when its connection closes, and when no heartbeat
came for 120 seconds. Whenever that changes who shares a consumer group, or what the group subscribes to, every client
of the group is told (`on_change`), so that they share its queues anew. Nothing here is on disk.


Heartbeats and what follows from them: codes 34, 35, 38 and 46, and the notice 40 to a group's clients.

A heartbeat makes the client's consumer groups and their retry topics where that is allowed. Notices of one turn of the
loop are sent together: a hundred clients that start at once hear of each other a few times, not ten thousand.
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
from penstock.protocol.bodies.clients import (
    CheckClientRequestBody,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
)
from penstock.protocol.bodies.tables import ConsumerList
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.groups import ConsumerGroupRequest as GroupHeader
from penstock.protocol.headers.groups import UnregisterClient
from penstock.protocol.subscription import TAG, SubscriptionData
from penstock.protocol.versions import Language
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal

log = logging.getLogger("penstock.broker")


def is_legal_group(group: str) -> bool:
    """Whether a group may have this name: its retry topic bears it, too."""
    return bool(group) and is_legal_topic(retry_topic(group))


class GroupTable:
    """Finds, makes, changes and deletes consumer groups."""

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
        """The group; made if it is new and consumers may do that, else None."""
        known = self._groups.get(group)
        if known is not None:
            return known
        if not (self._settings.now.auto_create_subscription_group or is_system_group(group)):
            return None
        if not is_legal_group(group):
            return None
        if len(self._groups) >= self._settings.now.max_groups:
            log.warning("group %s is not made: there are %d already (maxGroups)", group, len(self._groups))
            return None
        made = SubscriptionGroup(name=group)
        log.info("consumer group %s is made", group)
        self.update(made)
        return made

    def all(self) -> Mapping[str, SubscriptionGroup]:
        return self._groups

    @property
    def data_version(self) -> DataVersion:
        return self._version

    def snapshot(self) -> SubscriptionGroups:
        """What subscriptionGroup.json should say now."""
        return SubscriptionGroups(groups=dict(self._groups), version=self._version, extra=self._extra)

    def update(self, group: SubscriptionGroup) -> None:
        """Makes or replaces a group; fields that this version does not know stay as they were."""
        known = self._groups.get(group.name)
        if known is not None and not group.extra:
            group = msgspec.structs.replace(group, extra=known.extra)
        self._groups[group.name] = group
        self._changed()

    def delete(self, group: str) -> bool:
        """Forgets a group; says whether there was one."""
        if self._groups.pop(group, None) is None:
            return False
        log.info("consumer group %s is deleted", group)
        self._changed()
        return True

    def take_over(self, groups: SubscriptionGroups) -> None:
        """Becomes what a master's table is, its version included."""
        if groups.version != self._version or groups.groups != self._groups:
            self._groups, self._version = dict(groups.groups), groups.version
            self._tell()

    def _changed(self) -> None:
        self._version = self._version.next(self._clock())
        self._tell()

    def _tell(self) -> None:
        for changed in self.on_change:
            changed()


EXPIRY_S: Final = 120.0
_MAX_GROUPS: Final = 4096
"""Groups that one connection may speak for."""


class GroupMember(msgspec.Struct, eq=False):
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
        self.clients: dict[Connection, GroupMember] = {}

    @property
    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.clients.values()]

    def find_client(self, client_id: str) -> GroupMember | None:
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
        self._producers: dict[str, dict[Connection, GroupMember]] = {}
        self._consumers: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Connection, set[tuple[bool, str]]] = {}
        """Of each connection: (whether it consumes, group)."""
        self.on_change: list[Callable[[ConsumerGroup], None]] = []
        """Called with the group whose consumers or topics have changed."""

    # -- asking ----------------------------------------------------------------------------------------------

    def consumers(self, group: str) -> ConsumerGroup | None:
        """The group, if anybody consumes for it now."""
        return self._consumers.get(group)

    def producers(self, group: str) -> list[GroupMember]:
        return list(self._producers.get(group, {}).values())

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        found = self._consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def find_producer(self, client_id: str) -> GroupMember | None:
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
        clients[connection] = GroupMember(client_id, connection, language, version, self._clock())

    def add_consumer(
        self, data: ConsumerData, client_id: str, connection: Connection, language: Language, version: int
    ) -> None:
        """Remembers a consumer, or that it is still there, and what its group subscribes to."""
        self._remember(connection, True, data.group_name)
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
        if (consumes, group) not in groups and len(groups) >= _MAX_GROUPS:
            raise BadRequest(f"one connection may speak for {_MAX_GROUPS} groups, not for more")
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


class Clients:
    """Takes heartbeats, and tells the clients of a group when its members change."""

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
            self._make_group(consumer)
            self._clients.add_consumer(consumer, beat.client_id, connection, command.language, command.version)
        for producer in beat.producer_data_set:
            self._clients.add_producer(
                producer.group_name, beat.client_id, connection, command.language, command.version
            )
        return command.reply(ResponseCode.SUCCESS)

    def _make_group(self, consumer: ConsumerData) -> None:
        if not is_legal_group(consumer.group_name):
            raise BadRequest(f"{consumer.group_name[:40]!r} is no name for a consumer group")
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
        found = self._clients.consumers(group)
        if found is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"no consumer of group '{group}' is connected")
        return command.reply(ResponseCode.SUCCESS, body=ConsumerList(consumer_id_list=found.client_ids).to_bytes())

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
    """What compiles SQL92 expressions; raises Refusal where nothing does, or consumers may not use it."""
    if compile_sql is None or not settings.now.enable_property_filter:
        why = "this broker does not filter by SQL92; start it with enablePropertyFilter=true"
        raise Refusal(ResponseCode.SYSTEM_ERROR, why)
    return compile_sql
