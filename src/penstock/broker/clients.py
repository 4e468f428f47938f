"""Heartbeats and what follows from them: codes 34, 35, 38 and 46, and the notice 40 to a group's clients.

A heartbeat makes the client's consumer groups and their retry topics where that is allowed. Notices of one turn of the
loop are sent together: a hundred clients that start at once hear of each other a few times, not ten thousand.
"""

from __future__ import annotations

import asyncio

from penstock.broker.client_table import ClientTable, ConsumerGroup
from penstock.broker.group_table import GroupTable, is_legal_group
from penstock.broker.selection import SqlCompiler
from penstock.broker.settings import SettingsInForce
from penstock.broker.system_topics import retry_topic
from penstock.broker.topic_table import UNIT_SUBSCRIPTION, TopicTable
from penstock.errors import BadRequest
from penstock.protocol.bodies.heartbeat import CheckClientRequestBody, ConsumerData, HeartbeatData
from penstock.protocol.bodies.lists import ConsumerList
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.groups import ConsumerGroup as GroupHeader
from penstock.protocol.headers.groups import UnregisterClient
from penstock.protocol.subscription import TAG
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal


class Clients:
    """Takes heartbeats, and tells the clients of a group when its members change."""

    def __init__(
        self,
        clients: ClientTable,
        groups: GroupTable,
        topics: TopicTable,
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
