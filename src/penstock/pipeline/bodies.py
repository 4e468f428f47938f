"""Bodies that clients have compressed, unpacked in the columns of a batch. Needs pyarrow.

Rows whose body is not compressed are not touched, and a batch without any other comes out as it went in. What cannot be
unpacked stays as it is and is told of: damage is data. No body grows beyond a limit, and no batch by much more than
`_ROOM`: one that would is handed out in pieces. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRequest
from penstock.format.sys_flag import COMPRESSED
from penstock.protocol.compression import MAX_SIZE, inflate_body

_ROOM: Final = 64 << 20
"""Bytes of unpacked bodies in one piece; the one that crosses it is the last."""
_BODY: Final = "body"


class Inflated(NamedTuple):
    """Rows of a batch, one after the other, with their bodies unpacked."""

    first_row: int
    """Number of the first row in the batch that was given."""
    batch: pa.RecordBatch
    failures: tuple[tuple[int, str], ...] = ()
    """Rows of this piece, counted from its own first, whose body is still compressed, and why."""


def inflate_bodies(batch: pa.RecordBatch, sys_flags: pa.Array, limit: int = MAX_SIZE) -> Iterator[Inflated]:
    """The batch with its column `body` unpacked, in one piece unless the bodies grow large.

    `sys_flags` has the flags of the batch's rows, whether or not they are a column of it. Raises MissingPackage where
    bodies were compressed with something that is not installed.
    """
    # Flags of our own columns have no nulls, so this is a view and no copy.
    packed = np.flatnonzero(sys_flags.to_numpy(zero_copy_only=False) & COMPRESSED)
    if not len(packed) or _BODY not in batch.schema.names:
        yield Inflated(0, batch)
        return
    column = batch.column(_BODY)
    first, room = 0, _ROOM
    bodies: dict[int, bytes] = {}
    failures: list[tuple[int, str]] = []
    for row in packed.tolist():
        if room <= 0:
            yield _piece(batch, first, row, bodies, failures)
            first, room, bodies, failures = row, _ROOM, {}, []
        try:
            bodies[row] = inflate_body(memoryview(column[row].as_buffer()), sys_flags[row].as_py(), limit)
        except BadRequest as error:
            failures.append((row - first, str(error)))
        else:
            room -= len(bodies[row])
    yield _piece(batch, first, batch.num_rows, bodies, failures)


def _piece(
    batch: pa.RecordBatch, first: int, stop: int, bodies: dict[int, bytes], failures: list[tuple[int, str]]
) -> Inflated:
    """Rows `first` to `stop` with some of their bodies replaced."""
    part = batch.slice(first, stop - first)
    at = part.schema.get_field_index(_BODY)
    is_new = np.zeros(part.num_rows, np.bool_)
    is_new[[row - first for row in bodies]] = True
    new = pa.array(list(bodies.values()), part.schema.field(at).type)
    column = pc.replace_with_mask(part.column(at), pa.array(is_new), new)
    return Inflated(first, part.set_column(at, part.schema.field(at), column), tuple(failures))
