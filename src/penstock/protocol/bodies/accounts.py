"""Accounts of access control, as RocketMQ's tools read them: 54."""

from __future__ import annotations

import msgspec

from penstock.protocol.bodies.base import Body


class PlainAccessConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """One account, as RocketMQ's tools read it."""

    access_key: str
    secret_key: str
    white_remote_address: str
    admin: bool
    default_topic_perm: str
    default_group_perm: str
    topic_perms: list[str]
    group_perms: list[str]


class ClusterAclConfig(Body, kw_only=True):
    """54: addresses and accounts."""

    global_white_addrs: list[str]
    plain_access_configs: list[PlainAccessConfig]
