"""Bodies that are a list or a table of texts: topics, groups, clients, KV.

Tables of configuration that brokers, tools and name servers send each other.

They have the shapes of the config files, so `penstock.format.config_tables` holds them: `Topics` (21),
`TopicConfig` (351), `SubscriptionGroups` (201), `SubscriptionGroup` (200, 352), `DataVersion` (322), `ConsumerOffsets`
(43), `DelayOffsets` (45).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec

from penstock.errors import BadRequest
from penstock.protocol.bodies.base import NOT_THE_SHAPE, Body, read_document


class TopicList(Body, kw_only=True):
    """206, 224, 304, 305, 343. `broker_addr` is given by 304 only."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class GroupList(Body, kw_only=True):
    """300."""

    group_list: list[str] = []


class ConsumerList(Body, kw_only=True):
    """38: the ids of a group's clients."""

    consumer_id_list: list[str] = []


class KVTable(Body, kw_only=True):
    """28, 219, and the reply to 103."""

    table: dict[str, str] = {}


class Config(Protocol):
    """A table of configuration."""

    @classmethod
    def from_json(cls, document: Any) -> Self: ...

    def to_json(self) -> dict[str, Any]: ...


C = TypeVar("C", bound=Config)


def encode_config(config: Config) -> bytes:
    """A table as body."""
    return msgspec.json.encode(config.to_json())


def decode_config(kind: type[C], data: bytes | memoryview) -> C:
    """The table in a body. Raises BadRequest."""
    document = read_document(data, kind.__name__)
    if not isinstance(document, dict):
        raise BadRequest(f"a body is no {kind.__name__}: it is no object")
    try:
        return kind.from_json(document)
    except NOT_THE_SHAPE as error:
        raise BadRequest(f"a body is no {kind.__name__}: {error}") from None


DELETED_TOPICS: Final = "penstockDeletedTopics"
"""An argument of the answer to 21, by which a master of ours tells its slaves what was deleted."""


def encode_deleted(ends: Mapping[str, int]) -> str:
    """Topics, and the physical offset before which their messages were deleted."""
    return msgspec.json.encode(dict(ends)).decode()


def decode_deleted(text: str) -> dict[str, int]:
    """Nothing if there is no such argument. Raises BadRequest."""
    try:
        return msgspec.json.decode(text, type=dict[str, int]) if text else {}
    except msgspec.DecodeError as error:
        raise BadRequest(f"{DELETED_TOPICS} cannot be read: {error}") from None
