"""When two messages are the same, and a digest of what they are. Pure; needs pyarrow; runs on workers.

Exactly: all that its producer and its broker have said of it, but not where and when it was stored. Loosely: what its
producer meant, so that a copy is the same which was sent once more: body (unpacked), flag, and properties without those
that brokers and clients add.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

from penstock.errors import BadRequest
from penstock.format.constants import (
    CLUSTER,
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
)
from penstock.protocol.compression import inflate_body

PLACE: Final = ("topic", "queue_id", "queue_offset")
EXACT: Final = ("body", "properties", "born_timestamp", "born_host", "flag", "sys_flag", "reconsume_times")
LOOSE: Final = ("body", "properties", "flag", "sys_flag")

_NOT_THE_PRODUCERS: Final = frozenset(
    {CLUSTER, DELAY, MAX_RECONSUME_TIMES, ORIGIN_MESSAGE_ID, PGROUP, REAL_QID, REAL_TOPIC, RECONSUME_TIME}
    | {RETRY_TOPIC, TRAN_MSG, UNIQ_KEY, WAIT, "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET"}
)


def columns(*, exact: bool) -> tuple[str, ...]:
    """The columns of messages that are compared."""
    return EXACT if exact else LOOSE


def digests(batch: pa.RecordBatch, *, exact: bool) -> Iterator[tuple[str, bytes]]:
    """The unique key of each row, empty if it has none, and sixteen bytes that equal messages share."""
    names = columns(exact=exact)
    for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        properties = dict(row["properties"] or ())
        yield properties.get(UNIQ_KEY, ""), _digest(row, properties, exact=exact)


def _digest(row: dict[str, Any], properties: dict[str, str], *, exact: bool) -> bytes:
    body = row["body"]
    if exact:
        rest = [str(row[name]) for name in EXACT[2:]]
    else:
        rest = [str(row["flag"])]
        properties = {name: value for name, value in properties.items() if name not in _NOT_THE_PRODUCERS}
        try:
            body = inflate_body(body, row["sys_flag"])
        except BadRequest:
            rest.append("packed")  # and cannot be unpacked: the same only as another one of this kind
    told = [text for pair in sorted(properties.items()) for text in pair]
    digest = blake2b(body, digest_size=16)
    for text in (str(len(told)), *told, *rest):
        data = text.encode(errors="surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()
