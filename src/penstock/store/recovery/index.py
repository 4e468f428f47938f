"""Recovery of the index: which files and items are valid.

Recovery checks names, sizes and headers. It quarantines the first invalid file and all later ones, and dispatch builds
them again from the log. After a clean exit a header must match its file's first and last item. After a crash recovery
keeps the intact items of records that the checkpoint covers, links their chains again, and drops all other items. An
index that is ahead of the log is truncated to the log's end.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from penstock.errors import BadStore
from penstock.format.index_layout import HEADER_SIZE, SLOT_SIZE
from penstock.store.damage_and_quarantine import Quarantine
from penstock.store.dispatch_checkpoint import DispatchState, FileSizes
from penstock.store.files.file_io import Files
from penstock.store.index import Index, IndexFile
from penstock.store.recovery.log import LogRecovery
from penstock.store.recovery.report import RecoveryReport
from penstock.store.single_record_reader import RecordReader


class IndexRecovery:
    """Inspects the index, then truncates it to its valid part."""

    def __init__(self, files: Files, index: Index, records: RecordReader, *, live: bool, owned: bool) -> None:
        """`owned`: this is a read-only view, and another process has the store open.

        `live`: `owned`, or a read-only view of a store with an incomplete batch.
        """
        self._io = files
        self._index = index
        self._records = records
        self._live = live
        self._owned = owned
        self._quarantined: list[Path] = []
        """Invalid files, oldest first."""
        self._removed: list[IndexFile] = []
        self._end_inspected = -1
        self._is_intact = False

    # -- inspecting ------------------------------------------------------------------------------------------

    def load(self, noted: FileSizes | None) -> None:
        """Maps the files before the first of a wrong size. `noted`: the sizes in the dispatch note, if there is one.

        Raises BadStore for a foreign file, or if the settings do not match the files.
        """
        names = self._index.names()
        sizes = {name: self._io.size(self._index.folder / name) for name in names}
        self._refuse_other_size(sizes, noted)
        fitting = self._index.geometry.file_size
        first_wrong = next((name for name in names if sizes[name] != fitting), "~")
        self._quarantined = [self._index.folder / name for name in names if name >= first_wrong]
        self._index.load([name for name in names if name < first_wrong])

    def _refuse_other_size(self, sizes: dict[str, int], noted: FileSizes | None) -> None:
        """Raises BadStore if all files share another size than the settings say.

        Does not raise if the dispatch note confirms the settings: then the files are damaged.
        """
        geometry = self._index.geometry
        other = set(sizes.values())
        same = noted is not None and (noted.hash_slots, noted.index_items) == tuple(geometry)
        if len(other) != 1 or geometry.file_size in other or same or max(other) <= HEADER_SIZE or max(other) % 4:
            return
        raise BadStore(
            "the size of the index file does not match maxHashSlotNum and maxIndexNum; set the values it was created "
            "with, or move the file elsewhere to have it rebuilt",
            path=self._index.folder / next(iter(sizes)),
            expected=f"{geometry.file_size} bytes",
            found=f"{max(other)} bytes",
        )

    def inspect(self, log: LogRecovery, clean: bool) -> None:
        """Checks the headers and decides which files stay. Changes nothing on disk."""
        files = self._index.files
        sound = len(files)
        for number, file in enumerate(files):
            before = files[:number]
            if not self._is_plausible(file) or (clean and not self._live and not self._agrees(file)):
                sound = number
                break
            in_order = self._in_order(file, before)
            if in_order is not None:
                sound = in_order
                break
            if before and not before[-1].full:
                sound = number
                break
            if not file.empty and file.header.begin_physical_offset >= log.end:
                sound = number
                break
        self._removed = list(files[sound:])
        self._quarantined = [*(file.path for file in self._removed), *self._quarantined]
        self._index.files = files[:sound]
        self._end_inspected = self._index.end_offset
        for file in self._index.files if self._live else ():
            freeze_index(file)

    def _is_plausible(self, file: IndexFile) -> bool:
        header = file.header
        if not 0 <= header.index_count <= self._index.geometry.items:
            return False
        return file.empty or 0 <= header.begin_physical_offset <= header.end_physical_offset

    def _in_order(self, file: IndexFile, earlier: tuple[IndexFile, ...]) -> int | None:
        """Returns None if `file` begins in the log after all `earlier` ones end; else how many of these are valid.

        If the header of `file` matches its items, the earlier files that overlap it are invalid: their names are wrong,
        so they sort too early. If it does not match, `file` itself is the first invalid one.
        """
        ends = [each.header.end_physical_offset for each in earlier if not each.empty]
        begin = file.header.begin_physical_offset
        if file.empty or max(ends, default=0) <= begin:
            return None
        return sum(end <= begin for end in ends) if self._agrees(file) else len(earlier)

    def _agrees(self, file: IndexFile) -> bool:
        """Whether the header matches the first and the last item."""
        if file.empty:
            return True
        header, last = file.header, file.item(file.count - 1)
        ends = file.item(1).physical_offset, last.physical_offset
        return ends == (header.begin_physical_offset, header.end_physical_offset) and last.key_hash >= 0

    @property
    def room_needed(self) -> int:
        """Bytes that will go to the quarantine."""
        return sum(self._io.allocated(path) for path in self._quarantined)

    # -- applying --------------------------------------------------------------------------------------------

    def apply(
        self, log: LogRecovery, quarantine: Quarantine, report: RecoveryReport, clean: bool, noted_end: int | None
    ) -> None:
        """Quarantines invalid files and truncates the index.

        `noted_end`: physical offset of the last indexed record, according to the dispatch note. Idempotent. Raises
        StoreFailed.
        """
        for file in self._removed:
            file.close()
        kept = [quarantine.move_in(path) for path in reversed(self._quarantined)]
        if kept and not self._live:
            report.kept_aside += map(str, kept)
            report.notes.append(
                f"{self._quarantined[0]}: the index is not valid from here on; {len(kept)} files were moved to "
                f"{kept[0].parent} and are rebuilt from the log"
            )
        index, last = self._index, self._index.end_offset
        if not clean and not self._owned:
            before = min(log.walked_from, log.end)
            self._is_intact = index.keep_before(before, self._records.store_timestamp)
        elif last >= log.end:
            index.rewind(log.end, self._records.store_timestamp)
        elif last >= log.walked_from and (self._live or last != noted_end):
            # If `abort` was removed by hand, the last record may be indexed in part: remove all its keys, and
            # dispatch it again.
            index.rewind(last, self._records.store_timestamp)

    def complete_before(self, log: LogRecovery, state: DispatchState | None, clean: bool) -> int:
        """Returns the log position before which the index has all keys; dispatch must start there, or earlier."""
        end = self._index.end_offset
        if (
            state is None
            or state.index_end is None
            or state.position > log.end
            or self._end_inspected < state.index_end
        ):
            return end
        if clean:
            return max(end, state.position if end >= state.index_end else end)
        return max(end, min(log.walked_from, state.position) if self._is_intact else end)

    def sync(self) -> None:
        """Syncs all files. Must run before the checkpoint covers the index."""
        for table in self._index.files:
            table.sync()


def freeze_index(file: IndexFile) -> None:
    """Freezes an index file of a live view: the view keeps the items that the header counts now.

    The file is mapped privately. The owner's changes to slots and header would still show in memory pages that this
    process has not written. So this function overwrites slots and header with copies, and unlinks from the slots the
    items beyond the count.
    """
    header, count, slots = file.header, file.count, file.geometry.slots
    view = file.map.view[HEADER_SIZE : HEADER_SIZE + SLOT_SIZE * slots]
    newest = np.frombuffer(bytes(view), ">i4").copy()
    late = newest >= count
    while late.any():
        for slot in np.flatnonzero(late).tolist():
            number = int(newest[slot])
            previous = file.item(number).previous
            newest[slot] = previous if previous < number else 0
        late = newest >= count
    view[:] = newest.tobytes()
    view.release()
    if count > 1:
        header = msgspec.structs.replace(header, end_physical_offset=file.item(count - 1).physical_offset)
    file.set_header(header)
