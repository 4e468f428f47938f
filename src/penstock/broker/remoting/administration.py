"""Requests of administrators and tools, by request code; and those by which slaves copy their master's tables."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.broker.core import Core
from penstock.broker.remoting.adapter import Route, adapt, handlers_of
from penstock.format.config_tables import SubscriptionGroup
from penstock.protocol.bodies.admin import decode_config
from penstock.protocol.codes import RequestCode
from penstock.remoting.handlers import Handler

_ROUTES: Final = {
    # topics
    RequestCode.UPDATE_AND_CREATE_TOPIC: Route("create topic"),
    RequestCode.DELETE_TOPIC_IN_BROKER: Route("delete topic"),
    RequestCode.GET_ALL_TOPIC_CONFIG: Route("all topics"),
    RequestCode.GET_TOPIC_CONFIG: Route("show topic"),
    RequestCode.GET_TOPIC_STATS_INFO: Route("topic stats"),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Route("system topics"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Route("topic consumers"),
    # groups
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Route("update group", partial(decode_config, SubscriptionGroup)),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Route("delete group"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Route("all groups"),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Route("show group"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Route("group topics"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Route("group subscription"),
    # progress and offsets
    RequestCode.GET_CONSUME_STATS: Route("group progress"),
    RequestCode.GET_BROKER_CONSUME_STATS: Route("all progress"),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Route("time span"),
    RequestCode.QUERY_CONSUME_QUEUE: Route("queue units"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Route("reset offsets"),
    RequestCode.CLONE_GROUP_OFFSET: Route("clone offsets"),
    RequestCode.GET_ALL_CONSUMER_OFFSET: Route("all offsets"),
    RequestCode.GET_ALL_DELAY_OFFSET: Route("delay offsets"),
    RequestCode.QUERY_CORRECTION_OFFSET: Route("correct offsets"),
    # clients
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Route("consumer connections"),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Route("producer connections"),
    RequestCode.GET_ALL_PRODUCER_INFO: Route("all producers"),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Route("consumer status"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Route("running info"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Route("consume directly"),
    # the broker
    RequestCode.GET_BROKER_RUNTIME_INFO: Route("runtime info"),
    RequestCode.VIEW_BROKER_STATS_DATA: Route("broker stats"),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Route("clean queues"),
    RequestCode.CLEAN_UNUSED_TOPIC: Route("clean topics"),
    RequestCode.DELETE_EXPIRED_COMMITLOG: Route("delete expired"),
    RequestCode.UPDATE_BROKER_CONFIG: Route("change settings", bytes),
    RequestCode.GET_BROKER_CONFIG: Route("show settings"),
    RequestCode.GET_BROKER_HA_STATUS: Route("replication status"),
    # accounts
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: Route("accounts version"),
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: Route("all accounts"),
}
_ACCOUNT_CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
)


def administration_handlers(core: Core) -> dict[int, Handler]:
    """Returns the handlers of all requests of administrators. The arguments of account changes are not read."""
    refused = adapt(core.find("change accounts"))
    return {**handlers_of(core, _ROUTES), **dict.fromkeys(_ACCOUNT_CHANGES, refused)}
