"""Bodies about routes: a topic's brokers and queues, the cluster, and broker registration.

A number in a docstring is a request code. A registration body lists a broker's topics, as JSON or in a compressed form.
The compressed form is zlib over three parts: the data version as JSON; the number of topics (4 bytes), and for each
topic the text `name readQueues writeQueues perm filterType`; the filter servers as JSON. Each text has its length
before it (4 bytes). The compressed form loses `order` and the topic's flags.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final, Self

import msgspec

from penstock.errors import BadRequest
from penstock.format.config_tables import DataVersion, TopicConfig, TopicConfigs
from penstock.format.constants import Int32, Int64
from penstock.protocol.bodies.base import SHAPE_ERRORS, Body, read_document
from penstock.protocol.compression import inflate

MASTER: Final = 0
"""The broker id of a master. Producers send to masters only."""
PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1


class BrokerData(Body, kw_only=True):
    """The addresses of one broker name, by broker id."""

    broker_addrs: dict[Int64, str] = {}
    broker_name: str
    cluster: str = ""
    enable_acting_master: bool = False


class QueueData(Body, kw_only=True):
    """A topic's queues at one broker."""

    broker_name: str
    perm: Int32
    read_queue_nums: Int32
    write_queue_nums: Int32
    topic_sys_flag: Int32 = 0


class TopicRouteData(Body, kw_only=True):
    """Reply to 105. `order_topic_conf` is set for topics that are ordered across brokers: `broker-a:4;broker-b:4`."""

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    queue_datas: list[QueueData] = []
    order_topic_conf: str | None = None


class ClusterInfo(Body, kw_only=True):
    """Reply to 106: the brokers by broker name, and the broker names by cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


MAX_SIZE: Final = 64 * 1024 * 1024
"""Limit of an inflated registration in bytes: enough for about half a million topics."""
_LENGTH: Final = struct.Struct(">i")


class RegisterBrokerBody(msgspec.Struct, kw_only=True):
    """Request 103: a broker's topics and filter servers."""

    topics: TopicConfigs = msgspec.field(default_factory=TopicConfigs)
    filter_servers: list[str] = []

    def to_bytes(self, compressed: bool = False) -> bytes:
        if compressed:
            return self._compressed()
        return msgspec.json.encode(
            {"filterServerList": self.filter_servers, "topicConfigSerializeWrapper": self.topics.to_json()}
        )

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, compressed: bool = False) -> Self:
        """Parses a body. Raises BadRequest."""
        try:
            if compressed:
                return cls._from_texts(inflate(data, "zlib", MAX_SIZE))
            document = read_document(data, cls.__name__)
            topics = TopicConfigs.from_json(
                msgspec.convert(document.get("topicConfigSerializeWrapper", {}), dict[str, Any])
            )
            return cls(topics=topics, filter_servers=msgspec.convert(document.get("filterServerList", []), list[str]))
        except (*SHAPE_ERRORS, AttributeError, struct.error) as error:
            raise BadRequest(f"the body is not a valid RegisterBrokerBody: {error}") from None

    def _compressed(self) -> bytes:
        topics = self.topics.topics.values()
        lines = [f"{t.name} {t.read_queue_nums} {t.write_queue_nums} {t.perm} {t.filter_type}" for t in topics]
        pieces = [_text(msgspec.json.encode(self.topics.version.to_json())), _LENGTH.pack(len(lines))]
        pieces += [_text(line.encode()) for line in lines]
        pieces.append(_text(msgspec.json.encode(self.filter_servers)))
        return zlib.compress(b"".join(pieces), 9)

    @classmethod
    def _from_texts(cls, data: bytes) -> Self:
        version, at = _read(data, 0)
        (count,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        topics = {}
        for _ in range(count):
            line, at = _read(data, at)
            name, reads, writes, perm, *filter_type = line.decode().split(" ")
            fields = {"topicName": name, "readQueueNums": int(reads), "writeQueueNums": int(writes), "perm": int(perm)}
            topics[name] = TopicConfig.from_json(
                {**fields, "topicFilterType": filter_type[0] if filter_type else "SINGLE_TAG"}
            )
        servers, _ = _read(data, at)
        return cls(
            topics=TopicConfigs(topics=topics, version=DataVersion.from_json(read_document(version, "DataVersion"))),
            filter_servers=msgspec.json.decode(servers, type=list[str]) if servers else [],
        )


def _text(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _read(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if not 0 <= length <= len(data) - at:
        raise ValueError(f"a text of {length} bytes at {at} does not fit")
    return data[at : at + length], at + length
