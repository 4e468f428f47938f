"""Consumer groups, connected clients, and heartbeats.

`GroupTable` is subscriptionGroup.json in memory. Every change increments the data version and calls `on_change`. A
crash before the file is written leaves the previous file, and the next heartbeat creates a lost group again.

`ClientTable` holds the producers and consumers by group, as heartbeats report them. It is not on disk. A client is
identified by its connection. It is removed when it unregisters, when the connection closes, or after 120 seconds
without a heartbeat.

`Clients` takes heartbeats and other requests of clients about themselves. A heartbeat creates the client's groups and
retry topics where that is allowed. When the members or topics of a group change, the broker notifies all its consumers,
so that they rebalance. Several changes in one turn of the loop cause one notification per group. Use everything here
from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from penstock.broker.filters import SqlCompiler
from penstock.broker.operations_as_plain_calls import Client, ClientRequests, Operation
from penstock.broker.settings import SettingsInForce
from penstock.broker.topics import (
    MAX_CREATED_BYTES,
    MAX_CREATED_BYTES_OF_CLIENT,
    UNIT_SUBSCRIPTION,
    BrokerTopics,
    is_system_group,
    retry_topic,
    system_groups,
)
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
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.groups import ConsumerGroupRequest, UnregisterClient
from penstock.protocol.subscription import TAG, SubscriptionData
from penstock.protocol.table_memory_limits import Budget, entry_bytes
from penstock.protocol.versions import Language
from penstock.rate_limited_log import RateLimitedLog

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
        self.saved_at: Final = loaded.version.timestamp
        """When the table that was read from the file had changed last, in epoch milliseconds; 0 if there was none."""
        self._groups = {**{group.name: group for group in system_groups()}, **loaded.groups}
        self.on_change: list[Callable[[], object]] = []
        self.created = Budget("new consumer groups", MAX_CREATED_BYTES, MAX_CREATED_BYTES_OF_CLIENT)
        """What the requests of connected clients have created."""
        self._refusals = RateLimitedLog(log)

    def find(self, group: str) -> SubscriptionGroup | None:
        return self._groups.get(group)

    def find_or_create(self, group: str, by: Client | None = None) -> SubscriptionGroup | None:
        """Returns the group, created if it is new; None if it may not be created.

        Raises Refusal if the client `by`, which asks for it, has created too many.
        """
        known = self._groups.get(group)
        if known is not None:
            return known
        if not (self._settings.now.auto_create_subscription_group or is_system_group(group)):
            return None
        if not is_legal_group(group):
            return None
        if len(self._groups) >= self._settings.now.max_groups:
            self._refusals.warn(
                f"consumer group {group} not created: there are {len(self._groups)} already (maxGroups)"
            )
            return None
        if by is not None:
            self.created.charge_until_close(entry_bytes(group), by)
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
MAX_BYTES: Final = 256 << 20
MAX_BYTES_OF_CLIENT: Final = 16 << 20
_CODE_BYTES: Final = 48
"""What a tag's hash code takes in a list."""


def _subscription_bytes(subscription: SubscriptionData) -> int:
    """Returns an estimate of the memory of a subscription."""
    texts = entry_bytes(subscription.topic, subscription.sub_string, subscription.expression_type)
    return texts + sum(map(entry_bytes, subscription.tags_set)) + _CODE_BYTES * len(subscription.code_set)


class GroupMember(msgspec.Struct, eq=False):
    """One client of a group."""

    client_id: str
    client: Client
    language: Language
    version: int
    seen_at: float
    """When the client's last heartbeat arrived, in seconds of the table's clock."""
    account: str | None
    """The access key of the account that sent the last heartbeat; see `Client.account`."""

    @property
    def address(self) -> str:
        return f"{self.client.peer[0]}:{self.client.peer[1]}"


class ConsumerGroup:
    """The connected consumers of one group and their subscriptions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = ConsumeType.CONSUME_PASSIVELY
        self.message_model = MessageModel.CLUSTERING
        self.consume_from_where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        self.subscriptions: dict[str, SubscriptionData] = {}
        """Subscriptions by topic. One stays while the group has the topic, also when the client that sent it leaves."""
        self.subscription_bytes = 0
        """What `subscriptions` take."""
        self.clients: dict[Client, GroupMember] = {}

    @property
    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.clients.values()]

    def find_client(self, client_id: str) -> GroupMember | None:
        return next((client for client in self.clients.values() if client.client_id == client_id), None)

    def merged(self, data: ConsumerData) -> dict[str, SubscriptionData]:
        """Returns the subscriptions by topic as they are after a heartbeat: its topics, each with the newer version."""
        merged = {sent.topic: sent for sent in data.subscription_data_set}
        for topic, sent in merged.items():
            known = self.subscriptions.get(topic)
            if known is not None and known.sub_version >= sent.sub_version:
                merged[topic] = known
        return merged

    def update(self, data: ConsumerData, subscriptions: dict[str, SubscriptionData]) -> bool:
        """Applies a heartbeat's settings and the merged subscriptions. Returns whether the set of topics changed."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        changed = subscriptions.keys() != self.subscriptions.keys()
        self.subscriptions = subscriptions
        return changed


