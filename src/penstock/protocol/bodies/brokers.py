"""Access control accounts (54) and replication state (907) of a broker.

4.9 does not know 907; its field names are those of RocketMQ 5's source. `behindSeconds`, `lastAckTimestamp`,
`activated`, `problem` and `brokerRole` are Penstock's additions, which RocketMQ's tools ignore.
"""

from __future__ import annotations

import msgspec

from penstock.format.constants import Int32, Int64
from penstock.protocol.bodies.base import Body


class PlainAccessConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """One account in 54."""

    access_key: str
    secret_key: str
    white_remote_address: str
    admin: bool
    default_topic_perm: str
    default_group_perm: str
    topic_perms: list[str]
    group_perms: list[str]


class ClusterAclConfig(Body, kw_only=True):
    """54: allowed addresses and accounts."""

    global_white_addrs: list[str]
    plain_access_configs: list[PlainAccessConfig]


class HaConnection(Body, kw_only=True):
    """A slave, as its master reports it. `diff` is its lag in bytes."""

    addr: str = ""
    slave_ack_offset: Int64 = 0
    diff: Int64 = 0
    in_sync: bool = False
    transferred_byte_in_second: Int64 = 0
    transfer_from_where: Int64 = 0
    behind_seconds: float = 0.0
    last_ack_timestamp: Int64 = 0


class HaClient(Body, kw_only=True):
    """A slave's own report."""

    master_addr: str = ""
    transferred_byte_in_second: Int64 = 0
    max_offset: Int64 = 0
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_flush_offset: Int64 = 0
    activated: bool = False
    problem: str = ""


class HaRuntimeInfo(Body, kw_only=True):
    """907."""

    master: bool = True
    master_commit_log_max_offset: Int64 = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: list[HaConnection] = []
    ha_client_runtime_info: HaClient | None = None
    broker_role: str = ""
