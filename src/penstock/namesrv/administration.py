"""What administrators do: KV, topics, permissions, settings (100-102, 219, 216, 205, 327, 318, 319).

Who is one is decided before: see `access`.
"""

from __future__ import annotations

import logging

from penstock.config.properties import parse_properties
from penstock.errors import BadRequest, BadSettings
from penstock.namesrv.kv_table import KvTable
from penstock.namesrv.route_table import RouteTable
from penstock.namesrv.settings import CHANGEABLE, NamesrvSettings
from penstock.protocol import fields
from penstock.protocol.bodies.lists import KVTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.namesrv import (
    AddReply,
    BrokerName,
    DeleteTopicRoute,
    KvKey,
    KvNamespace,
    KvReply,
    PutKv,
    WipeReply,
)
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal

_logger = logging.getLogger("penstock.namesrv")


class Administration:
    """Owns the settings in force."""

    def __init__(self, routes: RouteTable, kv: KvTable, settings: NamesrvSettings) -> None:
        self._routes = routes
        self._kv = kv
        self.settings = settings

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.kv_namespace,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }

    async def put_kv(self, connection: Connection, command: Command) -> Command:
        header = command.read(PutKv)
        if not header.namespace or not header.key:
            raise BadRequest("a namespace and a key are needed, and one of them is empty")
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
        found = WipeReply(wipe_topic_count=self._routes.wipe_write_perm(name))
        _logger.info("%d topics of broker %s take no more messages", found.wipe_topic_count, name)
        return command.reply(ResponseCode.SUCCESS, ext=fields.write(found))

    def add_write_perm(self, connection: Connection, command: Command) -> Command:
        name = command.read(BrokerName).broker_name
        found = AddReply(add_topic_count=self._routes.add_write_perm(name))
        _logger.info("%d topics of broker %s take messages again", found.add_topic_count, name)
        return command.reply(ResponseCode.SUCCESS, ext=fields.write(found))

    def update_config(self, connection: Connection, command: Command) -> Command:
        """Changes what is on the list of changeable settings, all of it or nothing."""
        try:
            asked = {entry.name: entry.value for entry in parse_properties(bytes(command.body))}
        except ValueError as error:
            raise BadRequest(f"the settings cannot be read: {error}") from None
        for name in asked:
            if name not in CHANGEABLE:
                allowed = ", ".join(CHANGEABLE)
                raise Refusal(
                    ResponseCode.NO_PERMISSION, f"{name[:127]} cannot be changed over the network; {allowed} can"
                )
        try:
            self.settings = self.settings.changed_by(asked)
        except BadSettings as error:
            raise BadRequest(str(error)) from None
        return command.reply(ResponseCode.SUCCESS)

    def get_config(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=self.settings.to_properties().encode())
