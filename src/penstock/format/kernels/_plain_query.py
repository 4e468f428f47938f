"""Records by key: candidates from the index, and whether a record has the key. The plain twin of `_query.pxi`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.format.kernels._plain_columns import find_property
from penstock.format.kernels._plain_index import index_find
from penstock.format.kernels._plain_log import java_hash, view_of, walk
from penstock.format.kernels._types import Buffer, Longs

_ALL = 2**31 - 1


def _candidates(data: Buffer, slots: int, items: int, topic: bytes, key: bytes, begin: int, end: int) -> list[int]:
    """Offsets under the hash of topic and key, newest first."""
    code = abs(java_hash((topic + b"#" + key).decode("utf-8", "replace")))
    offsets: list[int] = index_find(data, slots, items, 0 if code == 2**31 else code, begin, end, 0, _ALL)[0].tolist()
    return offsets


def match_record(
    data: Buffer, at: int, base: int, readable: int, check_crc: bool, topic: bytes, key: bytes, begin: int, end: int
) -> bytes | None:
    """The bytes of the record at `at` if it is valid and has this topic, key and time; else None."""
    view = view_of(data)[:readable]
    if not 0 <= at < len(view) or not key:
        return None
    rows, _, _ = walk(view, base, at, at + 1, check_crc, None, 1)
    if not len(rows):
        return None
    row = rows[0]
    record = bytes(view[at : at + row["size"]])
    if record[row["topic_at"] : row["topic_at"] + row["topic_length"]] != topic:
        return None
    if not begin <= row["store_timestamp"] <= end:
        return None
    keys = (find_property(record, 0, b"KEYS") or b"").split(b" ")
    return record if key in keys or key == find_property(record, 0, b"UNIQ_KEY") else None


def find_key(
    key: bytes,
    topic: bytes,
    indexes: list[Buffer],
    slots: int,
    items: int,
    logs: Sequence[Buffer],
    log_base: int,
    file_size: int,
    log_end: int,
    begin: int,
    end: int,
    most: int,
    check_crc: bool,
) -> list[bytes]:
    """The newest `most` records with a key, oldest first, each once, as bytes; arguments as for `find_keys`."""
    records: dict[int, bytes] = {}
    for table in reversed(indexes):
        for offset in _candidates(table, slots, items, topic, key, begin, end):
            place, at = divmod(offset - log_base, file_size)
            if len(records) >= most or not log_base <= offset < log_end or place >= len(logs) or offset in records:
                continue
            base = log_base + place * file_size
            record = match_record(logs[place], at, base, log_end - base, check_crc, topic, key, begin, end)
            if record is not None:
                records[offset] = record
    return [records[offset] for offset in sorted(records)]


def find_keys(
    keys: list[str],
    topic: bytes,
    indexes: list[Buffer],
    slots: int,
    items: int,
    logs: Sequence[Buffer],
    log_base: int,
    file_size: int,
    log_end: int,
    begin: int,
    end: int,
) -> tuple[Longs, Longs]:
    """Where records with these keys lie: (numbers of the keys, physical offsets), for many keys at once.

    `indexes` are whole index files, `logs` the log's files in order, the first beginning at `log_base`. Records are
    checked but for their body's CRC. A record that names a key twice comes twice.
    """
    numbers, offsets = [], []
    for table in indexes:
        for number, text in enumerate(keys):
            key = text.encode()
            for offset in _candidates(table, slots, items, topic, key, begin, end):
                place, at = divmod(offset - log_base, file_size)
                if not log_base <= offset < log_end or place >= len(logs):
                    continue
                data, base = logs[place], log_base + place * file_size
                if match_record(data, at, base, file_size, False, topic, key, begin, end) is not None:
                    numbers.append(number)
                    offsets.append(offset)
    return np.array(numbers, np.int64), np.array(offsets, np.int64)
