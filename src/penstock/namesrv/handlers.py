"""The name server's request handlers, and the KV configuration that they share.

    KvTable               texts by namespace and key; owns kvConfig.json
    RouteQueries          routes, brokers, topics: request codes 105, 106, 206, 224, 304, 311, 312, 313
    RegistrationRequests  brokers that register and unregister: request codes 103, 104, 322
    NameServerAdmin       KV, topics, permissions, settings: request codes 100-102, 205, 216, 219, 318, 319, 327

Use everything from the event loop's thread only. kvConfig.json is written in another thread. Handlers do not check
permissions; the server's `before` hook does (see `access`). `NameServer` creates and connects the four classes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.config.java_properties import parse_properties
from penstock.errors import BadRequest, BadSettings, PenstockError
from penstock.format.config_tables import DataVersion, TopicConfigs
from penstock.format.topics import is_legal_topic
from penstock.namesrv.route_table import RegisteredBroker, RouteTable, default_route
from penstock.namesrv.settings import CHANGEABLE, TABLE, NamesrvSettings
from penstock.observation.administrators_log import describe, log_act
from penstock.protocol import fields
from penstock.protocol.bodies.admin import KVTable, TopicList, decode_config, encode_config
from penstock.protocol.bodies.routes import RegisterBrokerBody, TopicRouteData
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.namesrv import (
    AddReply,
    BrokerIdentity,
    BrokerName,
    DataVersionReply,
    DeleteTopicRoute,
    GetRoute,
    GetTopicsByCluster,
    KvKey,
    KvNamespace,
    KvReply,
    PutKv,
    RegisterBroker,
    RegisterBrokerReply,
    WipeReply,
)
from penstock.protocol.signing import ACCESS_KEY, SEAL, SECURITY_TOKEN, SIGNATURE
from penstock.protocol.table_memory_limits import Budget, entry_bytes
from penstock.remoting.connection import Connection
from penstock.remoting.handler_types_and_errors import Handler
from penstock.store.config_files import ConfigFile
from penstock.store.files.file_io import Files

_logger = logging.getLogger("penstock.namesrv")

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""KV namespace of the topics that are ordered across brokers. A value such as `broker-a:4;broker-b:4` gives the number
of queues at each broker."""
_UNIT: Final = 1
_UNIT_SUB: Final = 2
"""_UNIT and _UNIT_SUB are bits of a topic's flags. _UNIT: the topic belongs to a unit. _UNIT_SUB: a group of a unit has
subscribed to the topic."""
_ADDRESS: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}):([0-9]{1,5})")
_CRC_BITS: Final = 0x7FFFFFFF
MAX_KV_BYTES: Final = 8 << 20


# -- KV configuration ----------------------------------------------------------------------------------------


class KvConfig(msgspec.Struct):
    """The contents of kvConfig.json: texts by namespace and key."""

    table: dict[str, dict[str, str]] = {}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> KvConfig:
        return cls(msgspec.convert(document.get("configTable", {}), dict[str, dict[str, str]]))

    def to_json(self) -> dict[str, Any]:
        return {"configTable": self.table}


