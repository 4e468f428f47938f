"""Message ids: the broker's offset id, which locates the record, and the client's unique id.

The offset id is the store host (IP, then the port as 4 bytes) and the physical offset (8 bytes) in upper-case hex. It
has 32 characters for IPv4, 56 for IPv6. The store does not interpret the unique id.
"""

from __future__ import annotations

import itertools
import os
import struct
import time

from penstock.clock import now_ms
from penstock.errors import BadMessage
from penstock.format.hosts import MAX_STORED_PORT, decode_host, encode_host

_UNIQUE = struct.Struct(">4sH4sIH")
_LOOPBACK = b"\x7f\x00\x00\x01"


def encode_message_id(store_host: str, physical_offset: int) -> str:
    """Returns the offset id of the record at `physical_offset`."""
    host = encode_host(store_host, MAX_STORED_PORT)
    return (host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def decode_message_id(message_id: str) -> tuple[str, int]:
    """Returns the store host and physical offset in an offset id. Raises BadMessage if it is malformed."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) not in (16, 28) or len(message_id) != 2 * len(data):
        raise BadMessage(f"'{message_id}' is not a message id: write 32 hex digits, or 56 for an IPv6 host")
    return decode_host(data[:-8]), int.from_bytes(data[-8:], "big", signed=True)


class UniqueIds:
    """Generates unique ids in RocketMQ's format. Thread-safe. A forked child gets a new process id and random part.

    An id has the IP (4 bytes), process id (2), a random part (4; a hash in Java), milliseconds since the start of the
    month (4), and a counter (2).
    """

    def __init__(self, ip: bytes = _LOOPBACK) -> None:
        self._ip = ip
        self._reseed()
        os.register_at_fork(after_in_child=self._reseed)

    def _reseed(self) -> None:
        self._process = os.getpid() & 0xFFFF
        self._random = os.urandom(4)
        self._counter = itertools.count()
        self._month_start = self._month_end = 0

    def make(self) -> str:
        """Returns a new id: 32 upper-case hex digits."""
        now = now_ms()
        if not self._month_start <= now < self._month_end:
            self._enter_month(now)
        elapsed = (now - self._month_start) & 0xFFFFFFFF
        number = next(self._counter) & 0xFFFF
        return _UNIQUE.pack(self._ip, self._process, self._random, elapsed, number).hex().upper()

    def _enter_month(self, now: int) -> None:
        year, month = time.localtime(now / 1000)[:2]
        self._month_start = _first_instant(year, month)
        self._month_end = _first_instant(year, month + 1)


def _first_instant(year: int, month: int) -> int:
    """Returns the start of a month in local time, in epoch milliseconds. Month 13 is January of the next year."""
    return int(time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))) * 1000


make_unique_id = UniqueIds().make
