"""Brokers that register, unregister, and ask whether they have to (103, 104, 322)."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable
from typing import Final

from penstock.errors import BadRequest
from penstock.format.config_tables import DataVersion, Topics
from penstock.format.topics import is_legal_topic
from penstock.namesrv.kv_table import ORDER_TOPICS, KvTable
from penstock.namesrv.route_table import Broker, RouteTable
from penstock.protocol import fields
from penstock.protocol.bodies.configs import decode_config, encode_config
from penstock.protocol.bodies.lists import KVTable
from penstock.protocol.bodies.register import RegisterBrokerBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.namesrv import (
    BrokerIdentity,
    DataVersionReply,
    RegisterBroker,
    RegisterBrokerReply,
)
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal

_logger = logging.getLogger("penstock.namesrv")

_ADDRESS: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}):([0-9]{1,5})")
_CRC_BITS: Final = 0x7FFFFFFF


class Registration:
    """Foreign brokers. Those that lose their connection are gone at once, those that fall silent after a while."""

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
            raise Refusal(ResponseCode.NO_PERMISSION, f"the broker of this process is named {broker.name} already")
        if header.body_crc32 and zlib.crc32(command.body) & _CRC_BITS != header.body_crc32 & _CRC_BITS:
            raise BadRequest(f"the registration of {broker.name} arrived damaged: its CRC differs")
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
        found = RegisterBrokerReply()
        if master is not None:
            found = RegisterBrokerReply(ha_server_addr=master.ha_address, master_addr=master.address)
        ordered = KVTable(table=self._kv.namespace(ORDER_TOPICS))
        return command.reply(ResponseCode.SUCCESS, ext=fields.write(found), body=ordered.to_bytes())

    def unregister(self, connection: Connection, command: Command) -> Command:
        broker = _broker_of(command.read(BrokerIdentity))
        if self._routes.is_local(broker):
            raise Refusal(ResponseCode.NO_PERMISSION, f"{broker.name} is the broker of this process")
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
        """Forgets the brokers that have been silent for so long."""
        for broker in self._routes.expire(self._clock() - after_s):
            _logger.warning("broker %s (id %d) is forgotten: silent for %g s", broker.name, broker.broker_id, after_s)

    def _connection_gone(self, connection: Connection) -> None:
        for broker in self._routes.drop_owner(connection):
            _logger.warning("broker %s (id %d) is gone: its connection is closed", broker.name, broker.broker_id)


def _broker_of(header: BrokerIdentity, ha_address: str = "") -> Broker:
    """Who it is. Raises BadRequest unless clients can use the name and the address."""
    for name in (header.broker_name, header.cluster_name):
        if not is_legal_topic(name):  # a topic has this name
            raise BadRequest(f"{name[:127]!r} can be no name of a broker or cluster: letters, digits, '-' and '_' can")
    matched = _ADDRESS.fullmatch(header.broker_addr)
    if matched is None or not 0 < int(matched[2]) <= 65535:
        raise BadRequest(
            f"{header.broker_addr[:127]!r} is no address that all clients can use; set brokerIP1 to an IPv4 address"
        )
    if header.broker_id < 0:
        raise BadRequest(f"a broker's id is 0 for a master, more for a slave, and not {header.broker_id}")
    return Broker(
        name=header.broker_name,
        address=header.broker_addr,
        cluster=header.cluster_name,
        broker_id=header.broker_id,
        ha_address=ha_address,
    )


def _legal(topics: Topics) -> Topics:
    """Without topics whose name no client could use."""
    legal = {name: topic for name, topic in topics.topics.items() if is_legal_topic(topic.name)}
    return Topics(topics=legal, version=topics.version)
