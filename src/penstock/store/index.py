"""The index: files in the folder `index`, from `topic#key` to records.

Owns the order of the files and the rolling from a full one to the next. A record is never indexed twice: what lies
at or before the last indexed record is passed over. A file that is full is synced by the keeper of derived files,
who then moves the checkpoint.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import BadStore, StoreFailed
from penstock.format.index_layout import IndexGeometry, IndexHeader
from penstock.store.files import Files
from penstock.store.index_file import IndexFile, header_after

_NAME = re.compile(r"[0-9]{17}")


class Index:
    """All index files, oldest first."""

    def __init__(self, files: Files, folder: Path, geometry: IndexGeometry, clock: Callable[[], int]) -> None:
        self._io = files
        self.folder = folder
        self.geometry = geometry
        self._clock = clock
        self.files: tuple[IndexFile, ...] = ()
        self._unsynced: list[IndexFile] = []
        self._half: tuple[int, int] | None = None
        """The record at which a put had to stop for want of a new file, and how many of its keys are in."""
        self._gate = threading.Lock()

    # -- loading ---------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The files that there are, oldest first. Raises BadStore if something foreign lies among them."""
        found = self._io.names(self.folder)
        for name in found:
            if not _NAME.fullmatch(name) or self._io.is_folder(self.folder / name):
                raise BadStore(
                    "a foreign file or folder lies in the index folder; move it elsewhere",
                    path=self.folder / name,
                    expected="files with names of 17 digits",
                    found=repr(name),
                )
        return found

    def load(self, names: Sequence[str]) -> None:
        """Maps files of the right size."""
        loaded: list[IndexFile] = []
        try:
            for name in names:
                loaded.append(IndexFile(self._io.open_map(self.folder / name), self.geometry))
        except BaseException:
            for file in loaded:
                file.close()
            raise
        self.files = tuple(loaded)

    def rewind(self, offset: int, timestamp_of: Callable[[int], int]) -> None:
        """Forgets every record at or behind `offset`: newer files go, items of the last one are taken back."""
        while self.files:
            last = self.files[-1]
            last.drop_uncounted()
            if last.empty or last.item(1).physical_offset < offset or len(self.files) == 1:
                break
            self._drop_last()
        if self.files:
            before = self.files[-2].header if len(self.files) > 1 else IndexHeader()
            self.files[-1].rewind(offset, timestamp_of, header_after(before))

    def keep_before(self, offset: int, timestamp_of: Callable[[int], int]) -> bool:
        """After a crash: keeps the items of records before `offset`, which were on disk, and forgets the rest.

        Of the rest nothing can be believed: pages reach the disk in any order, so a header may count items that
        never did, and a slot may point to one. Returns whether all that were counted and lie before `offset` are kept.
        """
        whole = True
        while self.files:
            last = self.files[-1]
            end = last.sound_before(offset)
            whole = whole and (end >= min(last.count, self.geometry.items) or last.item(end).physical_offset >= offset)
            if end > 1 or len(self.files) == 1:
                before = self.files[-2].header if len(self.files) > 1 else IndexHeader()
                last.keep_first(end, timestamp_of, header_after(before))
                break
            self._drop_last()
        return whole

    def _drop_last(self) -> None:
        last = self.files[-1]
        last.close()
        self._io.unlink(last.path)
        self.files = self.files[:-1]

    # -- putting ---------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """Physical offset of the last indexed record, -1 if there is none."""
        for file in reversed(self.files):
            if not file.empty:
                return file.header.end_physical_offset
        return -1

    @property
    def newest(self) -> tuple[int, int]:
        """Store time and physical offset of the last indexed record, zeros if there is none."""
        for file in reversed(self.files):
            if not file.empty:
                return file.header.end_timestamp, file.header.end_physical_offset
        return 0, 0

    def append(
        self,
        hashes: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        *,
        room: bytearray | None = None,
    ) -> None:
        """Adds keys in log order. Raises StoreFailed when no new file can be had; the rest can be tried again.

        With `room` (see `IndexFile.put`) nobody may look anything up meanwhile.
        """
        if not len(hashes):
            return
        start = int(np.searchsorted(offsets, self.end_offset, side="right"))
        if self._half is not None:
            offset, done = self._half
            start = int(np.searchsorted(offsets, offset, side="left")) + done
        while start < len(hashes):
            try:
                file = self._writable()
            except StoreFailed:
                offset = int(offsets[start])
                self._half = (offset, start - int(np.searchsorted(offsets, offset, side="left")))
                raise
            start += file.put(hashes[start:], offsets[start:], times[start:], room=room)
        self._half = None

    def _writable(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and not last.full:
            return last
        path = self._new_path(last)
        made = IndexFile(self._io.create_map(path, self.geometry.file_size), self.geometry)
        if last is not None:
            made.set_header(header_after(last.header))
            with self._gate:
                self._unsynced.append(last)
        with self._gate:
            self.files = (*self.files, made)
        return made

    def _new_path(self, last: IndexFile | None) -> Path:
        """Named by local time to the millisecond; always behind the file before, whatever the clock does."""
        moment = datetime.fromtimestamp(self._clock() / 1000)
        name = f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
        if last is not None and name <= last.path.name:
            name = f"{int(last.path.name) + 1:017d}"
        return self.folder / name

    # -- flushing --------------------------------------------------------------------------------------------

    def sync(self, *, everything: bool) -> int:
        """Syncs full files, or all that may have changed; returns the store time that is now safe, 0 if none.

        Raises OSError when the disk refuses.
        """
        with self._gate:
            waiting, self._unsynced = self._unsynced, []
        safe = 0
        last = self.files[-1:] if everything else ()
        for file in (*waiting, *last):
            if not file.hold():  # deleted meanwhile
                continue
            try:
                end = 0 if file.empty else file.header.end_timestamp
                file.sync()
                safe = max(safe, end)
            finally:
                file.release()
        return safe

    # -- deleting --------------------------------------------------------------------------------------------

    def expired(self, log_min_offset: int) -> bool:
        """Whether the first file may go: all its records lie before the log's minimum, and a newer file has items.

        Never the last file, nor the last that is not empty: it tells how far the index has come.
        """
        files = self.files
        if len(files) < 2 or (len(files) == 2 and files[-1].empty):
            return False
        return not files[0].available or files[0].header.end_physical_offset < log_min_offset

    def drop_first(self, *, forced: bool = False) -> bool:
        """Deletes the first file unless somebody reads it, `forced` also then; as `FileQueue.drop_first`."""
        file = self.files[0]
        if not file.shut_down() and not forced:
            return False
        self._io.unlink(file.path)
        with self._gate:
            self.files = self.files[1:]
        self._io.sync_folder(self.folder)
        return True

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files = ()
