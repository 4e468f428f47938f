"""Recovery of a batch that was pending when its writer was killed: completes it or rolls it back.

A batch with a mark is complete and on disk; only the journal needs an update. A batch without a mark was never
acknowledged, and its writer will repeat it. So the log is truncated where the batch began, and synced. Then the store's
recovery inspects the log, and truncates queues and index. All steps are idempotent.

Normally all records after the batch's start belong to the batch, because its writer owned the store. But RocketMQ
ignores the journal, and may have appended messages after an incomplete batch. Their born timestamps differ from the
batch's. If there are such messages, nothing is truncated.
"""

from __future__ import annotations

from pathlib import Path

from penstock.clock import now_ms
from penstock.format.scan import valid_rows
from penstock.store.damage_and_quarantine import Quarantine
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import MAX_MISSING_IN_A_ROW, FolderListing, MappedFileQueue
from penstock.store.sink.journal import Intent, Journal, find_mark, read_journal, write_journal
from penstock.store.truncate_closed_log import mapped_log_file, truncate_log


def resolve_pending_batch(files: Files, layout: Layout, file_size: int) -> str:
    """Completes or rolls back a pending batch. Returns a sentence for the user, or an empty string.

    The owner of the store must call it before it reads any other file. Idempotent. Raises StoreFailed or OSError;
    BadStore, before any change, if the log's files do not have `file_size` bytes.
    """
    if not files.exists(layout.sink_journal):
        return ""
    journal = read_journal(files, layout)
    if journal is None:
        return f"{layout.sink_journal} could not be read and was moved to {_quarantine_journal(files, layout)}"
    pending = journal.pending
    if pending is None:
        return ""
    mark = find_mark(files, layout, pending.identity)
    if mark is not None:
        write_journal(files, layout, journal.committed(mark.end))
        return ""
    shape = MappedFileQueue(files, layout.commit_log, file_size).listing(max_missing=MAX_MISSING_IN_A_ROW)
    if not _only_batch_follows(files, layout, pending, shape, file_size):
        kept = _quarantine_journal(files, layout)
        return (
            f"{pending.identity} is incomplete from {pending.start} on, because its writer was killed, and other "
            f"messages were stored after it: nothing was truncated, and the journal was moved to {kept}"
        )
    cut = truncate_log(files, layout, pending.start, shape, file_size)
    write_journal(files, layout, journal.rolled_back())
    return f"{pending.identity} was not complete: {cut} bytes at {pending.start} were rolled back" if cut else ""


def drop_batches_beyond(files: Files, layout: Layout, end: int) -> None:
    """Drops batches past the log's end from the journal: the log has lost them, and new records take their place.

    Raises StoreFailed.
    """
    journal = read_journal(files, layout)
    if journal is not None and any(span.end > end for span in journal.spans):
        spans = tuple(span for span in journal.spans if span.end <= end)
        write_journal(files, layout, Journal(journal.pending, spans))


def _quarantine_journal(files: Files, layout: Layout) -> Path:
    # The journal is small, so the quarantine's limit does not apply.
    return Quarantine(files, layout.quarantine, now_ms, may_exceed=lambda *_: True).move_in(layout.sink_journal)


# -- inspecting ------------------------------------------------------------------------------------------------------


def _only_batch_follows(files: Files, layout: Layout, pending: Intent, shape: FolderListing, file_size: int) -> bool:
    """Whether all records after `pending.start` belong to the pending batch."""
    for offset in shape.offsets:
        if offset + file_size <= pending.start:
            continue
        with mapped_log_file(files, layout, offset) as file:
            if _holds_others(file, max(pending.start - offset, 0), pending.born_timestamp):
                return False
    return True


def _holds_others(file: MappedFile, position: int, born_timestamp: int) -> bool:
    """Whether a record at or after `position` in the file has another born timestamp."""
    batches = valid_rows(file.map.view, file.from_offset, position, file.size, written=file.map.written_ranges)
    return any((rows["born_timestamp"] != born_timestamp).any() for rows in batches)
