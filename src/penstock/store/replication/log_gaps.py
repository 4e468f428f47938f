"""Gaps in a replica's log: which messages it lacks that its master has, and the file `penstock/gaps.json`.

A power loss can leave a gap: pages that never reached the disk, with whole records behind them. A replica with a gap
has an end like the others, but not every message before it. So it must not count as one that has the log up to its end,
neither for acknowledgements nor for elections, until the gap is mended: the log is cut at the gap, and the master sends
the rest again.

Damage that the master's log has as well is no such gap, because both lack the same: a slave copies a
master's damage as it is. Nor is damage that the master had when it was elected. Both are *accepted*, and noted in the
file, because a replica that stands for election cannot ask a master. The file also says how far the log reached before
it was cut at a gap: until it reaches that far again, the replica lacks messages. Only the store's owner writes the file
(whole and synced); if it is lost or garbage, nothing is accepted, and all damage counts as gaps again. Thread-safe.

What `penstock store repair` has covered with placeholders is no damage any more: it is not found here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.store.damage_and_quarantine import DamagedRange, inside, merged, merged_by_file
from penstock.store.files.atomic_files import Natural, read_checksummed, write_checksummed
from penstock.store.log_end_and_damage import next_begin

if TYPE_CHECKING:
    from penstock.store.message_store import MessageStore

_MAX_CHECKED: Final = 256 << 20
"""Bytes of damage that a master reads at most for one slave, which waits. What lies after them counts as whole."""

_GATE: Final = threading.Lock()
"""Held while the file is read and replaced: a keeper's thread does so while the loop's joins a master."""


class _GapNote(msgspec.Struct, frozen=True):
    """The content of `penstock/gaps.json`."""

    accepted: list[DamagedRange] = []
    mended_to: Natural = 0
    """Physical offset up to which the log must reach again; 0 if nothing was cut."""


# -- ranges ----------------------------------------------------------------------------------------------------------


def without(ranges: Iterable[DamagedRange], others: Sequence[DamagedRange]) -> list[DamagedRange]:
    """Returns the parts of the ranges that lie in none of the others, in log order."""
    left: list[DamagedRange] = []
    parts, at = merged(others), 0
    for each in merged(ranges):
        begin = each.physical_offset
        while begin < each.end and at < len(parts) and parts[at].physical_offset < each.end:
            if begin < parts[at].physical_offset:
                left.append(DamagedRange(begin, parts[at].physical_offset - begin, each.reason))
            begin = max(begin, parts[at].end)
            if begin < each.end:  # otherwise the part may reach into the next range
                at += 1
        if begin < each.end:
            left.append(DamagedRange(begin, each.end - begin, each.reason))
    return left


def first_gap(
    own: Sequence[DamagedRange], masters: Sequence[DamagedRange], begin: int, end: int
) -> DamagedRange | None:
    """Returns the first damaged range of this log in [begin, end) that is not, as a whole, damaged in the master's."""
    lacking = without(inside(own, begin, end), masters)
    return next((each for each in merged(own) if lacking and each.end > lacking[0].physical_offset), None)


# -- of a store ------------------------------------------------------------------------------------------------------


def log_damage(store: MessageStore) -> list[DamagedRange]:
    """Returns the damaged ranges of an open log that are known: from its start, and what dispatch has met since."""
    known = [*store.report.damage, *store.dispatcher.skipped_ranges]
    return merged(inside(known, max(store.log.min_offset, 0), store.watermarks.appended))


def damage_beside(
    store: MessageStore, asked: Iterable[DamagedRange], is_wanted: Callable[[], bool] = lambda: True
) -> list[DamagedRange]:
    """Returns the damaged ranges of a master's log: the known ones, and where an `asked` range begins with damage.

    `asked` are the damaged ranges of a slave. In each, all that follows the first valid record counts as whole: one
    message is enough to say that the slave has a gap there. Reads the master's log, so it may wait for the disk. Once
    `is_wanted` returns False, looks at no further range.
    """
    queue, found, left = store.log.queue, log_damage(store), _MAX_CHECKED
    here = inside(asked, max(store.log.min_offset, 0), store.watermarks.stored)
    for each in merged_by_file(without(here, found), queue.file_size):
        if not left or not is_wanted():
            break
        file = queue.find(each.physical_offset)
        if file is None or not file.acquire():
            continue
        try:
            begin = each.physical_offset - file.from_offset
            size = next_begin(file, begin, begin + min(each.size, left)) - begin
        finally:
            file.release()
        left -= size
        if size:
            found.append(DamagedRange(each.physical_offset, size, each.reason))
    return merged(found)


def lacks_messages(store: MessageStore) -> bool:
    """Whether this log has gaps that are not accepted, or does not yet reach as far as before it was cut at a gap.

    Notes the master's damage that this slave has copied as accepted. Raises StoreFailed.
    """
    copied = [] if store.replica_log is None else list(store.replica_log.damaged)
    with _GATE:
        note = _read(store)
        if without(copied, note.accepted):
            note = msgspec.structs.replace(note, accepted=merged([*note.accepted, *copied]))
            _write(store, note)
    return store.watermarks.stored < note.mended_to or bool(without(log_damage(store), note.accepted))


def accept_gaps(store: MessageStore, accepted: Iterable[DamagedRange]) -> None:
    """Notes which damaged ranges of this log are no gaps, in place of those that were noted before.

    A slave calls it when its master has the same damage, and no cut is due. Raises StoreFailed.
    """
    with _GATE:
        _write(store, msgspec.structs.replace(_read(store), accepted=merged(accepted)))


def limit_mending(store: MessageStore, masters_end: int) -> None:
    """Notes that this log lacks nothing that lies behind `masters_end`, where its master's log ends.

    A slave calls it when it joins: every acknowledged message is in the log of the master that was elected. What this
    log had behind it was not acknowledged, and perhaps no master has it any more. Raises StoreFailed.
    """
    with _GATE:
        note = _read(store)
        needed = min(note.mended_to, masters_end)
        _write(store, msgspec.structs.replace(note, mended_to=needed if store.watermarks.stored < needed else 0))


def accept_all_gaps(store: MessageStore) -> None:
    """Notes that this log is the log of its set from now on, as it is: it was elected. Raises StoreFailed."""
    with _GATE:
        _write(store, _GapNote(log_damage(store)))


def begin_mending(store: MessageStore, offset: int, end: int) -> None:
    """Notes that the log is about to be cut at `offset`, and lacks messages until it reaches `end` again.

    `end` is 0 if the master has nothing of what is cut. Call it before the cut is certain: a replica must not be
    elected in between. Raises StoreFailed.
    """
    with _GATE:
        note = _read(store)
        end = max(end, note.mended_to)  # an earlier cut may not be mended yet
        _write(store, _GapNote(inside(note.accepted, 0, offset), end))


def _read(store: MessageStore) -> _GapNote:
    files, path = store.engine.io, store.layout.gaps
    if not files.exists(path):
        return _GapNote()
    return read_checksummed(files, path, _GapNote) or _GapNote()


def _write(store: MessageStore, note: _GapNote) -> None:
    if note != _read(store):
        store.engine.io.make_folder(store.layout.gaps.parent)
        write_checksummed(store.engine.io, store.layout.gaps, note)
