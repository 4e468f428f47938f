"""The index's part of a start: which files and items can be believed.

By names and sizes, and by their headers: an index file that cannot be what it says, and every later one, is kept aside
and built again from the log. After a clean exit a header must agree with its first and last item. After a crash the
items of records that the checkpoint vouches for are kept as far as they are whole, and chained anew; the rest is
forgotten and built again. An index that is ahead of the log is taken back to it.
"""

from __future__ import annotations

from pathlib import Path

from penstock.errors import BadStore
from penstock.format.index_layout import HEADER_SIZE
from penstock.store.damage import Quarantine
from penstock.store.dispatch_state import DispatchState, FileSizes
from penstock.store.index import Index, IndexFile
from penstock.store.io import Files
from penstock.store.records import RecordReader
from penstock.store.recovery.log import LogRecovery, freeze_index
from penstock.store.recovery.report import RecoveryReport


class IndexRecovery:
    """Looks at the index, then takes it back to what can be believed."""

    def __init__(self, files: Files, index: Index, records: RecordReader, *, live: bool, owned: bool) -> None:
        """A view of half a batch is `live` also where nobody has the store open (`owned`): its writer was killed."""
        self._io = files
        self._index = index
        self._records = records
        self._live = live
        self._owned = owned
        self._aside: list[Path] = []
        """Files that cannot be used, oldest first."""
        self._gone: list[IndexFile] = []
        self._end_found = -1
        self._nothing_lost = False

    # -- looking ---------------------------------------------------------------------------------------------

    def load(self, noted: FileSizes | None) -> None:
        """Maps what can be used. Raises BadStore for what is foreign, or if the settings do not fit the files."""
        names = self._index.names()
        sizes = {name: self._io.size(self._index.folder / name) for name in names}
        self._refuse_other_size(sizes, noted)
        fitting = self._index.geometry.file_size
        first_wrong = next((name for name in names if sizes[name] != fitting), "~")
        self._aside = [self._index.folder / name for name in names if name >= first_wrong]
        self._index.load([name for name in names if name < first_wrong])

    def _refuse_other_size(self, sizes: dict[str, int], noted: FileSizes | None) -> None:
        """All files of one other size: then the settings are wrong, unless a note says no."""
        geometry = self._index.geometry
        found = set(sizes.values())
        same = noted is not None and (noted.hash_slots, noted.index_items) == tuple(geometry)
        if len(found) != 1 or geometry.file_size in found or same or max(found) <= HEADER_SIZE or max(found) % 4:
            return
        raise BadStore(
            "the index file has another size than maxHashSlotNum and maxIndexNum say; set those it was made with, or "
            "move the file elsewhere to have it rebuilt",
            path=self._index.folder / next(iter(sizes)),
            expected=f"{geometry.file_size} bytes",
            found=f"{max(found)} bytes",
        )

    def look(self, log: LogRecovery, clean: bool) -> None:
        """Judges headers; changes nothing but what is known in memory."""
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
        self._gone = list(files[sound:])
        self._aside = [*(file.path for file in self._gone), *self._aside]
        self._index.files = files[:sound]
        self._end_found = self._index.end_offset
        for file in self._index.files if self._live else ():
            freeze_index(file)

    def _is_plausible(self, file: IndexFile) -> bool:
        header = file.header
        if not 0 <= header.index_count <= self._index.geometry.items:
            return False
        return file.empty or 0 <= header.begin_physical_offset <= header.end_physical_offset

    def _in_order(self, file: IndexFile, earlier: tuple[IndexFile, ...]) -> int | None:
        """None if a file begins where those before it end; else how many of them do not reach into it.

        If its header is right, others have the wrong names: they are too early in the list.
        """
        ends = [each.header.end_physical_offset for each in earlier if not each.empty]
        begin = file.header.begin_physical_offset
        if file.empty or max(ends, default=0) <= begin:
            return None
        return sum(end <= begin for end in ends) if self._agrees(file) else len(earlier)

    def _agrees(self, file: IndexFile) -> bool:
        """Whether the first and the last item are those that the header speaks of."""
        if file.empty:
            return True
        header, last = file.header, file.item(file.count - 1)
        ends = file.item(1).physical_offset, last.physical_offset
        return ends == (header.begin_physical_offset, header.end_physical_offset) and last.key_hash >= 0

    @property
    def room_needed(self) -> int:
        """Bytes that will be kept aside."""
        return sum(self._io.allocated(path) for path in self._aside)

    # -- acting ----------------------------------------------------------------------------------------------

    def bring_in_order(
        self, log: LogRecovery, quarantine: Quarantine, report: RecoveryReport, clean: bool, noted_end: int | None
    ) -> None:
        """`noted_end` is the last indexed record by the note. Raises StoreFailed, and can be done again."""
        for file in self._gone:
            file.close()
        kept = [quarantine.move_in(path) for path in reversed(self._aside)]
        if kept and not self._live:
            report.kept_aside += map(str, kept)
            report.notes.append(
                f"{self._aside[0]}: the index could not be believed from here on; {len(kept)} files were moved to "
                f"{kept[0].parent}, and are built again from the log"
            )
        index, last = self._index, self._index.end_offset
        if not clean and not self._owned:
            before = min(log.walked_from, log.end)
            self._nothing_lost = index.keep_before(before, self._records.store_timestamp)
        elif last >= log.end:
            index.rewind(log.end, self._records.store_timestamp)
        elif last >= log.walked_from and (self._live or last != noted_end):
            # The last record may be half indexed, should somebody have removed `abort`: all its keys are taken back,
            # and dispatched again.
            index.rewind(last, self._records.store_timestamp)

    def complete_before(self, log: LogRecovery, state: DispatchState | None, clean: bool) -> int:
        """The position before which no key is missing, as far as is known."""
        end = self._index.end_offset
        if state is None or state.index_end is None or state.position > log.end or self._end_found < state.index_end:
            return end
        if clean:
            return max(end, state.position if end >= state.index_end else end)
        return max(end, min(log.walked_from, state.position) if self._nothing_lost else end)

    def sync(self) -> None:
        """The checkpoint will say that the index is complete, so it must be on disk."""
        for table in self._index.files:
            table.sync()
