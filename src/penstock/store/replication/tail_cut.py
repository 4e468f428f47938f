"""A replica's log is cut where the master's log parts from it, and what is cut is kept.

`prepare_cut` runs on an open store to which nothing is appended. It copies the tail to
`penstock/quarantine/<time>/tail-<epoch>-<offset>/`, with a manifest of what is in it, and syncs both. Then it writes
the intent, `penstock/cut.json`. The store has to be closed and opened again: before `MessageStore.open` reads anything
else, `carry_out_cut` truncates the log, and the epochs with it, and removes the intent; recovery then truncates queues
and index. After a crash at any moment the next open begins again, or finds no intent: then the tail is still in the
log, and the replica finds the difference again.

A deletion of a topic inside the tail, and a queue that restarted at offset 0 there, did not happen in the master's
history. Both are forgotten with the tail, and recovery builds the queues again from the whole log.

If nothing is known to be common to both logs, or the master has deleted its log up to a point that this one does not
reach, the whole store is moved aside instead (`CutPlan.offset` is None): log, queues, index, and all notes about them.
The tables in `config` stay, and so does the note of what the replica lacks (`log_gaps`): an empty replica is not whole.

The quarantine holds no more than quarantineMaxBytes. The intent names the copy, and `carry_out_cut` compares the log
with it: if another program has appended to the log since, nothing is cut. Not thread-safe.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock.errors import StoreFailed
from penstock.format.queue_unit import UNIT_SIZE
from penstock.format.record_layout import is_filler
from penstock.format.scan import row_at
from penstock.store.damage_and_quarantine import Quarantine
from penstock.store.deleted_topics_file import DeletedTopics
from penstock.store.dispatch_checkpoint import forget_state, read_state
from penstock.store.files.atomic_files import Natural, read_checksummed, write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.files.mapped_file_queue import FolderListing, MappedFileQueue, file_name
from penstock.store.queue_units_and_keys import LogRange, scan
from penstock.store.replication.epochs import EpochFile
from penstock.store.replication.log_gaps import begin_mending, log_damage
from penstock.store.truncate_closed_log import mapped_log_file, truncate_log

if TYPE_CHECKING:
    from penstock.store.message_store import MessageStore

MANIFEST: Final = "manifest.json"
_SECTOR: Final = 512
_ANY: Final = 1 << 62
_KEPT: Final = re.compile(r"(?!\.\.?/)[^/]+/(tail|store)-[0-9]+-[0-9]+\+*")
_SLACK: Final = 64 << 10
"""Bytes that are reserved in the quarantine for a manifest."""


class CutPlan(NamedTuple):
    """What has to be cut, and because of which master."""

    offset: int | None
    """Physical offset at which the log is cut; None: the whole store is moved aside."""
    master: str
    """The master's address."""
    master_epoch: int
    why: str = ""
    """One sentence for the operator."""
    mended_to: int = 0
    """Physical offset up to which the log must reach again to lack nothing; 0 if the master has nothing of the tail."""


class CutIntent(msgspec.Struct, frozen=True):
    """The content of `penstock/cut.json`."""

    offset: Natural
    end: Natural
    """Physical offset at which the log ended when the intent was written."""
    kept: str
    """The folder of the tail below `penstock/quarantine`, with `/` as separator."""
    is_whole: bool = False

    @property
    def is_possible(self) -> bool:
        return bool(_KEPT.fullmatch(self.kept)) and self.offset <= self.end


# -- preparing -------------------------------------------------------------------------------------------------------


