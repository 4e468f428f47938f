"""The placeholder: a valid record that a repair writes over damaged bytes of the log.

Every reader of the log, including RocketMQ's, skips a placeholder as it skips any rolled-back record. A placeholder has
the topic PENSTOCK_DAMAGED and the transaction type ROLLBACK, so it enters neither a queue nor the index. Its body is
the topic, a line break, then lines with the damaged range, the reason and the paths of the saved bytes, padded with
zeros. If the range is too small for the whole topic, the topic is truncated and the body is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.format import kernels
from penstock.format.constants import DAMAGED_TOPIC, MIN_RECORD_SIZE
from penstock.format.hosts import IPV4_HOST_SIZE
from penstock.format.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK

MIN_PLACEHOLDER_SIZE: Final = MIN_RECORD_SIZE + 1
_TOPIC = DAMAGED_TOPIC.encode()
_SAVED = "saved: "


def placeholder_text(physical_offset: int, size: int, reason: str, when: str, saved: list[str]) -> str:
    """Returns the lines of a placeholder's body. `saved` are the paths in the store where damaged bytes are saved."""
    lines = [f"range: {size} bytes at {physical_offset}", f"reason: {reason}", f"repaired: {when}"]
    return "\n".join([*lines, *(f"{_SAVED}{path}" for path in saved), ""])


def saved_paths(record: bytes) -> list[str]:
    """Returns the paths of saved bytes in a placeholder's body. Omits a truncated path."""
    lines = record.decode("utf-8", "replace").split("\n")
    return [line.removeprefix(_SAVED) for line in lines if line.startswith(_SAVED) and "\0" not in line]


def write_placeholder(
    out: kernels.WritableBuffer, at: int, physical_offset: int, size: int, timestamp: int, host: bytes, text: str
) -> None:
    """Writes a placeholder of exactly `size` bytes at out[at:]. Writes its size and magic last, which publishes it.

    `host` is the born host and store host; it must be IPv4. Raises ValueError if `size` is too small.
    """
    if size < MIN_PLACEHOLDER_SIZE or len(host) != IPV4_HOST_SIZE:
        raise ValueError(f"a placeholder cannot have {size} bytes, or the host is not IPv4")
    topic = _TOPIC[: size - MIN_RECORD_SIZE]
    room = size - MIN_RECORD_SIZE - len(topic)
    body = (_TOPIC + b"\n" + text.encode("utf-8", "replace"))[:room].ljust(room, b"\0")
    kernels.encode_record(
        out,
        at,
        physical_offset,
        0,
        timestamp,
        0,
        0,
        TRANSACTION_ROLLBACK,
        timestamp,
        host,
        host,
        0,
        0,
        body,
        topic,
        b"",
        True,
    )


def is_placeholder(topic: str, size: int) -> bool:
    """Returns whether a record of type ROLLBACK with this topic and this size in bytes is a placeholder."""
    return topic == DAMAGED_TOPIC or (
        DAMAGED_TOPIC.startswith(topic) and size == MIN_RECORD_SIZE + len(topic) >= MIN_PLACEHOLDER_SIZE
    )


def find_placeholders(rows: kernels.Rows, name: Callable[[int], str]) -> list[tuple[int, int]]:
    """Returns the physical offset and size of each placeholder among ROWs. `name` maps a topic id to its topic."""
    rolled_back = np.flatnonzero(rows["sys_flag"] & TRANSACTION_MASK == TRANSACTION_ROLLBACK)
    placeholders = []
    for number in rolled_back.tolist():
        row = rows[number]
        if is_placeholder(name(int(row["topic_id"])), int(row["size"])):
            placeholders.append((int(row["physical_offset"]), int(row["size"])))
    return placeholders
