"""Consumer groups, for administrators: made, changed, deleted and shown (200, 201, 207, 343, 345, 352)."""

from __future__ import annotations

import logging
from typing import Final

from penstock.broker.group_table import is_legal_group
from penstock.broker.state import BrokerState
from penstock.format.config_tables import SubscriptionGroup
from penstock.protocol.bodies.configs import decode_config, encode_config
from penstock.protocol.bodies.lists import TopicList
from penstock.protocol.bodies.queue_view import QuerySubscriptionResponseBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.groups import DeleteGroup, GroupName, QuerySubscription
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal

log = logging.getLogger("penstock.broker")

_MOST_RETRY_QUEUES: Final = 4096


class AdminGroups:
    """Answers for the group table."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._update,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._one,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._topics,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._subscription,
        }

    def _update(self, connection: Connection, command: Command) -> Command:
        group, groups = decode_config(SubscriptionGroup, command.body), self._state.groups
        if not is_legal_group(group.name):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{group.name[:40]!r} is no name for a consumer group")
        if not 0 <= group.retry_queue_nums <= _MOST_RETRY_QUEUES:
            why = f"a consumer group has up to {_MOST_RETRY_QUEUES} retry queues, not {group.retry_queue_nums}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        most = self._state.settings.now.max_groups
        if groups.find(group.name) is None and len(groups.all()) >= most:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"there are {most} consumer groups already (maxGroups)")
        groups.update(group)
        log.info("consumer group %s is set by an administrator", group.name)
        return command.reply(ResponseCode.SUCCESS)

    def _delete(self, connection: Connection, command: Command) -> Command:
        header = command.read(DeleteGroup)
        self._state.groups.delete(header.group_name)
        if header.clean_offset or header.remove_offset:
            self._state.offsets.remove_group(header.group_name)
        self._state.tally.forget_group(header.group_name)
        return command.reply(ResponseCode.SUCCESS)

    def _all(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=encode_config(self._state.groups.snapshot()))

    def _one(self, connection: Connection, command: Command) -> Command:
        name = command.read(GroupName).group
        group = self._state.groups.find(name)
        if group is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group '{name}' does not exist")
        return command.reply(ResponseCode.SUCCESS, body=encode_config(group))

    def _topics(self, connection: Connection, command: Command) -> Command:
        """The topics that the group has consumed something of."""
        topics = sorted(self._state.offsets.of_group(command.read(GroupName).group))
        return command.reply(ResponseCode.SUCCESS, body=TopicList(topic_list=topics).to_bytes())

    def _subscription(self, connection: Connection, command: Command) -> Command:
        header = command.read(QuerySubscription)
        found = self._state.clients.subscription(header.group, header.topic)
        body = QuerySubscriptionResponseBody(group=header.group, topic=header.topic, subscription_data=found)
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())
