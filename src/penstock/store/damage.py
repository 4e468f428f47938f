"""Damage in the log, as data."""

from __future__ import annotations

import msgspec


class DamagedRange(msgspec.Struct, frozen=True):
    """Bytes of the log that hold no valid record, though valid ones follow."""

    physical_offset: int
    size: int
    reason: str
