"""Administration of a broker: statistics, settings, accounts; and of its topics.

The number in a docstring is the request code.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.format.constants import Int32
from penstock.protocol.codes import RequestCode
from penstock.protocol.fields import Codes, Reply, Request


class ViewBrokerStats(Request, kw_only=True):
    """315."""

    codes: ClassVar[Codes] = (RequestCode.VIEW_BROKER_STATS_DATA,)

    stats_name: str
    stats_key: str


class GetBrokerConsumeStats(Request, kw_only=True):
    """317."""

    codes: ClassVar[Codes] = (RequestCode.GET_BROKER_CONSUME_STATS,)

    is_order: bool


class BrokerConfigReply(Reply, kw_only=True):
    """Reply to 26: the data version as JSON text; the settings are the body."""

    codes: ClassVar[Codes] = (RequestCode.GET_BROKER_CONFIG,)

    version: str


class UpdateAccount(Request, kw_only=True):
    """50. The permissions are comma-separated, such as `topicA=DENY,topicB=PUB|SUB`."""

    codes: ClassVar[Codes] = (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,)

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class AccessKey(Request, kw_only=True):
    """51."""

    codes: ClassVar[Codes] = (RequestCode.DELETE_ACL_CONFIG,)

    access_key: str


class AclVersionReply(Reply, kw_only=True):
    """Reply to 52."""

    codes: ClassVar[Codes] = (RequestCode.GET_BROKER_CLUSTER_ACL_INFO,)

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


class UpdateGlobalAddresses(Request, kw_only=True):
    """53. The path that 4.9 sends is ignored: Penstock accepts no paths from the network."""

    codes: ClassVar[Codes] = (RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,)

    global_white_addrs: str


class CreateTopic(Request, kw_only=True):
    """17. `attributes` is 5.x's `+message.type=FIFO`."""

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
    """202, 215, 300, 351."""

    codes: ClassVar[Codes] = (
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.GET_TOPIC_CONFIG,
    )

    topic: str
