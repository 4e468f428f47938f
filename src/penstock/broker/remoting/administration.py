"""Requests of administrators and tools, by request code; and those by which slaves copy their master's tables."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.broker.operations_as_plain_calls import Core
from penstock.broker.remoting.adapt_operations import OperationRoute, handlers_of
from penstock.format.config_tables import SubscriptionGroup
from penstock.protocol.bodies.admin import decode_config
from penstock.protocol.codes import RequestCode
from penstock.remoting.handler_types_and_errors import Handler

_ROUTES: Final = {
    # topics
    RequestCode.UPDATE_AND_CREATE_TOPIC: OperationRoute("create topic"),
    RequestCode.DELETE_TOPIC_IN_BROKER: OperationRoute("delete topic"),
    RequestCode.GET_ALL_TOPIC_CONFIG: OperationRoute("all topics"),
    RequestCode.GET_TOPIC_CONFIG: OperationRoute("show topic"),
    RequestCode.GET_TOPIC_STATS_INFO: OperationRoute("topic stats"),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: OperationRoute("system topics"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: OperationRoute("topic consumers"),
    # groups
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: OperationRoute(
        "update group", partial(decode_config, SubscriptionGroup)
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: OperationRoute("delete group"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: OperationRoute("all groups"),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: OperationRoute("show group"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: OperationRoute("group topics"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: OperationRoute("group subscription"),
    # progress and offsets
    RequestCode.GET_CONSUME_STATS: OperationRoute("group progress"),
    RequestCode.GET_BROKER_CONSUME_STATS: OperationRoute("all progress"),
    RequestCode.QUERY_CONSUME_TIME_SPAN: OperationRoute("time span"),
    RequestCode.QUERY_CONSUME_QUEUE: OperationRoute("queue units"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: OperationRoute("reset offsets"),
    RequestCode.CLONE_GROUP_OFFSET: OperationRoute("clone offsets"),
    RequestCode.GET_ALL_CONSUMER_OFFSET: OperationRoute("all offsets"),
    RequestCode.GET_ALL_DELAY_OFFSET: OperationRoute("delay offsets"),
    RequestCode.QUERY_CORRECTION_OFFSET: OperationRoute("correct offsets"),
    # clients
    RequestCode.GET_CONSUMER_CONNECTION_LIST: OperationRoute("consumer connections"),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: OperationRoute("producer connections"),
    RequestCode.GET_ALL_PRODUCER_INFO: OperationRoute("all producers"),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: OperationRoute("consumer status"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: OperationRoute("running info"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: OperationRoute("consume directly"),
    # the broker
    RequestCode.GET_BROKER_RUNTIME_INFO: OperationRoute("runtime info"),
    RequestCode.VIEW_BROKER_STATS_DATA: OperationRoute("broker stats"),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: OperationRoute("clean queues"),
    RequestCode.CLEAN_UNUSED_TOPIC: OperationRoute("clean topics"),
    RequestCode.DELETE_EXPIRED_COMMITLOG: OperationRoute("delete expired"),
    RequestCode.UPDATE_BROKER_CONFIG: OperationRoute("change settings", bytes),
    RequestCode.GET_BROKER_CONFIG: OperationRoute("show settings"),
    RequestCode.GET_BROKER_HA_STATUS: OperationRoute("replication status"),
    RequestCode.PENSTOCK_FOLLOW: OperationRoute("follow"),
    # accounts
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: OperationRoute("accounts version"),
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: OperationRoute("all accounts"),
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: OperationRoute("update account"),
    RequestCode.DELETE_ACL_CONFIG: OperationRoute("delete account"),
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: OperationRoute("white addresses"),
}


def administration_handlers(core: Core) -> dict[int, Handler]:
    """Returns the handlers of all requests of administrators."""
    return handlers_of(core, _ROUTES)
