"""Builds one range: walks it, stores its units into the staged queues and its keys into a file, and notes what it saw.

Every record is checked as a repair checks it, CRC included. The note is written last and synced, so a range whose note
is there was built to its end; whether all of it reached the disk is found out when queues and index are finished. Any
number of ranges may be built at once, by any process; one that is built twice comes out the same.
"""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

import msgspec

from penstock.errors import BadStore
from penstock.format import kernels
from penstock.format.placeholder import find_placeholders
from penstock.store.file_queue import file_name
from penstock.store.files import FileMap, Files
from penstock.store.overlay_files import OverlayFiles
from penstock.store.rebuilding.keys import Keys, keys_of, write_keys
from penstock.store.rebuilding.plan import Plan, Range
from penstock.store.rebuilding.units import QueueRuns, Units
from penstock.store.repair.survey import Survey, survey_range
from penstock.store.sealed_json import read_sealed, write_sealed


class RangeNote(msgspec.Struct):
    """What a range holds."""

    number: int
    survey: Survey
    records: int
    keys: int
    placeholders: list[tuple[int, int]]
    """Offset and size of each."""
    queues: list[QueueRuns]


def build_range(plan: Plan, files: Files, dry_run: bool, piece: Range) -> bytes:
    """The note of a range as JSON, which it has in the staging folder too, unless it is a dry run.

    Raises BadStore if this host does not see the store, StoreFailed if the disk refuses.
    """
    task = plan.task
    if not dry_run:
        plan.check_seen(files)
    builder = _Builder(plan, piece.base)
    with contextlib.closing(_open_log(Path(task.log.folder, file_name(piece.base)), task.log.file_size)) as log:
        found = survey_range(
            log.view,
            piece.base,
            piece.start,
            piece.stop,
            resync=piece.resync,
            overrun=piece.overrun,
            topics=builder.topics,
            watch=builder.take,
        )
    keys = sum(len(each) for each in builder.keys)
    queues = list(builder.units.queues.values())
    note = RangeNote(piece.number, found, builder.records, keys, builder.placeholders, queues)
    if not dry_run:
        builder.units.place(files, plan.queues)
        write_keys(files, plan.keys_of(piece.number), builder.keys)
        write_sealed(files, plan.note_of(piece.number), note)
    return json.dumps(msgspec.to_builtins(note)).encode()


def decode_note(data: bytes) -> RangeNote:
    return msgspec.convert(json.loads(data), RangeNote)


def noted(plan: Plan, files: Files, piece: Range) -> RangeNote | None:
    """The note of a range that was built to its end, None if there is none."""
    found = read_sealed(files, plan.note_of(piece.number), RangeNote)
    has_keys = found is None or not found.keys or files.exists(plan.keys_of(piece.number))
    return found if has_keys else None


class _Builder:
    """Takes what the walk finds."""

    def __init__(self, plan: Plan, base: int) -> None:
        self._task = plan.task
        self._base = base
        self.topics: kernels.Topics = kernels.TopicTable()
        self.units = Units(plan.task, self.topics)
        self.keys: list[Keys] = []
        self.placeholders: list[tuple[int, int]] = []
        self.records = 0

    def take(self, data: memoryview, rows: kernels.Rows) -> None:
        self.records += len(rows)
        kernels.tag_codes(data, self._base, rows, self._task.delay_levels)
        self.units.take(rows)
        self.placeholders += find_placeholders(rows, self.topics.name)
        if self._task.index is not None:
            hashes, numbers = kernels.index_keys(data, self._base, rows)
            self.keys.append(keys_of(hashes, rows, numbers))


def _open_log(path: Path, size: int) -> FileMap:
    """A file of the log, mapped privately: whatever happens, it is only read."""
    try:
        made = OverlayFiles().open_map(path)
    except FileNotFoundError:
        raise BadStore(
            f"the host {socket.gethostname()} does not see this file; all hosts of the cluster must see the store "
            "under one path",
            path=path,
        ) from None
    if len(made) != size:
        made.close()
        raise BadStore(
            "the file has changed its size; run it again when nobody writes here",
            path=path,
            expected=f"{size} bytes",
            found=f"{len(made)} bytes",
        )
    return made