class KvTable:
    """The KV configuration. It is saved to a file if it has a path, and is in memory only otherwise.

    A change is written before the request is answered. The write is atomic: a temporary file, then a rename. The
    previous file is kept as a backup. The table has a budget, so that a namespace fits into a reply.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Loads the file if it exists. Raises BadStore if the file and its backup cannot be read."""
        self._file = None if path is None else ConfigFile(Files(), path, KvConfig)
        loaded = None if self._file is None else self._file.read()
        self._table = {} if loaded is None else loaded.table.table
        self.note = "" if loaded is None else loaded.note
        """A warning about the load, such as that the backup was read; empty if there is none."""
        self._writing = asyncio.Lock()
        self.budget = Budget("KV configuration", MAX_KV_BYTES)
        for namespace, keys in self._table.items():
            self.budget.count(sum(entry_bytes(namespace, key, value) for key, value in keys.items()))

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        return dict(sorted(self._table.get(namespace, {}).items()))

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Sets a value and saves. Raises Refusal if the table is full, and StoreFailed if the file cannot be written; a
        restart then loses the value."""
        self.budget.charge(entry_bytes(namespace, key, value) - self._size(namespace, key))
        self._table.setdefault(namespace, {})[key] = value
        await self._save()

    async def delete(self, namespace: str, key: str) -> None:
        size, keys = self._size(namespace, key), self._table.get(namespace)
        if keys is None or keys.pop(key, None) is None:
            return
        self.budget.charge(-size)
        if not keys:
            del self._table[namespace]
        await self._save()

    def _size(self, namespace: str, key: str) -> int:
        """Returns the bytes that are charged for a key; 0 if it has no value."""
        value = self.get(namespace, key)
        return 0 if value is None else entry_bytes(namespace, key, value)

    async def _save(self) -> None:
        if self._file is None:
            return
        async with self._writing:
            snapshot = KvConfig({namespace: dict(keys) for namespace, keys in self._table.items()})
            await asyncio.to_thread(self._file.write, snapshot)


# -- queries -------------------------------------------------------------------------------------------------


class RouteQueries:
    """Read-only queries over the route table."""

    def __init__(self, routes: RouteTable, kv: KvTable, settings: Callable[[], NamesrvSettings]) -> None:
        self._routes = routes
        self._kv = kv
        self._settings = settings

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: partial(self._by_unit, lambda flag: flag & _UNIT != 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(self._by_unit, lambda flag: flag & _UNIT_SUB != 0),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(
                self._by_unit, lambda flag: flag & (_UNIT | _UNIT_SUB) == _UNIT_SUB
            ),
        }

    def find(self, topic: str) -> TopicRouteData | None:
        """Returns the route of a topic; None if there is none.

        With autoCreateTopicEnable, a topic that does not exist gets the route that a send would create.
        """
        settings = self._settings()
        route = self._routes.route(topic)
        if route is None and settings.auto_create_topic_enable:
            return default_route(self._routes, topic)
        if route is not None and settings.order_message_enable:
            route.order_topic_conf = self._kv.get(ORDER_TOPICS, topic)
        return route

    def route(self, connection: Connection, command: Command) -> Command:
        """Replies with a topic's route. The reply is always strict JSON, so `acceptStandardJsonOnly` has no effect."""
        topic = command.read(GetRoute).topic
        route = self.find(topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic[:255]}"
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark)
        return command.reply(ResponseCode.SUCCESS, body=route.to_bytes())

    def cluster_info(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=self._routes.cluster_info().to_bytes())

    def topics(self, connection: Connection, command: Command) -> Command:
        return self._list(command, TopicList(topic_list=self._routes.topics()))

    def topics_of_cluster(self, connection: Connection, command: Command) -> Command:
        cluster = command.read(GetTopicsByCluster).cluster
        return self._list(command, TopicList(topic_list=self._routes.topics_of(cluster)))

    def system_topics(self, connection: Connection, command: Command) -> Command:
        """Replies with the system topics and the address of one broker, which tools ask for its own system topics."""
        addresses = sorted(broker.address for broker in self._routes.brokers)
        topics = TopicList(topic_list=self._routes.system_topics(), broker_addr=addresses[0] if addresses else None)
        return self._list(command, topics)

    def _by_unit(self, wanted: Callable[[int], bool], connection: Connection, command: Command) -> Command:
        """Replies with the topics for which `wanted` accepts the flags at one broker at least."""
        topics = [
            topic
            for topic in self._routes.topics()
            if any(wanted(queues.topic_sys_flag) for queues in self._routes.queues(topic).values())
        ]
        return self._list(command, TopicList(topic_list=topics))

    def _list(self, command: Command, topics: TopicList) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=topics.to_bytes())


# -- registration --------------------------------------------------------------------------------------------