def prepare_cut(store: MessageStore, plan: CutPlan) -> Path:
    """Sets aside what `plan` cuts, and notes that the next open cuts it. Returns the folder of the copy.

    Raises StoreFailed if the quarantine has no room, or no record begins where the log is to be cut; then nothing has
    changed.
    """
    engine, layout = store.engine, store.layout
    files, limit = engine.io, engine.settings.quarantine_max_bytes
    quarantine = Quarantine(files, layout.quarantine, engine.clock, max_bytes=limit)
    end, epoch = store.watermarks.appended, store.epochs.last
    if plan.offset is None:
        offset, kind = max(store.log.min_offset, 0), "store"
        _check_one_disk(files, layout)
        quarantine.reserve(sum(files.allocated(path) for path in _parts(layout) if files.exists(path)) + _SLACK)
    else:
        offset, kind = plan.offset, "tail"
        _check_cut(store, offset, end)
        quarantine.reserve(end - offset + _SLACK)
    folder = quarantine.make_folder(f"{kind}-{epoch}-{offset}")
    if plan.offset is not None:
        for begin, piece in _pieces(store, offset, end):
            with piece:
                quarantine.keep(f"{folder.name}/{file_name(begin)}", piece)
    manifest = {
        "offset": offset,
        "end": end,
        "epochs": store.epochs.entries,
        "master": plan.master,
        "masterEpoch": plan.master_epoch,
        "why": plan.why,
        "confirmedUpTo": store.watermarks.visible if store.watermarks.is_limited else None,
        "time": engine.clock(),
        "messages": _messages(store, offset, end),
    }
    quarantine.keep(f"{folder.name}/{MANIFEST}", json.dumps(manifest, indent=1).encode())
    kept = folder.relative_to(layout.quarantine).as_posix()
    begin_mending(store, plan.offset or 0, plan.mended_to)
    write_checksummed(files, layout.cut, CutIntent(offset, end, kept, plan.offset is None))
    return folder


def _check_cut(store: MessageStore, offset: int, end: int) -> None:
    """Raises StoreFailed unless a record, a filler or a damaged range begins at `offset`, or the log ends there."""
    queue = store.log.queue
    file = queue.find(offset)
    is_start = offset == end or (file is not None and offset == file.from_offset)
    is_start = is_start or any(each.physical_offset == offset for each in log_damage(store))
    if not is_start and file is not None and offset < end:
        at = offset - file.from_offset
        with file.map.view[: file.readable] as view:
            is_start = is_filler(view, at) or len(row_at(view, file.from_offset, at)) > 0
    if not is_start:
        raise StoreFailed(
            f"the log is to be cut at {offset}, but no record begins there and it does not end there: nothing is cut; "
            "run `penstock store verify`",
            path=queue.folder,
        )


def _check_one_disk(files: Files, layout: Layout) -> None:
    if files.exists(layout.commit_log) and files.partition(layout.commit_log) != files.partition(layout.root):
        raise StoreFailed(
            "the log must be moved aside, and lies on another disk than the rest of the store; move the whole store "
            "away by hand, and start with an empty folder",
            path=layout.commit_log,
        )


def _pieces(store: MessageStore, offset: int, end: int) -> Iterator[tuple[int, memoryview]]:
    """Yields the log from `offset` to `end`, file by file."""
    for file in store.log.queue.files:
        begin, stop = max(offset, file.from_offset), min(end, file.from_offset + file.size)
        if begin < stop:
            yield begin, file.map.view[begin - file.from_offset : stop - file.from_offset]


def _messages(store: MessageStore, offset: int, end: int) -> dict[str, int]:
    """Counts the messages in a range of the log by topic."""
    queue, counts = store.log.queue, Counter[str]()
    delay_levels = store.settings.delay_levels
    for piece in scan(LogRange(queue.folder, queue.file_size, offset, end, exact=True, delay_levels=delay_levels)):
        for topic, _, _, units in piece.queues:
            counts[topic] += len(units) // UNIT_SIZE
    return dict(sorted(counts.items()))


# -- carrying out ----------------------------------------------------------------------------------------------------


