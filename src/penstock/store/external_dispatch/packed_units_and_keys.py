"""Derived pieces as bytes, for their way from the workers of a dispatch job to its driver. Small, and quick to unpack.

A piece has 20 bytes for each unit and 20 for each key. Most of them repeat: records follow each other in the log, and
the keys of a record share its offset and store time. A packed piece has columns. A column holds the differences to its
lowest value, in the narrowest integers that fit. The columns are:

    units   offset, size, tags code; of all queues, one queue after the other
    keys    hash, of all keys in log order
    owners  of each record with keys: distance from the previous one, store time, number of keys

A message of ordinary size takes 14 bytes, and 4 for each key. Packed pieces never reach a disk: `pack` and `unpack` are
of the same version.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.msgspec_warm_up import prepared
from penstock.format.queue_unit import UNIT, UNIT_SIZE
from penstock.store.queue_units_and_keys import KEY, DerivedPiece

_WIDTHS: Final = (("", 0), ("u1", 0xFF), ("u2", 0xFFFF), ("u4", 0xFFFF_FFFF), ("u8", 0xFFFF_FFFF_FFFF_FFFF))
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class _Column(NamedTuple):
    """Integers as their differences to the lowest one."""

    lowest: int
    width: str
    """The numpy type of the differences; empty if all of them are 0."""
    differences: bytes

    @classmethod
    def of(cls, values: kernels.Longs) -> _Column:
        if not len(values):
            return cls(0, "", b"")
        lowest, highest = int(values.min()), int(values.max())
        width = next(width for width, most in _WIDTHS if highest - lowest <= most)
        if not width:
            return cls(lowest, "", b"")
        differences = values.view(np.uint64) - np.uint64(lowest & _MASK)
        return cls(lowest, width, differences.astype(width).tobytes())

    def values(self, count: int) -> kernels.Longs:
        lowest = np.int64(self.lowest)
        if not self.width:
            return np.full(count, lowest)
        differences = np.frombuffer(self.differences, self.width, count).astype(np.uint64)
        return differences.view(np.int64) + lowest


class _Packed(NamedTuple):
    start: int
    stop: int
    reached: int
    reason: int
    newest: int
    placeholders: list[tuple[int, int]]
    queues: list[tuple[bytes, int, list[kernels.UnitRun], int]]
    """Topic, queue id, runs and number of units."""
    offsets: _Column
    sizes: _Column
    tags_codes: _Column
    hashes: bytes
    owners: int
    distances: _Column
    times: _Column
    key_counts: _Column


def pack(piece: DerivedPiece) -> bytes:
    """Returns a piece as bytes."""
    queues = [
        (topic.encode("utf-8", "surrogateescape"), queue_id, runs, len(units) // UNIT_SIZE)
        for topic, queue_id, runs, units in piece.queues
    ]
    units = np.frombuffer(b"".join(units for *_, units in piece.queues), UNIT)
    keys = np.frombuffer(piece.keys, KEY) if len(piece.keys) else np.empty(0, KEY)
    offsets = keys["offset"].astype(np.int64)
    firsts = np.flatnonzero(np.diff(offsets, prepend=-1))
    return msgspec.msgpack.encode(
        _Packed(
            piece.start,
            piece.stop,
            piece.reached,
            piece.reason,
            piece.newest,
            piece.placeholders,
            queues,
            _Column.of(units["offset"].astype(np.int64)),
            _Column.of(units["size"].astype(np.int64)),
            _Column.of(units["tags_code"].astype(np.int64)),
            keys["hash"].tobytes(),
            len(firsts),
            _Column.of(np.diff(offsets[firsts], prepend=piece.start)),
            _Column.of(keys["time"][firsts].astype(np.int64)),
            _Column.of(np.diff(firsts, append=len(keys))),
        )
    )


def unpack(data: bytes) -> DerivedPiece:
    """Returns the piece that was packed."""
    packed = msgspec.msgpack.decode(data, type=prepared(_Packed))
    count = sum(number for *_, number in packed.queues)
    units = np.empty(count, UNIT)
    units["offset"] = packed.offsets.values(count)
    units["size"] = packed.sizes.values(count)
    units["tags_code"] = packed.tags_codes.values(count)
    view, queues = memoryview(units.tobytes()), []
    for topic, queue_id, runs, number in packed.queues:
        queues.append((topic.decode("utf-8", "surrogateescape"), queue_id, runs, view[: number * UNIT_SIZE]))
        view = view[number * UNIT_SIZE :]
    hashes = np.frombuffer(packed.hashes, np.int32)
    key_counts = packed.key_counts.values(packed.owners)
    keys = np.empty(len(hashes), KEY)
    keys["hash"] = hashes
    keys["offset"] = np.repeat(packed.start + np.cumsum(packed.distances.values(packed.owners)), key_counts)
    keys["time"] = np.repeat(packed.times.values(packed.owners), key_counts)
    return DerivedPiece(
        packed.start,
        packed.stop,
        packed.reached,
        packed.reason,
        packed.newest,
        queues,
        memoryview(keys.tobytes()),
        packed.placeholders,
    )