class ClientTable:
    """Connected producers and consumers, by group."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._producers: dict[str, dict[Client, GroupMember]] = {}
        self._producers_of_id: dict[str, dict[tuple[str, Client], GroupMember]] = {}
        """The producers by client id, and then by group and client."""
        self._consumers: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Client, dict[tuple[bool, str], int]] = {}
        """The groups of each client, as pairs: whether it consumes, and the group's name. For each, the bytes that are
        charged for it."""
        self.budget = Budget("groups and subscriptions", MAX_BYTES, MAX_BYTES_OF_CLIENT)
        """What clients have sent in their heartbeats."""
        self.kept = Budget("subscriptions", MAX_BYTES, client="group")
        """What the groups keep of it: a group may keep a subscription longer than the client that sent it stays."""
        self.on_change: list[Callable[[ConsumerGroup], None]] = []
        """Called with a group when its consumers or topics have changed."""
        self.on_subscription: list[Callable[[], object]] = []
        """Called when what some group consumes, or how, may have changed, and when the group has no consumer left."""

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
        """Returns the producer with this client id that came last, from any group: a client may have come back before
        its former connection is closed.
        """
        return next(reversed(self._producers_of_id.get(client_id, {}).values()), None)

    def consumer_groups(self) -> Iterable[ConsumerGroup]:
        return self._consumers.values()

    def producer_groups(self) -> Iterable[str]:
        return self._producers

    # -- changing --------------------------------------------------------------------------------------------

    def add_producer(self, group: str, client_id: str, client: Client, language: Language, version: int) -> None:
        """Adds a producer, or renews its heartbeat."""
        self._register(client, False, group, entry_bytes(group) + entry_bytes(client_id))
        clients = self._producers.setdefault(group, {})
        before = clients.get(client)
        if before is None:
            log.debug("producer %s of group %s connected from %s:%d", client_id, group, *client.peer)
        elif before.client_id != client_id:
            self._forget_id(before.client_id, group, client)
        member = GroupMember(client_id, client, language, version, self._clock(), client.account)
        clients[client] = self._producers_of_id.setdefault(client_id, {})[group, client] = member

    def _forget_id(self, client_id: str, group: str, client: Client) -> None:
        of_id = self._producers_of_id[client_id]
        del of_id[group, client]
        if not of_id:
            del self._producers_of_id[client_id]

    def add_consumer(
        self, data: ConsumerData, client_id: str, client: Client, language: Language, version: int
    ) -> None:
        """Adds a consumer, or renews its heartbeat, and updates its group's subscriptions."""
        group = self._consumers.get(data.group_name) or ConsumerGroup(data.group_name)
        merged = group.merged(data)
        kept_bytes = sum(map(_subscription_bytes, merged.values()))
        self.kept.check(kept_bytes - group.subscription_bytes)
        sent_bytes = sum(map(_subscription_bytes, data.subscription_data_set))
        self._register(client, True, data.group_name, entry_bytes(data.group_name, client_id) + sent_bytes)
        self._consumers[data.group_name] = group
        self._count_kept(group, kept_bytes)
        before = group.clients.get(client)
        group.clients[client] = GroupMember(client_id, client, language, version, self._clock(), client.account)
        known = group.subscriptions, group.message_model
        changed = group.update(data, merged)
        if known != (group.subscriptions, group.message_model):
            self._notify_subscription()
        if before is None:
            log.debug("consumer %s of group %s connected from %s:%d", client_id, data.group_name, *client.peer)
        if changed or before is None or before.client_id != client_id:
            self._changed(group)

    def remove_producer(self, group: str, client: Client) -> None:
        clients = self._producers.get(group, {})
        member = clients.pop(client, None)
        if member is not None:
            self._forget_id(member.client_id, group, client)
        if not clients:
            self._producers.pop(group, None)
        self._forget(client, False, group)

    def remove_consumer(self, name: str, client: Client) -> None:
        group = self._consumers.get(name)
        if group is not None and group.clients.pop(client, None) is not None:
            if not group.clients:
                del self._consumers[name]
                self._count_kept(group, 0)
                self._notify_subscription()
            self._changed(group)
        self._forget(client, True, name)

    def expire(self) -> None:
        """Removes clients that sent no heartbeat for EXPIRY_S seconds, and closes their connections."""
        oldest = self._clock() - EXPIRY_S
        groups = [group.clients for group in self._consumers.values()]
        members = [member for table in (*self._producers.values(), *groups) for member in table.values()]
        for client in {member.client for member in members if member.seen_at < oldest}:
            log.warning("client %s:%d sent no heartbeat for %g s", *client.peer, EXPIRY_S)
            self._remove(client)
            client.close()

    def _register(self, client: Client, consumes: bool, group: str, size: int) -> None:
        """Charges a client for its membership in a group. Raises BadRequest or Refusal if that is too much."""
        groups = self._groups_of.get(client)
        if groups is None:
            groups = self._groups_of[client] = {}
            client.on_close.append(self._remove)
        if (consumes, group) not in groups and len(groups) >= _MAX_GROUPS:
            raise BadRequest(f"one connection may belong to at most {_MAX_GROUPS} groups")
        self.budget.charge(size - groups.get((consumes, group), 0), client)
        groups[consumes, group] = size

    def _count_kept(self, group: ConsumerGroup, size: int) -> None:
        self.kept.count(size - group.subscription_bytes)
        group.subscription_bytes = size

    def _forget(self, client: Client, consumes: bool, group: str) -> None:
        self.budget.charge(-self._groups_of.get(client, {}).pop((consumes, group), 0), client)

    def _remove(self, client: Client) -> None:
        for consumes, group in list(self._groups_of.get(client, ())):
            if consumes:
                self.remove_consumer(group, client)
            else:
                self.remove_producer(group, client)
        self._groups_of.pop(client, None)

    def _notify_subscription(self) -> None:
        for changed in self.on_subscription:
            changed()

    def _changed(self, group: ConsumerGroup) -> None:
        for changed in self.on_change:
            changed(group)