def carry_out_cut(files: Files, layout: Layout, epochs: EpochFile, file_size: int, clock: Callable[[], int]) -> str:
    """Carries out the intent, if there is one. Returns a sentence for the user, or an empty string.

    The owner of the store must call it before it reads any other file. Idempotent. Raises StoreFailed or OSError;
    BadStore, before any change, if the log's files do not have `file_size` bytes.
    """
    if not files.exists(layout.cut):
        return ""
    intent = read_checksummed(files, layout.cut, CutIntent)
    kept = None if intent is None else layout.quarantine / intent.kept
    if intent is None or kept is None or not intent.is_possible or not files.exists(kept / MANIFEST):
        aside = Quarantine(files, layout.quarantine, clock, may_exceed=lambda *_: True).move_in(layout.cut)
        return f"{layout.cut} is no plan that can be carried out: nothing was cut, and the file was moved to {aside}"
    if intent.is_whole:
        note = _move_aside(files, layout, kept)
    else:
        shape = MappedFileQueue(files, layout.commit_log, file_size).listing(max_missing=_ANY)  # a cut may leave holes
        if not _is_as_kept(files, layout, intent, kept, shape, file_size):
            aside = Quarantine(files, layout.quarantine, clock, may_exceed=lambda *_: True).move_in(layout.cut)
            return (
                f"the log was to be cut at {intent.offset}, but was changed since by another program: nothing was cut, "
                f"and the plan was moved to {aside}"
            )
        cut = truncate_log(files, layout, intent.offset, shape, file_size)
        _forget_queue_ends(files, layout)
        files.unlink(layout.walked)
        epochs.load()
        epochs.cut(intent.offset)
        _forget_deletions(files, layout, intent.offset)
        note = f"the log was cut at {intent.offset}, where the master's parts from it: {cut} bytes are kept in {kept}"
    files.unlink(layout.cut)
    files.sync_folder(layout.cut.parent)
    return note


def _forget_deletions(files: Files, layout: Layout, offset: int) -> None:
    """Forgets the deletions in the tail. Idempotent.

    The queues that were deleted are missing then, so the dispatch note goes first: after a crash between the two steps
    the entries are still there, and afterwards nothing but the note tells the next start to build the queues.
    """
    deleted = DeletedTopics(files, layout.deleted_topics)
    deleted.load(None)
    if deleted.has_from(offset):
        forget_state(files, layout.dispatched)
        deleted.drop_from(offset)


def _forget_queue_ends(files: Files, layout: Layout) -> None:
    """Removes the queues from the dispatch note.

    By their counts recovery would reserve the queue offsets of messages that were lost in a gap before the cut. The
    master sends these messages again.
    """
    state = read_state(files, layout.dispatched)
    if state is not None and state.queues:
        write_checksummed(files, layout.dispatched, msgspec.structs.replace(state, queues=[]))


def _is_as_kept(
    files: Files, layout: Layout, intent: CutIntent, kept: Path, shape: FolderListing, file_size: int
) -> bool:
    """Whether each sector after the cut is as it was kept, or zero already, and the log has not grown since."""
    for offset in shape.offsets:
        if offset + file_size <= intent.offset:
            continue
        with mapped_log_file(files, layout, offset) as file:
            begin, stop = max(intent.offset, offset), min(intent.end, offset + file_size)
            if file.map.nonzero_end(max(stop - offset, begin - offset)) > max(stop - offset, 0):
                return False
            copy = kept / file_name(begin)
            if begin < stop and not _same_or_zero(file.map.view, begin - offset, files.read_bytes(copy)):
                return False
    return True


def _same_or_zero(data: memoryview, start: int, copy: bytes) -> bool:
    if data[start : start + len(copy)] == copy:
        return True
    at = 0
    while at < len(copy):
        stop = min(at + _SECTOR - (start + at) % _SECTOR, len(copy))
        sector = bytes(data[start + at : start + stop])
        if sector != copy[at:stop] and any(sector):
            return False
        at = stop
    return True


def _parts(layout: Layout) -> list[Path]:
    """All that describes the log, beside the log."""
    backup = layout.epochs.with_name(layout.epochs.name + ".bak")
    folders = [layout.commit_log, layout.consume_queue, layout.consume_queue_ext, layout.index, layout.sink]
    notes = [layout.dispatched, layout.delivered, layout.checked, layout.damaged, layout.deleted_topics, layout.walked]
    return [*folders, *notes, layout.epochs, backup, layout.checkpoint]


def _move_aside(files: Files, layout: Layout, kept: Path) -> str:
    for path in _parts(layout):
        target = kept / path.name
        if files.exists(path) and not files.exists(target):
            files.rename(path, target)
            files.sync_folder(path.parent)
    files.sync_folder(kept)
    return f"the master's log cannot continue this one, so the store was moved to {kept}; all is copied again"
