"""Builds one range: walks it, stores its units into the staged queues and its keys into a file, and notes what it saw.

Every record is checked as a repair checks it, CRC included. The note is written last, so a range whose note is there
was built to its end. Nothing is synced: what a power cut took of notes, keys and units is found out when a later run
looks for them and when queues and index are finished. Any number of ranges may be built at once, by any process; one
that is built twice comes out the same.
"""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

import msgspec

from penstock.errors import BadStore
from penstock.format.placeholder import is_placeholder
from penstock.store.file_map import FileMap
from penstock.store.file_queue import file_name
from penstock.store.files import Files
from penstock.store.overlay_files import OverlayFiles
from penstock.store.rebuilding.keys import KEY, write_keys
from penstock.store.rebuilding.plan import Plan, Range
from penstock.store.rebuilding.units import QueueRuns, place_units, runs_of, unit_builder
from penstock.store.repair.survey import Survey, survey_range
from penstock.store.sealed_json import read_sealed, sealed


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
    builder = unit_builder(task)
    with contextlib.closing(_open_log(Path(task.log.folder, file_name(piece.base)), task.log.file_size)) as log:
        found = survey_range(
            log.view,
            piece.base,
            piece.start,
            piece.stop,
            resync=piece.resync,
            overrun=piece.overrun,
            take=builder.take,
        )
    keys, parts = builder.key_table(), builder.queues()
    note = RangeNote(
        piece.number,
        found,
        builder.records,
        len(keys) // KEY.itemsize,
        [(offset, size) for offset, size, topic in builder.rolled_back if is_placeholder(topic, size)],
        [runs_of(part) for part in parts],
    )
    if not dry_run:
        for part in parts:
            place_units(files, plan.queues, task.queue_file_size, part)
        write_keys(files, plan.keys_of(piece.number), keys)
        files.write_unsynced(plan.note_of(piece.number), sealed(note))
    return json.dumps(msgspec.to_builtins(note)).encode()


def decode_note(data: bytes) -> RangeNote:
    return msgspec.convert(json.loads(data), RangeNote)


def noted(plan: Plan, files: Files, piece: Range) -> RangeNote | None:
    """The note of a range that was built to its end, None if there is none."""
    found = read_sealed(files, plan.note_of(piece.number), RangeNote)
    if found is None or not found.keys:
        return found
    keys = plan.keys_of(piece.number)
    return found if files.exists(keys) and files.size(keys) == found.keys * KEY.itemsize else None


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
