"""How complete queues and index were at the last clean close: `penstock/dispatched.json`.

A log does not say whether all its records are in the queues and in the index, and finding out takes a walk over all of
it. So a clean close notes up to where they are, and what they looked like; the next start believes the note only if
they still look like that. A note that is missing or does not fit only makes that start walk further.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.store.consume_queues import ConsumeQueues
from penstock.store.files import Files
from penstock.store.index import Index


class DispatchState(msgspec.Struct, frozen=True):
    """What a clean close left."""

    position: int
    """Physical offset up to which everything was dispatched."""
    queues: int
    units: int
    index_files: int
    index_end: int

    @classmethod
    def of(cls, position: int, queues: ConsumeQueues, index: Index | None) -> DispatchState:
        units = sum(queue.max_offset for queue in queues)
        if index is None:
            return cls(position, len(queues), units, 0, -1)
        return cls(position, len(queues), units, len(index.files), index.end_offset)


def read_state(files: Files, path: Path) -> DispatchState | None:
    try:
        return msgspec.json.decode(files.read_bytes(path), type=DispatchState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def write_state(files: Files, path: Path, state: DispatchState) -> None:
    """Raises StoreFailed."""
    files.replace_bytes(path, msgspec.json.encode(state))
