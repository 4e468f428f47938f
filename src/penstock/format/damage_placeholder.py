"""The placeholder: a valid record that a repair writes over damaged bytes of the log.

Every reader of the log, RocketMQ's too, walks past it. It has the topic PENSTOCK_DAMAGED and ROLLBACK type, so it
enters neither a queue nor the index. Its body is the topic, a line break, then lines that say what was there and where
it is saved, padded with zeros. In a range too small for the whole topic, the topic is cut to fit and the body is
empty.
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
    """The lines of a placeholder's body; `saved` are paths in the store."""
    lines = [f"range: {size} bytes at {physical_offset}", f"reason: {reason}", f"repaired: {when}"]
    return "\n".join([*lines, *(f"{_SAVED}{path}" for path in saved), ""])


def saved_paths(record: bytes) -> list[str]:
    """The paths in a placeholder's body; a truncated one is omitted."""
    lines = record.decode("utf-8", "replace").split("\n")
    return [line.removeprefix(_SAVED) for line in lines if line.startswith(_SAVED) and "\0" not in line]


def write_placeholder(
    out: kernels.WritableBuffer, at: int, physical_offset: int, size: int, timestamp: int, host: bytes, text: str
) -> None:
    """Writes a placeholder of exactly `size` bytes at out[at:], its first 8 bytes last; `host` is IPv4."""
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
    """Whether a record of ROLLBACK type with this topic and size is a placeholder."""
    return topic == DAMAGED_TOPIC or (
        DAMAGED_TOPIC.startswith(topic) and size == MIN_RECORD_SIZE + len(topic) >= MIN_PLACEHOLDER_SIZE
    )


def find_placeholders(rows: kernels.Rows, name: Callable[[int], str]) -> list[tuple[int, int]]:
    """(physical offset, size) of the placeholders in the rows of a walk; `name` maps a topic id to its topic."""
    rolled_back = np.flatnonzero(rows["sys_flag"] & TRANSACTION_MASK == TRANSACTION_ROLLBACK)
    placeholders = []
    for number in rolled_back.tolist():
        row = rows[number]
        if is_placeholder(name(int(row["topic_id"])), int(row["size"])):
            placeholders.append((int(row["physical_offset"]), int(row["size"])))
    return placeholders
