"""Lists and tables of texts (topics, groups, clients, KV), and configuration tables as bodies.

Configuration tables have the shapes of the config files, so their types are in `penstock.format.config_tables`:
`TopicConfigs` (21), `TopicConfig` (351), `SubscriptionGroups` (201), `SubscriptionGroup` (200, 352), `DataVersion`
(322), `ConsumerOffsets` (43), `DelayOffsets` (45).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec

from penstock.errors import BadRequest
from penstock.protocol.bodies.base import SHAPE_ERRORS, Body, read_document


class TopicList(Body, kw_only=True):
    """206, 224, 304, 305, 343. Only 304 sets `broker_addr`."""

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
    """A configuration table."""

    @classmethod
    def from_json(cls, document: Any) -> Self: ...

    def to_json(self) -> dict[str, Any]: ...


C = TypeVar("C", bound=Config)


def encode_config(config: Config) -> bytes:
    """The body of a configuration table."""
    return msgspec.json.encode(config.to_json())


def decode_config(kind: type[C], data: bytes | memoryview) -> C:
    """The configuration table in a body. Raises BadRequest."""
    document = read_document(data, kind.__name__)
    if not isinstance(document, dict):
        raise BadRequest(f"the body is not a valid {kind.__name__}: it is not an object")
    try:
        return kind.from_json(document)
    except SHAPE_ERRORS as error:
        raise BadRequest(f"the body is not a valid {kind.__name__}: {error}") from None


DELETED_TOPICS: Final = "penstockDeletedTopics"
"""An argument of the reply to 21: a Penstock master reports deleted topics to its slaves."""


def encode_deleted(ends: Mapping[str, int]) -> str:
    """Deleted topics, and for each the physical offset before which its messages were deleted."""
    return msgspec.json.encode(dict(ends)).decode()


def decode_deleted(text: str) -> dict[str, int]:
    """The inverse; empty if the argument is missing. Raises BadRequest."""
    try:
        return msgspec.json.decode(text, type=dict[str, int]) if text else {}
    except msgspec.DecodeError as error:
        raise BadRequest(f"{DELETED_TOPICS} cannot be read: {error}") from None
