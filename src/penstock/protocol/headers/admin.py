"""Arguments for the administration of a broker and its topics: statistics, settings, accounts.

The number in a docstring is the request code.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from penstock.format.constants import Int32, Int64
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Reply, Request


class GetBrokerRuntimeInfo(Request, kw_only=True):
    """Request 28: a broker's figures. RocketMQ sends and reads no arguments.

    `penstock_counters` asks for COUNTERS_KEY in the reply's table as well.
    """

    codes: ClassVar[Codes] = (RequestCode.GET_BROKER_RUNTIME_INFO,)

    penstock_counters: bool = False


class ViewBrokerStats(Request, kw_only=True):
    """Request 315: shows one counter, by RocketMQ's name of it and its subject, such as a topic."""

    codes: ClassVar[Codes] = (RequestCode.VIEW_BROKER_STATS_DATA,)

    stats_name: str
    stats_key: str


class GetBrokerConsumeStats(Request, kw_only=True):
    """Request 317: the progress of all groups. `is_order` limits it to ordered topics."""

    codes: ClassVar[Codes] = (RequestCode.GET_BROKER_CONSUME_STATS,)

    is_order: bool


class BrokerConfigReply(Reply, kw_only=True):
    """Reply to 26. `version` is the data version as JSON text; the settings are in the body."""

    codes: ClassVar[Codes] = (RequestCode.GET_BROKER_CONFIG,)

    version: str


class Follow(Request, kw_only=True):
    """Request 30901: a slave asks for a proof and a ticket: `broker.replication.replication_authentication`."""

    codes: ClassVar[Codes] = (RequestCode.PENSTOCK_FOLLOW,)

    nonce: str
    port: Int32 = 0
    """The port from which the slave is going to connect to the master's replication port; 0: it wants no ticket."""
    access_key: str | None = msgspec.field(default=None, name="AccessKey")


class FollowReply(Reply, kw_only=True):
    """Reply to 30901. `proof` is empty if the master has no such account."""

    codes: ClassVar[Codes] = (RequestCode.PENSTOCK_FOLLOW,)

    nonce: str
    ha_address: str = ""
    """Where the master sends its log, as it tells name servers; empty if it does not."""
    proof: str = ""


class UpdateAccount(Request, kw_only=True):
    """Request 50: creates an account, or changes one; what is missing or empty stays as it is.

    The permissions are comma-separated, such as `topicA=DENY,topicB=PUB|SUB`.
    """

    codes: ClassVar[Codes] = (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,)

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class AccessKey(Request, kw_only=True):
    """Request 51: deletes an account."""

    codes: ClassVar[Codes] = (RequestCode.DELETE_ACL_CONFIG,)

    access_key: str


class AclVersionReply(Reply, kw_only=True):
    """Reply to 52: the version of the accounts."""

    codes: ClassVar[Codes] = (RequestCode.GET_BROKER_CLUSTER_ACL_INFO,)

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


class UpdateGlobalAddresses(Request, kw_only=True):
    """Request 53. The file path that 4.9 sends is ignored, because Penstock accepts no paths from the network."""

    codes: ClassVar[Codes] = (RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,)

    global_white_addrs: str


class CreateTopic(Request, kw_only=True):
    """Request 17. `attributes` is in 5.x's notation, such as `+message.type=FIFO`."""

    codes: ClassVar[Codes] = (RequestCode.UPDATE_AND_CREATE_TOPIC,)

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int32 = 0
    attributes: str | None = None
    force: bool | None = None


class TopicName(Request, kw_only=True):
    """Requests 202, 215, 300 and 351."""

    codes: ClassVar[Codes] = (
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.GET_TOPIC_CONFIG,
    )

    topic: str


class AllTopicsReply(Reply, kw_only=True):
    """Reply to 21. A Penstock master adds the topics that it has deleted, for its slaves; see `encode_deleted`."""

    codes: ClassVar[Codes] = (RequestCode.GET_ALL_TOPIC_CONFIG,)

    penstock_deleted_topics: str | None = None


class ProgressReply(Reply, kw_only=True):
    """Reply to 43 and 45: a table of offsets is in the body. A Penstock master adds where its log ended.

    The broker's own positions in the table rest on log records before that offset, and on nothing behind it.
    """

    codes: ClassVar[Codes] = (RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET)

    penstock_log_end: Int64 | None = None
