"""Bodies of administration: lists and tables of texts, configuration tables, accounts and replication status.

A number in a docstring is a request code.

Configuration tables have the shapes of the config files. Their classes are in `penstock.format.config_tables`:
`TopicConfigs` (21), `TopicConfig` (351), `SubscriptionGroups` (201), `SubscriptionGroup` (200, 352), `DataVersion`
(322), `ConsumerOffsets` (43) and `DelayOffsets` (45).

RocketMQ 5 knows request 907, RocketMQ 4.9 does not. The field names of its reply are RocketMQ's, except
`behindSeconds`, `lastAckTimestamp`, `activated`, `problem`, `brokerRole`, `brokerId`, `epoch`, `epochs` and
`elections`, which RocketMQ's tools ignore.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self, TypeVar

import msgspec

from penstock.errors import BadRequest
from penstock.format.constants import Int32, Int64
from penstock.protocol.bodies.base import SHAPE_ERRORS, Body, read_document


class TopicList(Body, kw_only=True):
    """Reply to 206, 224, 304, 305, 311, 312, 313 and 343. Only 304 sets `broker_addr`."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class GroupList(Body, kw_only=True):
    """Reply to 300: the groups that consume a topic."""

    group_list: list[str] = []


class ConsumerList(Body, kw_only=True):
    """Reply to 38: the client ids of a group's consumers."""

    consumer_id_list: list[str] = []


class KVTable(Body, kw_only=True):
    """Reply to 28, 103 and 219: texts by name."""

    table: dict[str, str] = {}


class Config(Protocol):
    """A configuration table that can be converted to and from JSON."""

    @classmethod
    def from_json(cls, document: Any) -> Self: ...

    def to_json(self) -> dict[str, Any]: ...


C = TypeVar("C", bound=Config)


def encode_config(config: Config) -> bytes:
    """Returns the body that contains a configuration table."""
    return msgspec.json.encode(config.to_json())


def decode_config(kind: type[C], data: bytes | memoryview) -> C:
    """Returns the configuration table in a body. Raises BadRequest."""
    document = read_document(data, kind.__name__)
    if not isinstance(document, dict):
        raise BadRequest(f"the body is not a valid {kind.__name__}: it is not an object")
    try:
        return kind.from_json(document)
    except SHAPE_ERRORS as error:
        raise BadRequest(f"the body is not a valid {kind.__name__}: {error}") from None


def encode_deleted(ends: Mapping[str, int]) -> str:
    """Encodes the deleted topics. `ends` has, for each, the physical offset before which its messages are deleted."""
    return msgspec.json.encode(dict(ends)).decode()


def decode_deleted(text: str) -> dict[str, int]:
    """Reverses `encode_deleted`. An empty text, for a missing argument, means no topics. Raises BadRequest."""
    try:
        return msgspec.json.decode(text, type=dict[str, int]) if text else {}
    except msgspec.DecodeError as error:
        raise BadRequest(f"the deleted topics cannot be read: {error}") from None


class PlainAccessConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """One account in the reply to 54."""

    access_key: str
    secret_key: str
    white_remote_address: str
    admin: bool
    default_topic_perm: str
    default_group_perm: str
    topic_perms: list[str]
    group_perms: list[str]


class ClusterAclConfig(Body, kw_only=True):
    """Reply to 54: white addresses and accounts."""

    global_white_addrs: list[str]
    plain_access_configs: list[PlainAccessConfig]


class HaConnection(Body, kw_only=True):
    """One slave in the reply to 907, as its master sees it. `diff` is the slave's lag in bytes."""

    addr: str = ""
    slave_ack_offset: Int64 = 0
    diff: Int64 = 0
    in_sync: bool = False
    transferred_byte_in_second: Int64 = 0
    transfer_from_where: Int64 = 0
    behind_seconds: float = 0.0
    last_ack_timestamp: Int64 = 0
    broker_id: Int32 = 0
    """0 if the slave does not say who it is."""
    epoch: Int32 = 0
    """The epoch in which the slave follows; 0 without epochs."""


class HaClient(Body, kw_only=True):
    """A slave's own state in its reply to 907."""

    master_addr: str = ""
    transferred_byte_in_second: Int64 = 0
    max_offset: Int64 = 0
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_flush_offset: Int64 = 0
    activated: bool = False
    problem: str = ""


class HaReplica(Body, kw_only=True):
    """A replica of an elected set, as the consensus engine knows it."""

    id: Int32 = 0
    address: str = ""
    role: str = ""
    """`master`, `slave`, `candidate` or `waiting`; empty if it does not run."""
    epoch: Int32 = 0
    end: Int64 = 0
    """Where its log ended when it last said so."""
    in_sync: bool = False
    why: str = ""
    """Why it could not become master now; empty if it could, or is it."""


class HaMastership(Body, kw_only=True):
    """How an epoch began."""

    epoch: Int32 = 0
    master: Int32 = 0
    since: Int64 = 0
    why: str = ""
    forced: bool = False
    """Whether a person chose the master and accepted loss."""


class HaElections(Body, kw_only=True):
    """What an elected broker says of itself, and of its set. The figures count from the start of its process."""

    id: Int32 = 0
    """Its id in the set, which it keeps as a master; 0 if it has none yet."""
    role: str = ""
    """As in HaReplica."""
    epoch: Int32 = 0
    master: Int32 = 0
    """The id of the set's master; 0 if there is none."""
    sync: list[Int32] = []
    required: Int32 = 0
    """The replicas that must have a message before it is acknowledged, this one included; 0 for a slave."""
    paused: bool = False
    engine_answers: bool = False
    problem: str = ""
    """What is wrong with the engine, or what the broker waits for."""
    fenced: str = ""
    """Why a master takes no messages; empty if it does."""
    renewed_seconds: float = 0.0
    """Since the last renewal of its lease that was answered; 0 without a lease."""
    left_seconds: float = 0.0
    """Until its lease may end; 0 without a lease, or if it may have ended."""
    failed_renewals: Int64 = 0
    elections_won: Int64 = 0
    role_changes: Int64 = 0
    tails_cut: Int64 = 0
    tail_bytes_cut: Int64 = 0
    replicas: list[HaReplica] = []
    masters: list[HaMastership] = []
    """The last ones, newest first."""


class HaRuntimeInfo(Body, kw_only=True):
    """Reply to 907: the replication status."""

    master: bool = True
    master_commit_log_max_offset: Int64 = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: list[HaConnection] = []
    ha_client_runtime_info: HaClient | None = None
    broker_role: str = ""
    epoch: Int32 = 0
    """The epoch of the broker's role; 0 without epochs."""
    epochs: list[list[Int64]] = []
    """Epoch and start of each part of the log, oldest first; the newest 100."""
    elections: HaElections | None = None
    """None if the master is not elected."""
