"""A CommitLog record as a Python value. `record_layout.py` has its layout. To process many records, use the kernels."""

from __future__ import annotations

import sys

import msgspec

from penstock.errors import BadMessage, CorruptData
from penstock.format import constants, kernels
from penstock.format.delay import DEFAULT_DELAY_LEVELS
from penstock.format.hosts import IPV4_HOST_SIZE, MAX_STORED_PORT, encode_host
from penstock.format.index_layout import as_java_reads
from penstock.format.message_id import encode_message_id
from penstock.format.properties import encode_properties
from penstock.format.sys_flag import with_hosts


class Record(msgspec.Struct, frozen=True, gc=False):
    """A stored message and its position in log and queue. Timestamps are epoch ms; `size` is the record's bytes."""

    topic: str
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    size: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: str = "127.0.0.1:0"
    store_timestamp: int = 0
    store_host: str = "127.0.0.1:0"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    properties: dict[str, str] = {}
    body: bytes = b""
    body_crc: int = 0

    @property
    def tags(self) -> str:
        """The message's tag, or "" if the message has none."""
        return self.properties.get(constants.TAGS, "")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in the property KEYS, without the unique key."""
        pieces = self.properties.get(constants.KEYS, "").split(constants.KEY_SEPARATOR)
        return tuple(piece for piece in pieces if piece)

    @property
    def unique_key(self) -> str:
        """The client's unique id (UNIQ_KEY), or "" if the message has none."""
        return self.properties.get(constants.UNIQ_KEY, "")

    @property
    def msg_id(self) -> str:
        """The offset message id, from store host and physical offset."""
        return encode_message_id(self.store_host, self.physical_offset)

    @property
    def tags_code(self) -> int:
        """The tagsCode of the record's queue unit, for the default delay levels."""
        return tags_code(self, DEFAULT_DELAY_LEVELS)


def tags_code(record: Record, delay_levels: tuple[int, ...]) -> int:
    """Returns the tagsCode of a record's queue unit: the tag's hash, or the deliver time (ms) in the schedule topic."""
    if record.topic == constants.SCHEDULE_TOPIC:
        from penstock.format.scan import row_at  # imports numpy, which a client without delayed messages does not need

        encoded = encode_record(record)
        rows = row_at(encoded, record.physical_offset, 0)
        kernels.tag_codes(encoded, record.physical_offset, rows, delay_levels)
        return int(rows["tags_code"][0])
    return kernels.java_hash(as_java_reads(record.tags))


def record_size(
    body_length: int,
    topic_length: int,
    properties_length: int,
    born_host_length: int = IPV4_HOST_SIZE,
    store_host_length: int = IPV4_HOST_SIZE,
) -> int:
    """Returns the size of a V1 record in bytes. All parameters are lengths in bytes."""
    hosts = born_host_length + store_host_length - 2 * IPV4_HOST_SIZE
    return constants.MIN_RECORD_SIZE + hosts + body_length + topic_length + properties_length


def encode_record(record: Record) -> bytes:
    """Returns the bytes of a V1 record. Computes size, CRC and the IPv6 bits instead of taking them from `record`.

    Raises BadMessage.
    """
    born_host = encode_host(record.born_host, MAX_STORED_PORT)
    store_host = encode_host(record.store_host, MAX_STORED_PORT)
    sys_flag = with_hosts(record.sys_flag, born_host, store_host)
    topic = record.topic.encode("utf-8", "surrogateescape")
    properties = encode_properties(record.properties)
    out = bytearray(record_size(len(record.body), len(topic), len(properties), len(born_host), len(store_host)))
    try:
        kernels.encode_record(
            out,
            0,
            record.physical_offset,
            record.queue_offset,
            record.store_timestamp,
            record.queue_id,
            record.flag,
            sys_flag,
            record.born_timestamp,
            born_host,
            store_host,
            record.reconsume_times,
            record.prepared_transaction_offset,
            record.body,
            topic,
            properties,
            True,
        )
    except (ValueError, OverflowError) as error:
        raise BadMessage(f"a record of topic '{record.topic[:40]}' cannot be encoded: {error}") from None
    return bytes(out)


def decode_record(data: kernels.Buffer, at: int = 0) -> Record:
    """Returns the record (V1 or V2) at data[at]. Raises CorruptData if it is malformed.

    Checks neither the physical offset nor the CRC.
    """
    found = kernels.decode_records(data, at, 1, Record)
    if not found:
        raise CorruptData("not a valid record: the data ends here", offset=at)
    return found[0]


def decode_records(data: kernels.Buffer) -> list[Record]:
    """Returns the records (V1 or V2) that lie one after the other in `data`, like `decode_record`."""
    return kernels.decode_records(data, 0, sys.maxsize, Record)
