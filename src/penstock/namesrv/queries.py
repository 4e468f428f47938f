"""What clients and tools ask: routes, brokers, topics (105, 106, 206, 224, 304, 311, 312, 313)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.namesrv.default_route import default_route
from penstock.namesrv.kv_table import ORDER_TOPICS, KvTable
from penstock.namesrv.route_table import RouteTable
from penstock.namesrv.settings import NamesrvSettings
from penstock.protocol.bodies.lists import TopicList
from penstock.protocol.bodies.route import TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.namesrv import GetRoute, GetTopicsByCluster
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler

_UNIT: Final = 1
_UNIT_SUB: Final = 2
"""Bits of a topic's flags: it belongs to a unit; a group of a unit has subscribed to it."""


class Queries:
    """Reads only."""

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
        """Where a topic is, or would be if somebody sent to it."""
        settings = self._settings()
        route = self._routes.route(topic)
        if route is None and settings.auto_create_topic_enable:
            return default_route(self._routes, topic)
        if route is not None and settings.order_message_enable:
            route.order_topic_conf = self._kv.get(ORDER_TOPICS, topic)
        return route

    def route(self, connection: Connection, command: Command) -> Command:
        """Strict JSON for everybody, so `acceptStandardJsonOnly` changes nothing."""
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
        """With the address of some broker, which can be asked for its own ones."""
        addresses = sorted(broker.address for broker in self._routes.brokers)
        found = TopicList(topic_list=self._routes.system_topics(), broker_addr=addresses[0] if addresses else None)
        return self._list(command, found)

    def _by_unit(self, wanted: Callable[[int], bool], connection: Connection, command: Command) -> Command:
        """The topics of which a broker says so in their flags."""
        found = [
            topic
            for topic in self._routes.topics()
            if any(wanted(queues.topic_sys_flag) for queues in self._routes.queues(topic).values())
        ]
        return self._list(command, TopicList(topic_list=found))

    def _list(self, command: Command, topics: TopicList) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=topics.to_bytes())