class RegistrationRequests:
    """Requests of brokers in other processes.

    A broker is dropped when its connection closes or when it stops registering.
    """

    def __init__(self, routes: RouteTable, kv: KvTable, clock: Callable[[], float]) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.REGISTER_BROKER: self.register,
            RequestCode.UNREGISTER_BROKER: self.unregister,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
        }

    def register(self, connection: Connection, command: Command) -> Command:
        header = command.read(RegisterBroker)
        broker = _broker_of(header, header.ha_server_addr)
        if self._routes.is_local(broker):
            why = f"the name {broker.name} or the address {broker.address} belongs to the broker in this process"
            raise Refusal(ResponseCode.NO_PERMISSION, why)
        if header.body_crc32 and zlib.crc32(command.body) & _CRC_BITS != header.body_crc32 & _CRC_BITS:
            raise BadRequest(f"the registration of {broker.name} is damaged: its CRC differs")
        body = RegisterBrokerBody()
        if command.body:
            body = RegisterBrokerBody.from_bytes(command.body, header.compressed)
        new = self._routes.version_of(broker.address) is None
        master = self._routes.register(
            broker, _legal(body.topics), now=self._clock(), owner=connection, filter_servers=body.filter_servers
        )
        if new:
            _logger.info("broker %s (id %d) registered at %s", broker.name, broker.broker_id, broker.address)
        if self._connection_gone not in connection.on_close:
            connection.on_close.append(self._connection_gone)
        reply = RegisterBrokerReply()
        if master is not None:
            reply = RegisterBrokerReply(ha_server_addr=master.ha_address, master_addr=master.address)
        ordered = KVTable(table=self._kv.namespace(ORDER_TOPICS))
        return command.reply(ResponseCode.SUCCESS, ext=fields.write(reply), body=ordered.to_bytes())

    def unregister(self, connection: Connection, command: Command) -> Command:
        broker = _broker_of(command.read(BrokerIdentity))
        if self._routes.is_local(broker):
            raise Refusal(ResponseCode.NO_PERMISSION, f"{broker.name} is the broker in this process")
        if self._routes.unregister(broker):
            _logger.info("broker %s (id %d) unregistered", broker.name, broker.broker_id)
        return command.reply(ResponseCode.SUCCESS)

    def query_data_version(self, connection: Connection, command: Command) -> Command:
        broker = _broker_of(command.read(BrokerIdentity))
        known = self._routes.version_of(broker.address)
        changed = known != decode_config(DataVersion, command.body)
        if not changed:
            self._routes.touch(broker.address, self._clock())
        body = b"" if known is None else encode_config(known)
        return command.reply(ResponseCode.SUCCESS, ext=fields.write(DataVersionReply(changed=changed)), body=body)

    def expire(self, after_s: float) -> None:
        """Drops the brokers that have not registered for `after_s` seconds."""
        for broker in self._routes.expire(self._clock() - after_s):
            _logger.warning("broker %s (id %d) expired: silent for %g s", broker.name, broker.broker_id, after_s)

    def _connection_gone(self, connection: Connection) -> None:
        for broker in self._routes.drop_owner(connection):
            _logger.warning("broker %s (id %d) dropped: its connection closed", broker.name, broker.broker_id)


def _broker_of(header: BrokerIdentity, ha_address: str = "") -> RegisteredBroker:
    """Returns the broker that a request names. Raises BadRequest if clients could not use its names or its address."""
    for name in (header.broker_name, header.cluster_name):
        if not is_legal_topic(name):  # a topic has this name
            raise BadRequest(f"{name[:127]!r} is not a valid broker or cluster name; use letters, digits, '-' and '_'")
    matched = _ADDRESS.fullmatch(header.broker_addr)
    if matched is None or not 0 < int(matched[2]) <= 65535:
        raise BadRequest(
            f"{header.broker_addr[:127]!r} is not an address that all clients can use; set brokerIP1 to an IPv4 address"
        )
    if header.broker_id < 0:
        raise BadRequest(f"a broker's id is 0 for a master and positive for a slave, not {header.broker_id}")
    return RegisteredBroker(
        name=header.broker_name,
        address=header.broker_addr,
        cluster=header.cluster_name,
        broker_id=header.broker_id,
        ha_address=ha_address,
    )


def _legal(topics: TopicConfigs) -> TopicConfigs:
    """Returns the topics that have legal names."""
    legal = {name: topic for name, topic in topics.topics.items() if is_legal_topic(topic.name)}
    return TopicConfigs(topics=legal, version=topics.version)


# -- administration ------------------------------------------------------------------------------------------


_SIGNED: Final = (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN, SEAL)
"""Arguments that say who asks, not what for."""


