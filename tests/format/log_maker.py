"""Logs for tests: RocketMQ's golden records, and small files made of records that follow each other."""

from __future__ import annotations

from penstock.format import kernels
from penstock.format.constants import MESSAGE_MAGIC_V2
from penstock.format.hosts import encode_host
from penstock.format.properties import encode_properties
from penstock.format.record import record_size
from penstock.format.sys_flag import with_hosts

G1 = bytes.fromhex(
    "000000b4daa320a769c865ed00000001000000000000000000000000000000000000000000000000"
    "00000174876e8000c0a801640000d43100000174876e84d27f00000100002a9f0000000000000000"
    "000000000000000e48656c6c6f20526f636b65744d5109546f7069635465737400424b455953016f"
    "726465725f3132330254414753015461674102554e49515f4b455901374630303030303130303030"
    "3241313339413535303030303030303030303030"
)
G2 = bytes.fromhex(
    "00000064daa320a70000000000000000000000000000000000000000000000000000000000000000"
    "00000174876e8000c0a801640000d43100000174876e84d27f00000100002a9f0000000000000000"
    "000000000000000009546f706963546573740000"
)
G3 = bytes.fromhex(
    "0000007edaa320a77706591600000000000000000000000000000000000000000000000000000030"
    "00000174876e8000105000000000000000050600300c326b0000d43100000174876e84d210500000"
    "0000000000050600300c326b00002a9f00000000000000000000000000000002763609546f706963"
    "546573740000"
)

BORN, STORED = 1_600_000_000_000, 1_600_000_001_234
HOST = "127.0.0.1:10911"


def make_record(
    position: int,
    body: bytes = b"body",
    *,
    topic: str = "T",
    queue_id: int = 0,
    queue_offset: int = 0,
    sys_flag: int = 0,
    store_timestamp: int = STORED,
    born_host: str = HOST,
    properties: dict[str, str] | bytes = b"",
) -> bytes:
    """The bytes of a record that says it lies at `position`."""
    if isinstance(properties, dict):
        properties = encode_properties(properties)
    host, born, name = encode_host(HOST), encode_host(born_host), topic.encode()
    sys_flag = with_hosts(sys_flag, born, host)
    out = bytearray(record_size(len(body), len(name), len(properties), len(born)))
    kernels.encode_record(
        *(out, 0, position, queue_offset, store_timestamp, queue_id, 7, sys_flag, BORN, born, host, 0, 0),
        *(body, name, properties, True),
    )
    return bytes(out)


def make_log(bodies: list[bytes], base: int = 0, **fields: object) -> bytearray:
    """Records one after the other, the first at `base`."""
    log = bytearray()
    for number, body in enumerate(bodies):
        log += make_record(base + len(log), body, queue_offset=number, **fields)  # type: ignore[arg-type]
    return log


def make_file(bodies: list[bytes], base: int = 0, blank: int = 0, tail: int = 0) -> bytearray:
    """Records, then a filler of `blank` bytes or `tail` bytes that were never written."""
    log = make_log(bodies, base)
    log += bytes(blank + tail)
    if blank:
        kernels.write_blank(log, len(log) - blank, blank)
    return log


def as_v2(record: bytes, topic: bytes) -> bytes:
    """A V1 record in 5.x's form: another magic, and two bytes for the topic's length."""
    at = record.rindex(bytes([len(topic)]) + topic)
    grown = record[:at] + len(topic).to_bytes(2, "big") + record[at + 1 :]
    return len(grown).to_bytes(4, "big") + MESSAGE_MAGIC_V2.to_bytes(4, "big") + grown[8:]
