"""A client's batch taken apart. The plain twin of `_batch.pxi`."""

from __future__ import annotations

from penstock.errors import BadMessage
from penstock.format.batch import decode_batch_body
from penstock.format.properties import join_properties


def split_batch(data: bytes, common: bytes) -> list[tuple[int, bytes, str]] | None:
    """(flag, body, property text) of each message, `common` behind its properties; None if it must be read with care.

    That is where lengths do not fit, or properties are not UTF-8.
    """
    try:
        return [
            (item.flag, item.body, join_properties(item.properties, common).decode())
            for item in decode_batch_body(data)
        ]
    except (BadMessage, UnicodeDecodeError):
        return None