def _logged(act: str, handler: Handler) -> Handler:
    """Returns a handler that logs what an administrator changes, who did it from where, and what was refused."""

    def refused(connection: Connection, values: str, error: PenstockError) -> None:
        log_act(_logger, act, values, connection.peer, connection.account, str(error))

    async def later(connection: Connection, values: str, result: Awaitable[Any]) -> Any:
        try:
            reply = await result
        except PenstockError as error:
            refused(connection, values, error)
            raise
        log_act(_logger, act, values, connection.peer, connection.account)
        return reply

    def handle(connection: Connection, command: Command) -> Any:
        asked = {name: text for name, text in command.ext.items() if name not in _SIGNED}
        values = describe(asked, command.body)
        try:
            result = handler(connection, command)
        except PenstockError as error:
            refused(connection, values, error)
            raise
        if isinstance(result, Awaitable):
            return later(connection, values, result)
        log_act(_logger, act, values, connection.peer, connection.account)
        return result

    return handle


class NameServerAdmin:
    """Administration requests. This class owns the current settings."""

    def __init__(self, routes: RouteTable, kv: KvTable, settings: NamesrvSettings) -> None:
        self._routes = routes
        self._kv = kv
        self.settings = settings

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.PUT_KV_CONFIG: _logged("put KV", self.put_kv),
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.DELETE_KV_CONFIG: _logged("delete KV", self.delete_kv),
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.kv_namespace,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: _logged("delete route", self.delete_topic),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: _logged("remove write permission", self.wipe_write_perm),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: _logged("restore write permission", self.add_write_perm),
            RequestCode.UPDATE_NAMESRV_CONFIG: _logged("change settings", self.update_config),
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }

    def listens_at(self, port: int) -> None:
        """Shows this port as listenPort from now on, whatever the settings asked for."""
        self.settings = self.settings.changed_by({"listenPort": str(port)})

    async def put_kv(self, connection: Connection, command: Command) -> Command:
        header = command.read(PutKv)
        if not header.namespace or not header.key:
            raise BadRequest("the namespace or the key is empty; both are required")
        await self._kv.put(header.namespace, header.key, header.value)
        return command.reply(ResponseCode.SUCCESS)

    def get_kv(self, connection: Connection, command: Command) -> Command:
        header = command.read(KvKey)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return command.reply(ResponseCode.QUERY_NOT_FOUND, remark)
        return command.reply(ResponseCode.SUCCESS, ext=fields.write(KvReply(value=value)))

    async def delete_kv(self, connection: Connection, command: Command) -> Command:
        header = command.read(KvKey)
        await self._kv.delete(header.namespace, header.key)
        return command.reply(ResponseCode.SUCCESS)

    def kv_namespace(self, connection: Connection, command: Command) -> Command:
        namespace = command.read(KvNamespace).namespace
        table = self._kv.namespace(namespace)
        if not table:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return command.reply(ResponseCode.SUCCESS, body=KVTable(table=table).to_bytes())

    def delete_topic(self, connection: Connection, command: Command) -> Command:
        header = command.read(DeleteTopicRoute)
        self._routes.delete_topic(header.topic, header.cluster_name or None)
        return command.reply(ResponseCode.SUCCESS)

    def wipe_write_perm(self, connection: Connection, command: Command) -> Command:
        name = command.read(BrokerName).broker_name
        reply = WipeReply(wipe_topic_count=self._routes.wipe_write_perm(name))
        return command.reply(ResponseCode.SUCCESS, ext=fields.write(reply))

    def add_write_perm(self, connection: Connection, command: Command) -> Command:
        name = command.read(BrokerName).broker_name
        reply = AddReply(add_topic_count=self._routes.add_write_perm(name))
        return command.reply(ResponseCode.SUCCESS, ext=fields.write(reply))

    def update_config(self, connection: Connection, command: Command) -> Command:
        """Changes settings in CHANGEABLE: all settings of the request, or none."""
        try:
            texts = {entry.name: entry.value for entry in parse_properties(bytes(command.body))}
        except ValueError as error:
            raise BadRequest(f"the settings cannot be parsed: {error}") from None
        for name in texts:
            if not TABLE.knows(name):
                raise BadRequest(str(TABLE.unknown(name[:127])))
            if name not in CHANGEABLE:
                allowed = ", ".join(CHANGEABLE)
                raise Refusal(
                    ResponseCode.NO_PERMISSION, f"{name[:127]} cannot be changed over the network; only {allowed} can"
                )
        try:
            self.settings = self.settings.changed_by(texts)
        except BadSettings as error:
            raise BadRequest(str(error)) from None
        return command.reply(ResponseCode.SUCCESS)

    def get_config(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=self.settings.to_properties().encode())
