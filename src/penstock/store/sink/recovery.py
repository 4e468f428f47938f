"""What a start does about a batch that was pending when its writer was killed: finishes it, or rolls it back.

With its mark it is whole and on disk, and only the journal has to be brought up to date. Without, its writer was never
told that it is stored, and will bring it again: the log is cut where the batch began, durably and before recovery looks
at it, and recovery takes queues and index back to the log's end. Killed within, it begins again.

Everything behind the start is the batch's own, because its writer owned the store. RocketMQ knows nothing of that: if
it was started on the store in between, it may have stored messages behind half a batch. They are told by when they were
born, and then nothing is cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock.clock import now_ms
from penstock.format import kernels
from penstock.format.rows import Reason
from penstock.store.atomic_files import write_checksummed
from penstock.store.damage import Quarantine
from penstock.store.dispatch_state import read_state
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.log_walk import next_valid
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import MAX_MISSING_IN_A_ROW, FolderListing, MappedFileQueue, file_name
from penstock.store.sink.journal import Intent, Journal, find_mark, read_journal, write_journal

_ROWS: Final = 65_536


def finish_batch(files: Files, layout: Layout, file_size: int) -> str:
    """Called by the owner of the store before anything else is read; returns a sentence if there was something to do.

    `file_size` is that of the log's files. Raises BadStore if there are others: then nothing was changed. Raises
    StoreFailed or OSError, and can be called again.
    """
    if not files.exists(layout.sink_journal):
        return ""
    journal = read_journal(files, layout)
    if journal is None:
        return f"{layout.sink_journal} could not be read and was moved to {_set_aside(files, layout)}"
    pending = journal.pending
    if pending is None:
        return ""
    mark = find_mark(files, layout, pending.identity)
    if mark is not None:
        write_journal(files, layout, journal.ended(mark.end))
        return ""
    shape = MappedFileQueue(files, layout.commit_log, file_size).listing(max_missing=MAX_MISSING_IN_A_ROW)
    if not _is_alone(files, layout, pending, shape, file_size):
        kept = _set_aside(files, layout)
        return (
            f"{pending.identity} was half stored from {pending.start} on when its writer was killed, and since then "
            f"others have stored messages behind it: nothing was cut, and the journal was moved to {kept}"
        )
    cut = _cut(files, layout, pending.start, shape, file_size)
    write_journal(files, layout, journal.given_up())
    return f"{pending.identity} was not complete: {cut} bytes of it at {pending.start} were taken back" if cut else ""


def forget_beyond(files: Files, layout: Layout, end: int) -> None:
    """Forgets batches behind the log's end: the log was lost, and what is written there next is something else.

    Raises StoreFailed.
    """
    journal = read_journal(files, layout)
    if journal is not None and any(span.end > end for span in journal.spans):
        spans = tuple(span for span in journal.spans if span.end <= end)
        write_journal(files, layout, Journal(journal.pending, spans))


def _set_aside(files: Files, layout: Layout) -> Path:
    # Small, and in the way: no limit holds it up.
    return Quarantine(files, layout.quarantine, now_ms, may_exceed=lambda *_: True).move_in(layout.sink_journal)


# -- looking ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _mapped(files: Files, layout: Layout, offset: int) -> Iterator[MappedFile]:
    file = MappedFile(files.open_map(layout.commit_log / file_name(offset)), offset)
    try:
        yield file
    finally:
        file.shut_down()


def _is_alone(files: Files, layout: Layout, pending: Intent, shape: FolderListing, file_size: int) -> bool:
    """Whether every record behind the start is the batch's."""
    for offset in shape.offsets:
        if offset + file_size <= pending.start:
            continue
        with _mapped(files, layout, offset) as file:
            if _holds_others(file, max(pending.start - offset, 0), pending.born_timestamp):
                return False
    return True


def _holds_others(file: MappedFile, position: int, born_timestamp: int) -> bool:
    """Whether there is a record from a position on that was born at another time."""
    code: int = Reason.FULL
    while position < file.size and code != Reason.BLANK:
        rows, position, code = kernels.walk(file.map.view, file.from_offset, position, file.size, False, None, _ROWS)
        if (rows["born_timestamp"] != born_timestamp).any():
            return True
        if code not in (Reason.FULL, Reason.STOP, Reason.BLANK):
            position = next_valid(file, position, file.size)
    return False


# -- cutting ---------------------------------------------------------------------------------------------------------


def _cut(files: Files, layout: Layout, start: int, shape: FolderListing, file_size: int) -> int:
    """Takes everything from `start` on out of the log; returns about how many bytes that were."""
    offsets = [*shape.offsets, *(() if shape.unfinished is None else (shape.unfinished,))]
    if not offsets:
        return 0
    if not files.exists(layout.abort):
        files.replace_bytes(layout.abort, b"")  # what the last close left is not what recovery will find
    _take_back_note(files, layout, start)
    cut = 0
    for offset in reversed(offsets):  # the last file first, so that a crash leaves no hole
        if offset > start or (offset == start and offset != offsets[0]):
            cut += files.size(layout.commit_log / file_name(offset))
            files.unlink(layout.commit_log / file_name(offset))
    files.sync_folder(layout.commit_log)
    for offset in shape.offsets:
        if offset <= start < offset + file_size:
            with _mapped(files, layout, offset) as file:
                cut += file.zero(start - offset)
                file.map.sync()
    return cut


def _take_back_note(files: Files, layout: Layout, start: int) -> None:
    """The note of what is dispatched must not speak of messages that go; else a start would miss them."""
    state = read_state(files, layout.dispatched)
    if state is not None and max(state.position, state.flushed) > start:
        index_end = None if state.index_end is None else min(state.index_end, start - 1)
        taken_back = msgspec.structs.replace(
            state,
            position=min(state.position, start),
            flushed=min(state.flushed, start),
            queues=[queue for queue in state.queues if queue.end <= start],
            index_end=index_end,
        )
        write_checksummed(files, layout.dispatched, taken_back)