# -- requests ------------------------------------------------------------------------------------------------


class Heartbeat(NamedTuple):
    """A client's heartbeat, and the language and version of the client."""

    data: HeartbeatData
    language: Language
    version: int


class Clients:
    """Takes heartbeats and other requests of clients. Notifies a group's consumers when the group changes."""

    def __init__(
        self,
        clients: ClientTable,
        groups: GroupTable,
        topics: BrokerTopics,
        settings: SettingsInForce,
        requests: ClientRequests,
        compile_sql: SqlCompiler | None = None,
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._settings = settings
        self._requests = requests
        self._compile_sql = compile_sql
        self._loop = asyncio.get_running_loop()
        self._to_notify: set[str] = set()
        clients.on_change.append(self._group_changed)

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation("heartbeat", self.heartbeat),
            Operation("unregister", self.unregister),
            Operation("list consumers", self.list_consumers),
            Operation("check subscription", self.check_subscription),
        )

    def heartbeat(self, client: Client, beat: Heartbeat) -> None:
        data = beat.data
        for consumer in data.consumer_data_set:
            self._create_group(client, consumer)
            self._clients.add_consumer(consumer, data.client_id, client, beat.language, beat.version)
        for producer in data.producer_data_set:
            self._clients.add_producer(producer.group_name, data.client_id, client, beat.language, beat.version)

    def _create_group(self, client: Client, consumer: ConsumerData) -> None:
        if not is_legal_group(consumer.group_name):
            raise BadRequest(f"{consumer.group_name[:40]!r} is not a legal name for a consumer group")
        group = self._groups.find_or_create(consumer.group_name, client)
        if group is not None and group.retry_queue_nums > 0:
            flag = UNIT_SUBSCRIPTION if consumer.unit_mode else 0
            name = retry_topic(group.name)
            self._topics.create_for_send_back(name, group.retry_queue_nums, sys_flag=flag, by=client)

    def unregister(self, client: Client, request: UnregisterClient) -> None:
        if request.producer_group:
            self._clients.remove_producer(request.producer_group, client)
        if request.consumer_group:
            self._clients.remove_consumer(request.consumer_group, client)

    def list_consumers(self, client: Client, request: ConsumerGroupRequest) -> ConsumerList:
        consumers = self._clients.consumers(request.consumer_group)
        if consumers is None:
            why = f"no consumer of group '{request.consumer_group}' is connected"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        return ConsumerList(consumer_id_list=consumers.client_ids)

    def check_subscription(self, client: Client, request: CheckClientRequestBody) -> None:
        subscription = request.subscription_data
        if subscription.expression_type != TAG:
            compile_sql = sql_compiler(self._compile_sql, self._settings)
            try:
                compile_sql(subscription.sub_string)
            except BadRequest as error:
                raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None

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
            for client in () if group is None else group.clients:
                self._requests.tell(client, ConsumerGroupRequest(consumer_group=name))


def sql_compiler(compile_sql: SqlCompiler | None, settings: SettingsInForce) -> SqlCompiler:
    """Returns the compiler of SQL92 expressions. Raises Refusal if there is none, or without enablePropertyFilter."""
    if compile_sql is None or not settings.now.enable_property_filter:
        why = "this broker does not filter by SQL92; start it with enablePropertyFilter=true"
        raise Refusal(ResponseCode.SYSTEM_ERROR, why)
    return compile_sql
